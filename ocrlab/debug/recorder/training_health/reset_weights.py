"""Are the weights back where they were whenever a walk over the data begins? Then each walk trains for nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

TIMES = 2  # walks behind the first one, from which on it is no chance


class WeightResetCheck:
    """The sum of all weights' bits at the first batch of each walk, until two walks begin with other weights."""

    def __init__(self) -> None:
        self.walk = -1
        self.first: int | None = None
        self.steps = 0
        self.times = 0
        self.over = False

    def begin(self, walk: int, steps: int, weights: Callable[[], int]) -> None:
        """Note that a walk begins after so many steps; `weights` computes the sum."""
        new_steps, self.walk, self.steps = steps - self.steps, walk, steps
        if self.over or (self.first is not None and not new_steps):
            return
        now = weights()
        if self.first is None:
            self.first = now
        elif now == self.first:
            self.times += 1
        else:
            self.over = True

    def sentence(self, weights: Mapping[int, int]) -> str:
        """Return what is to be said where every walk began with the weights of the first; `weights` are those after
        some steps, of which one must have moved them. Else ''.
        """
        if self.over or self.times < TIMES or all(after == self.first for after in weights.values()):
            return ""
        return (
            f"all {self.times + 1} walks over the data began with the same weights, to the last bit: what a walk has"
            " learned is lost at the next. Look for load_state_dict, or a reset of the weights, inside of the loop over"
            " epochs"
        )
