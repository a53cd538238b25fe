"""What a step's record says about memory: of the process from the kernel, of the device from torch's allocator."""

from __future__ import annotations

import contextlib
import os

import torch

EVERY = 0.5  # seconds between two looks at the resident memory, which the kernel takes 10 us for


class Memory:
    """The figures of this process; between two looks the same dictionary again."""

    def __init__(self) -> None:
        self.statm = -1
        with contextlib.suppress(OSError):  # there is none outside of Linux
            self.statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self.looked, self.resident = 0.0, dict[str, int]()
        self.page_bytes = os.sysconf("SC_PAGE_SIZE")

    @property
    def due(self) -> float:
        """When the resident memory is to be looked at again, in seconds since 1970."""
        return self.looked + EVERY

    def at(self, now: float, cuda: bool) -> dict[str, int]:
        """Return resident bytes of this process and, with `cuda`, bytes allocated and reserved on the current device.

        `now` is in seconds.
        """
        if abs(now - self.looked) > EVERY and self.statm >= 0:
            self.looked = now
            self.resident = {"rss": int(os.pread(self.statm, 200, 0).split()[1]) * self.page_bytes}
        if not cuda:
            return self.resident
        figures, device = dict(self.resident), torch.cuda.current_device()  # of each of eight it would take 0.3 ms
        counts = torch.cuda.memory_stats_as_nested_dict(device)
        for figure in ("allocated_bytes", "reserved_bytes"):
            if figure in counts:
                figures[f"cuda{device}.{figure[:-6]}"] = int(counts[figure]["all"]["current"])
                figures[f"cuda{device}.{figure[:-6]}_peak"] = int(counts[figure]["all"]["peak"])
        return figures

    def close(self) -> None:
        """Give the descriptor back."""
        if self.statm >= 0:
            os.close(self.statm)
            self.statm = -1
