"""What each process that loads did, in a file of its own: a line for each sample, and the sample it is on now.

They are files and not queues, so that no worker waits for a reader, and a worker that is killed leaves what it wrote.
Times are those of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ocrlab.debug.instruments.memory import host_memory
from ocrlab.hardware import process_memory
from ocrlab.run_folder import heartbeat

SINGLE = 20_000  # samples that have a line each; from then on GROUP of them share one, which names the slowest
GROUP = 64
COLLATE = "collate_fn"  # in the place of a sample that failed: making a batch of them did
EVERY = 0.25  # seconds between two readings of memory and processor
PSS_SHARE = 0.005  # of the time that may go into reading the shared part of memory, which the kernel has to add up


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


def seconds_without_core() -> float:
    """Return how long this thread has been runnable without a core (proc(5), schedstat), 0 where that is unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/thread-self/schedstat", "rb") as file:
        return int(file.read().split()[1]) / 1e9
    return 0.0


class WorkerLog:
    """The log of this process; an error switches it off and is printed once. Raises OSError where there is no room."""

    def __init__(self, folder: Path, worker: int) -> None:
        self.folder, self.worker, self.pid = folder, worker, os.getpid()
        self.now = heartbeat.Writer(folder / str(self.pid))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self.lines: int | None = os.open(folder / f"{self.pid}.jsonl", flags, 0o600)
        self.count, self.last_look, self.next_full = 0, 0.0, 0.0
        self.own_seconds = 0.0  # seconds that the timing itself took
        self.group: list[Any] = []  # samples that wait for a line
        self.write(["begin", worker, time.monotonic()])
        self.look()

    def begin(self, index: Any) -> None:
        """Write which sample is being loaded."""
        self.now.beat(phase="load", sample=str(index)[:200])

    def end(self, index: Any, name: str, began: float, seconds: float, cpu: float, of: int = 1) -> None:
        """Write down a sample that was loaded, or `of` samples that were loaded together."""
        self.count += of
        self.now.beat(step=self.count, phase="")
        self.group.append([round(began, 6), round(seconds, 7), round(cpu, 7), str(index)[:80], name, of])
        if self.count <= SINGLE or len(self.group) >= GROUP:
            self.flush()
        if began + seconds - self.last_look > EVERY:
            self.look()

    def flush(self) -> None:
        """Write the samples that wait in one line: the slowest, and the seconds, CPU seconds and number of all."""
        if self.group:
            sums = [sum(sample[column] for sample in self.group) for column in (1, 2, 5)]
            self.write(["samples", max(self.group, key=lambda sample: float(sample[1])), *sums])
            self.group = []

    def look(self) -> None:
        """Write down memory, processor time and threads; close where the one who reads has gone."""
        self.last_look = now = time.monotonic()
        if not self.folder.is_dir():
            return self.close()
        memory = [host_memory.resident(), 0]
        if now >= self.next_full:
            use = process_memory.of_process(self.pid)
            if use is not None and use["private"] is not None:
                memory = [use["rss"], use["private"]]
            self.next_full = now + max(1.0, (time.monotonic() - now) / PSS_SHARE)
        self.write(["look", now, *memory, seconds_without_core(), _threads()])

    def write(self, line: list[Any]) -> None:
        """Append a line; a full disk ends the log, not the training."""
        if self.lines is None:
            return
        try:
            os.write(self.lines, json.dumps(line, ensure_ascii=False).encode(errors="replace") + b"\n")
        except OSError as error:
            print(f"ocrlab: the log of a loader ends, its file cannot be written: {error}", file=sys.stderr)
            self.close()

    def close(self) -> None:
        """End the log; nothing is written any more."""
        lines, self.lines = self.lines, None
        if lines is not None:
            with contextlib.suppress(OSError):
                os.close(lines)


def _threads() -> int:
    """Return how many threads torch or OpenCV, whichever uses more, has in this process for one operation."""
    counts = [1]
    with contextlib.suppress(Exception):  # half imported, or another module of that name
        for name, function in (("torch", "get_num_threads"), ("cv2", "getNumThreads")):
            counts += [getattr(sys.modules[name], function)()] if name in sys.modules else []
    return max(counts)


@dataclass
class Sample:
    """One sample that was loaded: when, for how long and on a core (s), its index and name; `of` together."""

    worker: int
    began: float
    all_seconds: float
    cpu: float
    index: str
    name: str
    of: int = 1

    @property
    def seconds(self) -> float:
        """Seconds of one sample."""
        return self.all_seconds / self.of


@dataclass
class Look:
    """A process at one moment: memory in bytes (private 0 where not read), seconds without a core, threads."""

    time: float
    rss: int
    private: int = 0
    delay: float = 0.0
    threads: int = 1


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

    @property
    def threads(self) -> int:
        """The most threads that it used for one operation."""
        return max((look.threads for look in self.looks), default=1)

    @property
    def busy(self) -> float | None:
        """The share of its life in samples and batches, 0 to 1."""
        life = max(self.last - self.began, 1e-9)
        return min(1.0, (self.seconds + self.collating) / life) if self.count else None

    @property
    def without_core(self) -> float | None:
        """The share of its life in which it could have run and had no core."""
        life = self.looks[-1].time - self.looks[0].time if self.looks else 0.0
        return (self.looks[-1].delay - self.looks[0].delay) / life if life else None

    def add(self, kind: str, *figures: Any) -> None:
        """Take a line as `WorkerLog` writes it; raises ValueError, TypeError or IndexError for a torn one."""
        match kind, figures:
            case "begin", (worker, began):
                self.worker, self.began, self.last = int(worker), float(began), float(began)
            case "samples", (slowest, seconds, cpu, count):
                self.samples.append(Sample(self.worker, *slowest))
                self.seconds, self.cpu, self.count = self.seconds + seconds, self.cpu + cpu, self.count + count
                self.last = max(self.last, slowest[0] + slowest[1])
            case "look", _:
                self.looks.append(Look(*figures))
            case "mark", (mark,):
                self.marks.append(str(mark))
            case "collate", (seconds,):
                self.batches, self.collating = self.batches + 1, self.collating + seconds
            case "failed", (sample,):
                self.failed = str(sample)


def read_logs(folder: Path) -> list[Log]:
    """Return the logs of all processes that left one in a folder, by worker and start; a torn line is left out."""
    logs = []
    for path in folder.glob("*.jsonl"):
        log = Log(int(path.stem))
        with contextlib.suppress(OSError):
            for line in path.read_bytes().splitlines():
                with contextlib.suppress(ValueError, TypeError, IndexError):
                    log.add(*json.loads(line))
        beat = heartbeat.read(folder / path.stem)
        if beat is not None:
            log.now = str(beat["sample"]) if beat["phase"] else ""
            log.last = max(log.last, float(beat["time"]))
        logs.append(log)
    return sorted(logs, key=lambda log: (log.worker, log.began))
