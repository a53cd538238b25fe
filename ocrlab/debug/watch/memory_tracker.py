"""The memory of a watched program from outside: how much all its processes held, and who held the GPUs when it ran out.

What a process that was killed cannot tell any more is kept here, in about two hundred samples however long it runs."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ocrlab.hardware import cgroup, system_files
from ocrlab.hardware.gpu_monitor import Stream
from ocrlab.hardware.processes import process_tree

EVERY = (0.1, 0.05, 10.0)  # seconds at least, share of the time so far, seconds at most
BUDGET = 0.003  # of a core that samples may take: on a machine with thousands of processes one takes 20 ms
GROUP_EVERY = 8  # samples after which a limit of the control group is looked for again where there was none
MOST = 400  # samples; of more, every second one is dropped
PATIENCE = 2.0  # seconds that the driver has to say who holds the cards, when the program has ended already
OUT = re.compile(rb"out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED")
DRIVER = ("/dev/nvidiactl", "/dev/dxg", "/proc/driver/nvidia")
INFINITE = float("inf")
SPACE = re.compile(r"^Max address space\s+(\d+) ", re.MULTILINE)


@dataclass
class MemoryTracker:
    """Samples of a program since it started, and the cards at its first out-of-memory message."""

    seconds: list[float] = field(default_factory=list)
    tree: list[int] = field(default_factory=list)
    shm: list[int] = field(default_factory=list)
    processes: list[dict[str, Any]] = field(default_factory=list)  # as they were last seen alive
    group: dict[str, int] | None = None
    space: float = INFINITE  # the least address space of one of them (RLIMIT_AS): it may have limited itself
    due: float = 0.0  # seconds after the start of the next sample
    asked: Stream | None = None

    def wait(self, passed: float) -> float:
        """Return how many seconds are left until the next sample, `passed` seconds after the start."""
        return max(0.0, self.due - passed)

    def look(self, passed: float, pid: int) -> None:
        """Take a sample of a process and all below it, if it is time to."""
        if passed < self.due:
            return
        least, share, most = EVERY
        begun = time.thread_time()
        self._sample(passed, pid)
        took = time.thread_time() - begun
        self.due = passed + max(min(max(least, share * passed), most), took / BUDGET)

    def _sample(self, passed: float, pid: int) -> None:
        family = process_tree.descendants(pid)
        processes: list[dict[str, Any]] = []
        for process in family:  # /proc/PID/status never waits, smaps_rollup does
            fields = system_files.memory_fields(Path(f"/proc/{process.pid}/status"))
            if rss := fields.get("VmRSS"):
                row = {"pid": process.pid, "role": process.role, "name": process.name, "rss": rss}
                processes.append({**row, "anonymous": fields.get("RssAnon", rss), "shared": fields.get("RssShmem", 0)})
        if not processes:
            return
        self.processes = processes
        self.seconds.append(round(passed, 2))
        self.tree.append(sum(row["anonymous"] for row in processes) + max(row["shared"] for row in processes))
        self.shm.append(0)
        with contextlib.suppress(OSError):
            self.shm[-1] = shutil.disk_usage("/dev/shm").used
        if self.group or len(self.seconds) % GROUP_EVERY == 1:
            self.group = cgroup.memory_use(pid).value or self.group
        limits = (SPACE.search(system_files.read_text(Path(f"/proc/{row['pid']}/limits"))) for row in processes)
        self.space = min(self.space, *(float(limit[1]) if limit else INFINITE for limit in limits))
        if len(self.seconds) > MOST:
            for series in (self.seconds, self.tree, self.shm):
                del series[1:-1:2]

    def note_output(self, data: bytes) -> None:
        """Take note of what the program printed: at its first out-of-memory message ask who holds the cards."""
        if self.asked is None and OUT.search(data) and any(os.path.exists(path) for path in DRIVER):
            self.asked = Stream(3600.0)

    def facts(self) -> dict[str, Any]:
        """Return what is known, each key only where it is: memory, gpus, address_space_bytes."""
        facts: dict[str, Any] = {}
        if self.seconds:
            facts["memory"] = {"seconds": self.seconds, "tree": self.tree, "shm": self.shm, "group": self.group}
            facts["memory"]["processes"] = self.processes[:32]
        if self.space != INFINITE:
            facts["address_space_bytes"] = int(self.space)
        if self.asked is not None:
            self.asked.came.wait(PATIENCE)
            reading = self.asked.latest()
            facts["gpus"] = reading.value or {"missing": reading.missing}
            for card in (reading.value or {}).get("cards", ()):
                for user in card.get("processes", ()):
                    user["ours"] = user["pid"] in {process["pid"] for process in self.processes}
        return facts

    def close(self) -> None:
        """End the child that asks the driver."""
        if self.asked is not None:
            self.asked.close()


@dataclass
class OomKillCounters:
    """The counters at the start, of every memory group that a process of the program was seen in."""

    before: dict[Path, int] = field(default_factory=dict)
    machine: int | None = field(default_factory=lambda: cgroup.machine_oom_kills().value)

    def note(self, pid: int | str = "self") -> None:
        """Keep the counter of the group of a process, if it has one that is new and not the whole machine's."""
        group = cgroup.memory_group(pid)
        if group and group not in self.before and not cgroup.is_root(group):
            value = cgroup.oom_kills(group).value
            if isinstance(value, int):
                self.before[group] = value

    def own(self) -> list[Path]:
        """Return the groups that the program made for itself: the watcher is in none of them."""
        shared = cgroup.memory_group()
        return [group for group in self.before if group != shared]

    def count(self) -> int | None:
        """Return how many kills were counted since in these groups; None where it is unknown whose they were.

        Where the whole machine counted none, there was none, whatever the group.
        """
        if self.machine is not None and cgroup.machine_oom_kills().value == self.machine:
            return 0
        grown = [(cgroup.oom_kills(group).value, old) for group, old in self.before.items()]
        growths = [now - old for now, old in grown if isinstance(now, int)]
        return sum(max(0, number) for number in growths) if growths else None
