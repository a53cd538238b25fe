"""How often the kernel killed for want of memory while the program ran, by the counters of its control groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ocrlab.hardware import cgroup


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
