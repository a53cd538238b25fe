"""What a step's record says about memory: of the process from the kernel, of the device from torch's allocator."""

from __future__ import annotations

import contextlib
import os

import torch

# Seconds between two looks. The kernel takes 10 us for the resident memory, torch's allocator some 0.1 ms for its
# statistics of one device; what that costs on a GPU was not measured.
EVERY = 0.5


class MemoryReader:
    """The figures of this process; between two looks the same dictionary again."""

    def __init__(self) -> None:
        self.statm = -1
        with contextlib.suppress(OSError):  # there is none outside of Linux
            self.statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self.looked, self.figures = 0.0, dict[str, int]()
        self.page_bytes = os.sysconf("SC_PAGE_SIZE")

    def at(self, now: float, cuda: bool) -> dict[str, int]:
        """Return resident bytes of this process and, with `cuda`, bytes allocated and reserved on the current device.

        `now` is in seconds; the figures are at most `EVERY` seconds old.
        """
        if abs(now - self.looked) <= EVERY:
            return self.figures
        self.looked, self.figures = now, {}
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
        """Give the descriptor back."""
        if self.statm >= 0:
            os.close(self.statm)
            self.statm = -1
