"""Do workers wait for one another? Told by the system call in which each is found (proc(5), syscall)."""

from __future__ import annotations

import platform
from dataclasses import dataclass

FUTEX = {"x86_64": "202", "aarch64": "98"}.get(platform.machine(), "")  # what waits for a lock, of threads or processes
RUNNING = "running"  # in the place of a system call: on a core, or waiting for one
MOMENTS = 8  # from which on they say something
SOME, ALL = 0.5, 0.1  # of the moments: one holds the lock, so that all of them never wait for it at once


@dataclass
class LockStats:
    """Moments at which all workers were looked at, and at which some or all of them waited for a lock."""

    moments: int = 0
    some: int = 0
    all: int = 0

    def see(self, calls: list[str]) -> None:
        """Take note of one moment: of each worker the system call it waits in, RUNNING where it has or wants a core.

        A worker that was given the lock wants a core first, for long on a busy machine: a moment at which one runs and
        nobody waits for a lock tells nothing.
        """
        waiting = calls.count(FUTEX)
        if len(calls) > 1 and (waiting or RUNNING not in calls):
            self.moments += 1
            self.some += 0 < waiting < len(calls)
            self.all += waiting == len(calls)

    @property
    def shared(self) -> bool:
        """Tell whether the workers wait for a lock that one of them holds; threads of their own are none."""
        return self.moments >= MOMENTS and self.some >= SOME * self.moments and self.all <= ALL * self.moments


def current_syscall(pid: int) -> str:
    """Return the number of the system call in which the main thread of a process waits; "" where nobody may know."""
    try:
        with open(f"/proc/{pid}/syscall", encoding="ascii") as file:
            return file.read().split()[0] if FUTEX else ""
    except (OSError, ValueError, IndexError):
        return ""
