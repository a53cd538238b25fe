"""How many of the samples that there are a training ever draws, from the indices of its batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ocrlab.debug.recorder import rng_state

MOST = 1 << 16  # samples that are told apart; who draws more of them draws enough
ENOUGH = 100  # draws from which on something is said
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
        """Return what is to be said where far fewer of `samples` were drawn than chance would have; else ''."""
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


def more_than_a_batch(loader: Any) -> bool:
    """Tell whether a loader is known to have more samples than one batch."""
    return samples_in(loader) > (getattr(loader, "batch_size", 0) or 1)


def copied_generator(loader: Any) -> str:
    """Return the name of a generator that a data set brings to its workers, each of which gets the same; else ''."""
    if loader is None or not loader.num_workers or loader.worker_init_fn is not None:
        return ""
    attributes = getattr(loader.dataset, "__dict__", {})
    return next((name for name, value in attributes.items() if isinstance(value, rng_state.KINDS)), "")
