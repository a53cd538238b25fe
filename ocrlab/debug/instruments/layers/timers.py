"""Time and memory around a module without waiting for a device: CUDA events there, the monotonic clock elsewhere.

What the instrument itself takes, between two marks, is known too and left out of the time of the modules around it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch

Mark = Any  # seconds on the CPU, a torch.cuda.Event on a GPU


@dataclass
class StepClock:
    """Marks of one step; `own` holds begin and end of what the instrument itself did, in order."""

    cuda: bool = False
    own: list[tuple[Mark, Mark]] = field(default_factory=list)

    def mark(self) -> Mark:
        """Return this moment, on a GPU that of the work queued so far."""
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def done(self, begin: Mark) -> Mark:
        """Note that the instrument worked since `begin`, and return this moment."""
        end = self.mark()
        self.own.append((begin, end))
        return end

    def ms(self, begin: Mark, end: Mark, first: int, last: int) -> float | None:
        """Return the milliseconds between two marks without `own[first:last]`, None where they are of two GPUs.

        On a GPU both must have passed.
        """
        try:
            inside = sum(self._between(*pair) for pair in self.own[first:last])
            return max(0.0, self._between(begin, end) - inside)
        except (RuntimeError, ValueError):
            return None

    def _between(self, begin: Mark, end: Mark) -> float:
        return float(begin.elapsed_time(end)) if self.cuda else 1000.0 * (end - begin)

    def memory(self) -> int | None:
        """Return the bytes that tensors take on the current GPU, None on the CPU, where nobody counts them."""
        if not self.cuda:
            return None
        return int(torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["current"])
