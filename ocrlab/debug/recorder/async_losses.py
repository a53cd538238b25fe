"""Losses on their way from a device to the host: nobody waits for them.

What this costs on a GPU was not measured: one copy of eight bytes into page-locked memory that is used again, and one
event that is used again, for each loss.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

MOST = 64  # losses that may be under way; more are not noted


class LossTransfer:
    """The losses of one recording that are under way, oldest first."""

    def __init__(self) -> None:
        self.buffer: Tensor | None = None  # page-locked, a place for each loss
        self.events: list[Any] = []
        self.pending: deque[tuple[int, int, float]] = deque()  # micro-batch, place, scale
        self.count = 0

    def __len__(self) -> int:
        return len(self.pending)

    def send(self, micro: int, value: Tensor, scale: float) -> None:
        """Start the way of a loss from its device to the host; inside of a CUDA graph it has no value yet."""
        if value.numel() != 1 or len(self.pending) >= MOST or torch.cuda.is_current_stream_capturing():
            return
        if self.buffer is None:
            self.buffer = torch.empty(MOST, dtype=torch.float64, pin_memory=True)
            self.events = [torch.cuda.Event() for _ in range(MOST)]
        place = self.count % MOST
        with torch.cuda.device(value.device):  # else the event is on another stream, and passes at once
            self.buffer[place : place + 1].copy_(value.reshape(1), non_blocking=True)
            self.events[place].record()
        self.pending.append((micro, place, scale))
        self.count += 1

    def arrived(self) -> Iterator[tuple[int, float]]:
        """Take out the losses that have arrived, with their micro-batches."""
        while self.pending and self.buffer is not None and self.events[self.pending[0][1]].query():
            micro, place, scale = self.pending.popleft()
            yield micro, float(self.buffer[place]) * scale

    def abandon(self) -> list[Any]:
        """Give up what is under way, and return what must not be freed in a dead CUDA context."""
        memory = [self.buffer, *self.events] if self.buffer is not None else []
        self.buffer, self.events = None, []
        self.pending.clear()
        return memory
