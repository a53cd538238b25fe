"""How long nothing has moved: what counts as progress, and when silence is a hang.

Processes that read, write and compile make progress, by the counters in /proc; CPU time alone is never progress.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ocrlab.debug.watch import stack_sampling
from ocrlab.hardware import system_files
from ocrlab.hardware.processes import process_tree, stack_dumps
from ocrlab.hardware.processes.stack_types import Stack
from ocrlab.run_folder import heartbeat

FRAMES_FROM, FRAMES_EVERY = 0.25, 0.05  # shares of the limit: when frames are first looked at, and how often then
LAST_LOOKS = 0.88  # share of the limit after which each look is a closer one
BEFORE = 0.5  # share of the limit after which all stacks are taken, to be compared with those at the end
LOOK_SECONDS = 1.0  # that one look at frames may take
WRITTEN = 64  # bytes; less is the chatter of threads that wake each other
READ_RATE = 16_384  # bytes a second; threads that watch the machine read less from /proc
COMPILED = 0.05  # CPU seconds of a compiler that is at work
ASIDE = ("tracker", "helper")  # roles that live on while the program hangs
STEP = (0.2, 1.0)  # seconds between two looks at /proc in a silence, least and most


@dataclass(frozen=True)
class Counters:
    """What one process did so far: bytes through read and write calls and to disks, offsets of its files."""

    read: int
    written: int
    disk: int
    offsets: dict[tuple[int, int], int]  # by device and inode
    cpu_seconds: float
    compiler: bool


Table = dict[tuple[int, int], Counters]  # by pid and start


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
    counters: Table = field(default_factory=dict)
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
        table = count_io(family)
        if not self.counters:
            self.counters, self.counted = table, now
        what = what_moved(self.counters, table, now - self.counted)
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


def count_io(family: Sequence[process_tree.Process]) -> Table:
    """Return the counters of every process that can do the program's work."""
    table: Table = {}
    for process in family:
        if process.role not in ASIDE and process.state != "Z":
            lines = system_files.read_text(Path(f"/proc/{process.pid}/io")).splitlines()
            io = {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}
            table[process.pid, process.started] = Counters(
                read=io.get("rchar", 0),
                written=io.get("wchar", 0),
                disk=io.get("read_bytes", 0) + io.get("write_bytes", 0),
                offsets=_offsets(process.pid),
                cpu_seconds=process.cpu_seconds,
                compiler=process.role == "compiler",
            )
    return table


def what_moved(before: Table, after: Table, seconds: float) -> str:
    """Return what moved in `seconds` between two tables, in a word or two; empty if nothing did."""
    nothing = Counters(0, 0, 0, {}, 0.0, False)
    read = 0
    for key, now in after.items():
        old = before.get(key, nothing)
        if now.compiler and now.cpu_seconds - old.cpu_seconds >= COMPILED:
            return "a compiler"
        if key not in before:
            continue  # to start a process reads libraries; that alone is not progress
        if now.written - old.written >= WRITTEN:
            return "writing"
        if now.disk > old.disk:
            return "a disk"
        if any(now.offsets[file] != offset for file, offset in old.offsets.items() if file in now.offsets):
            return "a file"
        read += now.read - old.read
    return "reading" if read >= READ_RATE * max(1.0, seconds) else ""


def _offsets(pid: int) -> dict[tuple[int, int], int]:
    """Return where a process stands in its open regular files; those of /proc and /sys tell about others."""
    offsets: dict[tuple[int, int], int] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                if os.readlink(f"/proc/{pid}/fd/{name}").startswith(("/proc/", "/sys/", "socket:", "pipe:", "anon_")):
                    continue
                about = os.stat(f"/proc/{pid}/fd/{name}")
                if stat.S_ISREG(about.st_mode):
                    position = int(system_files.read_text(Path(f"/proc/{pid}/fdinfo/{name}")).split()[1])
                    offsets[about.st_dev, about.st_ino] = offsets.get((about.st_dev, about.st_ino), 0) + position
    return offsets
