"""What a step's record measures: memory of the process and of the device, and losses that arrive from a device later.

Nobody waits for a loss on a device: it costs one copy of eight bytes into page-locked memory and one event, both used
again. What that costs on a GPU was not measured.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ocrlab.debug.recorder.figure_transfer import POLL

# Seconds between two looks. The kernel takes 10 us for the resident memory, torch's allocator some 0.1 ms for its
# statistics of one device; what that costs on a GPU was not measured.
EVERY = 0.5
MAX_LOSSES = 64  # losses that may be under way; more are not noted


class MemoryReader:
    """The figures of this process; between two looks the same dictionary again."""

    def __init__(self) -> None:
        self.statm = -1
        with contextlib.suppress(OSError):  # Linux only
            self.statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self.last_read, self.figures = 0.0, dict[str, int]()
        self.page_bytes = os.sysconf("SC_PAGE_SIZE")

    def read(self, now: float, cuda: bool) -> dict[str, int]:
        """Return resident bytes of this process and, with `cuda`, bytes allocated and reserved on the current device.

        `now` is in seconds; the figures are at most `EVERY` seconds old.
        """
        if abs(now - self.last_read) <= EVERY:
            return self.figures
        self.last_read, self.figures = now, {}
        if self.statm >= 0:
            self.figures["rss"] = int(os.pread(self.statm, 200, 0).split()[1]) * self.page_bytes
        if cuda:
            device = torch.cuda.current_device()
            counts = torch.cuda.memory_stats(device)
            for figure in ("allocated_bytes", "reserved_bytes"):
                for kind, name in (("current", ""), ("peak", "_peak")):
                    if f"{figure}.all.{kind}" in counts:
                        self.figures[f"cuda{device}.{figure[:-6]}{name}"] = int(counts[f"{figure}.all.{kind}"])
        return self.figures

    def close(self) -> None:
        """Close the file."""
        if self.statm >= 0:
            os.close(self.statm)
            self.statm = -1


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
        """Start copying a loss from its device; inside a CUDA graph it has no value yet."""
        if value.numel() != 1 or len(self.pending) >= MAX_LOSSES or torch.cuda.is_current_stream_capturing():
            return
        if self.buffer is None:
            self.buffer = torch.empty(MAX_LOSSES, dtype=torch.float64, pin_memory=True)
            self.events = [torch.cuda.Event() for _ in range(MAX_LOSSES)]
        place = self.count % MAX_LOSSES
        with torch.cuda.device(value.device):  # else the event is on another stream, and passes at once
            self.buffer[place : place + 1].copy_(value.reshape(1), non_blocking=True)
            self.events[place].record()
        self.pending.append((micro, place, scale))
        self.count += 1

    def arrived(self, seconds: float = 0.0) -> Iterator[tuple[int, float]]:
        """Yield micro-batch and loss of what has arrived, at the end of a training of what does within some seconds."""
        deadline = time.monotonic() + seconds if seconds else 0.0
        while self.pending and self.buffer is not None:
            while not self.events[self.pending[0][1]].query():
                if not seconds or time.monotonic() >= deadline:
                    return
                time.sleep(POLL)
            micro, place, scale = self.pending.popleft()
            yield micro, float(self.buffer[place]) * scale

    def abandon(self) -> list[Any]:
        """Abandon pending losses, and return what must not be freed in a dead CUDA context."""
        memory = [self.buffer, *self.events] if self.buffer is not None else []
        self.buffer, self.events = None, []
        self.pending.clear()
        return memory
