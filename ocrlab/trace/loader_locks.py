"""Do workers wait for one another? Told by the system call in which each is found (proc(5), syscall)."""

from __future__ import annotations

import platform
from dataclasses import dataclass

FUTEX = {"x86_64": "202", "aarch64": "98"}.get(platform.machine(), "")  # what waits for a lock, of threads or processes
MOMENTS = 8  # from which on they say something
SOME, ALL = 0.5, 0.1  # of the moments: one holds the lock, so that all of them never wait for it at once


@dataclass
class Locks:
    """Moments at which all workers were looked at, and at which some or all of them waited for a lock."""

    moments: int = 0
    some: int = 0
    all: int = 0

    @property
    def shared(self) -> bool:
        """Tell whether the workers wait for a lock that one of them holds; threads of their own are none."""
        return self.moments >= MOMENTS and self.some >= SOME * self.moments and self.all <= ALL * self.moments


def at_a_lock(pid: int) -> bool | None:
    """Tell whether the main thread of a process waits for a lock now; None where nobody may know."""
    try:
        with open(f"/proc/{pid}/syscall", encoding="ascii") as file:
            return file.read().split()[0] == FUTEX if FUTEX else None
    except (OSError, ValueError, IndexError):
        return None
