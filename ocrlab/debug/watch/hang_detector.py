"""How long nothing has moved: what counts as progress, and when silence is a hang."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from ocrlab.debug.watch import progress_counters, stack_sampling
from ocrlab.hardware.processes import process_tree, stack_dumps
from ocrlab.hardware.processes.stack_types import Stack
from ocrlab.run_folder import heartbeat

FRAMES_FROM, FRAMES_EVERY = 0.25, 0.05  # shares of the limit: when frames are first looked at, and how often then
LAST_LOOKS = 0.88  # share of the limit after which each look is a closer one
BEFORE = 0.5  # share of the limit after which all stacks are taken, to be compared with those at the end
LOOK_SECONDS = 1.0  # that one look at frames may take
STEP = (0.2, 1.0)  # seconds between two looks at /proc in a silence, least and most


@dataclass
class HangDetector:
    """When something last moved (`since`, monotonic seconds) and what; it is a hang after `limit` seconds."""

    limit: float
    heartbeats: Path
    since: float = field(default_factory=time.monotonic)
    what: str = "start"
    looked: float = 0.0
    beat: float = 0.0  # monotonic time of the newest heartbeat
    longest: float = 0.0  # seconds between two heartbeats
    stops: bool = False  # a heartbeat reports that the program was asked to stop, and does
    has_heartbeat: bool = False
    counters: progress_counters.Table = field(default_factory=dict)
    counted: float = 0.0
    samples: stack_sampling.Samples = field(default_factory=dict)
    sampled: float = 0.0
    sampler: threading.Thread | None = None
    before: list[Stack] = field(default_factory=list)  # an earlier look of this silence, at every process
    roles: dict[int, str] = field(default_factory=dict)  # of every process that was ever seen, by pid
    names: set[str] = field(default_factory=set)  # of them, as the kernel has them

    @property
    def step(self) -> float:
        """Seconds between two looks."""
        return min(max(self.limit / 20, STEP[0]), STEP[1])

    def moved(self, now: float, what: str) -> None:
        """Something moved: the silence is over."""
        self.since, self.what = now, what
        if self.counters or self.samples:
            self.counters, self.samples, self.before = {}, {}, []

    def look(self, now: float, root: int) -> None:
        """Look for progress without output, if it is time to: a heartbeat first, then counters, then frames."""
        if self.sampler is not None and not self.sampler.is_alive():
            self.sampler = None
            if stack_sampling.moved(self.samples):
                self.moved(now, "frames")
        if now - self.since < self.step or now - self.looked < self.step:
            return
        self.looked = now
        if self._beats(now):
            return
        family = process_tree.descendants(root)
        self.meet(family)
        family = without_launcher(family)
        table = progress_counters.count(family)
        if not self.counters:
            self.counters, self.counted = table, now
        what = progress_counters.moved(self.counters, table, now - self.counted)
        if what:
            self.moved(now, what)
        else:
            self._frames(now, family)

    def meet(self, family: list[process_tree.Process]) -> None:
        """Remember who belongs to the program: the kernel names the dead by number."""
        self.roles.update({process.pid: process.role for process in family})
        self.names.update(process.name for process in family)

    def hangs(self, now: float) -> bool:
        """Return whether there was no visible progress for `limit` seconds."""
        return now - self.since >= self.limit and self.sampler is None

    def wait(self, now: float) -> float:
        """Return in how many seconds the next look is due."""
        if self.sampler is not None:
            return STEP[0] / 4
        return max(0.02, min(self.step, max(self.since, self.looked) + self.step - now))

    def _beats(self, now: float) -> bool:
        newest = heartbeat.newest(self.heartbeats)
        if newest is None:
            return False
        self.has_heartbeat = True
        if newest["time"] <= self.beat:
            return False
        self.longest = max(self.longest, newest["time"] - (self.beat or newest["time"]))
        self.beat, self.stops = newest["time"], newest["phase"] == heartbeat.STOPS
        if self.beat <= self.since:
            return False
        self.moved(min(now, self.beat), "heartbeat")
        return True

    def _frames(self, now: float, family: list[process_tree.Process]) -> None:
        """Begin a look at the frames when it is due; it goes on beside us, and is judged by the next `look`."""
        due = now - self.since >= self.limit * FRAMES_FROM and now - self.sampled >= self.limit * FRAMES_EVERY
        if due and self.sampler is None:
            self.sampled = now
            self.sampler = threading.Thread(target=self._sample, args=(family, self.samples, now), daemon=True)
            self.sampler.start()

    def _sample(self, family: list[process_tree.Process], samples: stack_sampling.Samples, now: float) -> None:
        last = now - self.since >= self.limit * LAST_LOOKS
        stack_sampling.sample(family, samples, now + LOOK_SECONDS, stack_sampling.BURST if last else 1)
        if not self.before and now - self.since >= self.limit * BEFORE:
            self.before = stack_dumps.take(family, LOOK_SECONDS)


def without_launcher(family: list[process_tree.Process]) -> list[process_tree.Process]:
    """Return the processes without torchrun's agent, which writes to its store all the time while its ranks hang."""
    launchers = {process.parent for process in family if process.role == "rank"}
    return [process for process in family if process.pid not in launchers or process.role == "rank"]
