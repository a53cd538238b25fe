"""Checks of the passes over the data: weights that are reset at each one, samples that are never drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TIMES = 2  # passes after the first one, from which on it is not a coincidence


class WeightResetCheck:
    """The sum of all weights' bits at the first batch of each pass, until two passes begin with other weights."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.steps = 0
        self.times = 0
        self.begun = self.over = False

    def wants(self, steps: int) -> bool:
        """Note that a pass begins after so many steps; return whether `note` is to get the sum."""
        new_steps, self.steps = steps - self.steps, steps
        begun, self.begun = self.begun, True
        return not self.over and (not begun or new_steps > 0)

    def note(self, now: int) -> None:
        """Note the sum at the beginning of a pass."""
        if self.first is None:
            self.first = now
        elif now == self.first:
            self.times += 1
        else:
            self.over = True

    def sentence(self, weights: Mapping[int, int]) -> str:
        """Return the finding where every pass began with the weights of the first; `weights` are those after
        some steps, of which one must have moved them. Else ''.
        """
        if self.over or self.times < TIMES or all(after == self.first for after in weights.values()):
            return ""
        return (
            f"all {self.times + 1} walks over the data began with the same weights, to the last bit: what a walk has"
            " learned is lost at the next. Look for load_state_dict, or a reset of the weights, inside of the loop over"
            " epochs"
        )


MOST = 1 << 16  # samples that are counted; more are enough
ENOUGH = 100  # draws that are needed for a finding
MANY = 64  # batches that are counted at a time
LITTLE = 0.1  # of the samples that as many draws by chance would have met


@dataclass
class SamplerCoverageCheck:
    """The indices that were drawn, as the loader wrote them down."""

    indices: set[str] = field(default_factory=set)
    count: int = 0
    noted: list[str] = field(default_factory=list)  # batches that are still to be counted

    def note(self, indices: str) -> None:
        """Note the indices of one batch, written as a list of whole numbers."""
        self.noted.append(indices)
        if len(self.noted) >= MANY:
            self._add()

    def _add(self) -> None:
        for indices in self.noted:
            each = indices.strip("[]").split(", ")
            if len(self.indices) < MOST and all(index.isdigit() for index in each):
                self.indices.update(each)
                self.count += len(each)
        self.noted = []

    def sentence(self, samples: int) -> str:
        """Return the finding for far fewer of `samples` drawn than by chance; else ''."""
        self._add()
        met = samples * -math.expm1(-self.count / samples) if samples else 0.0
        if self.count < ENOUGH or len(self.indices) >= MOST or len(self.indices) > LITTLE * met:
            return ""
        return (
            f"only {len(self.indices)} of {samples} samples were ever drawn, in {self.count} draws. Look at the"
            " sampler: a WeightedRandomSampler needs one weight a sample, not one a class, and indices of all samples"
        )


def samples_in(loader: Any) -> int:
    """Return how many samples a loader knows to have, 0 where it does not."""
    try:
        return len(loader.dataset)
    except (TypeError, AttributeError, RuntimeError):  # it has no length, or is gone
        return 0
