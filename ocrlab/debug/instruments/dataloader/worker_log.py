"""What each process that loads did, in a file of its own: a line for each sample, and the sample it is on now.

Files and not queues, so that nobody ever waits for a reader, and so that a worker that is killed leaves its last word.
Times are those of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ocrlab.debug.instruments.memory import host_memory
from ocrlab.run_folder import heartbeat

SINGLE = 20_000  # samples that have a line each; from then on GROUP of them share one, which names the slowest
GROUP = 64
COLLATE = "collate_fn"  # in the place of a sample that failed: making a batch of them did
EVERY = 0.25  # seconds between two looks at memory and processor
PSS_SHARE = 0.005  # of the time that may go into reading the shared part of memory, which the kernel has to add up

FUTEX = {"x86_64": "202", "aarch64": "98"}.get(platform.machine(), "")  # what waits for a lock, of threads or processes
RUNNING = "running"  # in the place of a system call: on a core, or waiting for one
MOMENTS = 8  # from which on they say something
SOME, ALL = 0.5, 0.1  # of the moments: one holds the lock, so that all of them never wait for it at once


@dataclass
class Step:
    """One step: when its wait for data began, how long that took and the computing after it (seconds).

    `first` is the first of an epoch, whose wait holds the start of the workers; `idle` tells whether a CUDA device had
    nothing left to do when the wait ended (None without one); `delay` are seconds of the computing without a core,
    `cpu` those that all threads of this process spent on one meanwhile.
    """

    began: float
    wait: float
    compute: float | None = None
    first: bool = False
    idle: bool | None = None
    delay: float = 0.0
    cpu: float = 0.0


@dataclass(frozen=True)
class Death:
    """A worker that ended before its time: how, the sample it was on, and the samples that it had loaded."""

    worker: int
    pid: int
    how: str  # SIGKILL, exit status 3
    sample: str
    samples: int


@dataclass(frozen=True)
class Memory:
    """Bytes of a process: resident, resident with what is shared divided by who shares it, and its own alone."""

    rss: int = 0
    pss: int = 0
    private: int = 0


class WorkerLog:
    """The log of this process; an error switches it off and is printed once. Raises OSError where there is no room."""

    def __init__(self, folder: Path, worker: int) -> None:
        self.folder, self.worker, self.pid = folder, worker, os.getpid()
        self.now = heartbeat.Writer(folder / str(self.pid))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self.lines: int | None = os.open(folder / f"{self.pid}.jsonl", flags, 0o600)
        self.count, self.last_look, self.next_full = 0, 0.0, 0.0
        self.own_seconds = 0.0  # seconds that the timing itself took
        self.group: list[Any] = []
        self.schedstat = open_schedstat()
        self.local = threading.local()  # a data set may load with threads of its own
        self.write(["begin", worker, os.getppid(), time.monotonic()])
        self.look()

    def begin(self, index: Any) -> None:
        """Write which sample is being loaded."""
        self.now.beat(phase="load", sample=str(index)[:200])

    def end(self, index: Any, name: str, began: float, seconds: float, cpu: float, of: int = 1) -> None:
        """Write down a sample that was loaded, or `of` samples that were loaded together."""
        self.count += of
        self.now.beat(step=self.count, phase="")
        line = ["sample", round(began, 6), round(seconds, 7), round(cpu, 7), str(index)[:80], name, of]
        if self.count <= SINGLE:
            self.write(line)
        else:
            self.group.append(line)
            if len(self.group) >= GROUP:
                self.flush()
        if began + seconds - self.last_look > EVERY:
            self.look()

    def mark(self, digest: str) -> None:
        """Write down what one of the first items of a stream holds."""
        self.write(["mark", digest])

    def failed(self, index: Any, name: str) -> None:
        """Write down a sample that could not be loaded."""
        self.write(["failed", str(index)[:80], name])

    def collated(self, seconds: float) -> None:
        """Write down how long it took to make a batch of its samples."""
        self.write(["collate", round(seconds, 7)])

    def flush(self) -> None:
        """Write the samples that wait for a line of theirs."""
        if self.group:
            worst = max(self.group, key=lambda line: float(line[2]))
            sums = [sum(line[at] for line in self.group) for at in (2, 3, 6)]
            self.write(["samples", worst, *sums])
            self.group = []

    def look(self) -> None:
        """Write down memory, processor time and threads; close where the one who reads has gone."""
        self.last_look = now = time.monotonic()
        if not self.folder.is_dir():
            return self.close()
        memory = Memory(rss=host_memory.resident())
        if now >= self.next_full:
            memory = shared_memory() or memory
            self.next_full = now + max(1.0, (time.monotonic() - now) / PSS_SHARE)
        delay = runqueue_seconds(self.schedstat)
        cpu = (time.thread_time(), time.process_time())
        self.write(["look", now, memory.rss, memory.pss, memory.private, *cpu, delay, *threads()])

    def write(self, line: list[Any]) -> None:
        """Append a line; a full disk ends the journal, not the training."""
        if self.lines is None:
            return
        try:
            os.write(self.lines, json.dumps(line, ensure_ascii=False).encode(errors="replace") + b"\n")
        except OSError as error:
            print(f"ocrlab: the loader's journal ends, its file cannot be written: {error}", file=sys.stderr)
            self.close()

    def close(self) -> None:
        """End the journal; nothing is written any more."""
        lines, self.lines = self.lines, None
        for descriptor in (lines, self.schedstat):
            if descriptor is not None:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self.schedstat = None


@dataclass
class Sample:
    """One sample that was loaded: when, for how long and on a core (s), its index and name; `of` together."""

    worker: int
    began: float
    seconds: float
    cpu: float
    index: str
    name: str
    of: int = 1


@dataclass
class Look:
    """A process at one moment: memory in bytes (pss and private 0 where not asked), cumulative seconds, threads."""

    time: float
    memory: Memory
    thread_cpu: float
    process_cpu: float
    delay: float  # runnable, but without a core
    torch_threads: int
    cv2_threads: int


@dataclass
class Log:
    """What one process that loads has logged; `now` is the sample it was on last."""

    pid: int
    worker: int = -1
    began: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    count: int = 0
    seconds: float = 0.0  # in samples
    cpu: float = 0.0
    batches: int = 0
    collating: float = 0.0  # seconds
    now: str = ""
    last: float = 0.0  # when it last logged something
    failed: str = ""  # the sample that could not be loaded
    marks: list[str] = field(default_factory=list)  # what the first items of its stream hold, as digests


def read_logs(folder: Path) -> list[Log]:
    """Return the logs of all processes that left one in a folder, by worker and start; a torn line is left out."""
    logs = [_log(path) for path in folder.glob("*.jsonl")]
    for log in logs:
        beat = heartbeat.read(folder / str(log.pid))
        if beat is not None:
            log.now = str(beat["sample"]) if beat["phase"] else ""
            log.last = max(log.last, float(beat["time"]))
    return sorted(logs, key=lambda log: (log.worker, log.began))


def _log(path: Path) -> Log:
    log = Log(int(path.stem))
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return log
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, IndexError):
            _take(log, json.loads(line))
    return log


def _take(log: Log, line: list[Any]) -> None:
    kind, *rest = line
    if kind == "begin":
        log.worker, log.began = int(rest[0]), float(rest[2])
        log.last = log.began
    elif kind in ("sample", "samples"):
        figures = rest if kind == "sample" else rest[0][1:]
        log.samples.append(Sample(log.worker, *figures))
        seconds, cpu, count = (figures[1], figures[2], figures[5]) if kind == "sample" else rest[1:]
        log.seconds, log.cpu, log.count = log.seconds + seconds, log.cpu + cpu, log.count + count
        log.last = max(log.last, figures[0] + figures[1])
    elif kind == "failed":
        log.failed = str(rest[1])
    elif kind == "mark":
        log.marks.append(str(rest[0]))
    elif kind == "collate":
        log.batches, log.collating = log.batches + 1, log.collating + rest[0]
    elif kind == "look":
        log.looks.append(Look(rest[0], Memory(*rest[1:4]), *rest[4:]))


def shared_memory(pid: int | str = "self") -> Memory | None:
    """Return the memory of a process with what is shared counted by its share (proc(5), smaps_rollup)."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            parts = [line.split() for line in file.read().splitlines()[1:]]
    except OSError:
        return None
    size = {part[0]: 1024 * int(part[1]) for part in parts if len(part) > 1 and part[1].isdigit()}
    private = size.get(b"Private_Clean:", 0) + size.get(b"Private_Dirty:", 0)
    return Memory(size.get(b"Rss:", 0), size.get(b"Pss:", 0), private)


def threads() -> tuple[int, int]:
    """Return how many threads torch and OpenCV use in this process for one operation; 0 where they are not loaded."""
    torch, cv2 = sys.modules.get("torch"), sys.modules.get("cv2")
    with contextlib.suppress(Exception):  # half imported, or somebody's own module of that name
        return torch.get_num_threads() if torch else 0, cv2.getNumThreads() if cv2 else 0
    return 0, 0


def open_schedstat() -> int | None:
    try:
        return os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def runqueue_seconds(descriptor: int | None) -> float:
    """Return the seconds that a thread was runnable without a core (proc(5), schedstat), 0 where unknown."""
    if descriptor is None:
        return 0.0
    try:
        return int(os.pread(descriptor, 80, 0).split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


@dataclass
class LockStats:
    """Moments at which the system call of each worker was read, and at which some or all of them waited for a lock."""

    moments: int = 0
    some: int = 0
    all: int = 0

    def add(self, calls: list[str]) -> None:
        """Add a moment: of each worker the system call that it waits in, RUNNING where it has or wants a core.

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
        """Tell whether the workers wait for a lock that one of them holds; their own threads do not count."""
        return self.moments >= MOMENTS and self.some >= SOME * self.moments and self.all <= ALL * self.moments


def current_syscall(pid: int) -> str:
    """Return the number of the system call in which the main thread of a process waits; "" where it cannot be read."""
    try:
        with open(f"/proc/{pid}/syscall", encoding="ascii") as file:
            return file.read().split()[0] if FUTEX else ""
    except (OSError, ValueError, IndexError):
        return ""
