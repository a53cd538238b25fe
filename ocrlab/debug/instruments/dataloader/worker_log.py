"""What each process that loads did, in a file of its own: a line for each sample, and the sample it is on now.

They are files and not queues, so that no worker waits for a reader, and a worker that is killed leaves what it wrote.
Times are those of CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
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


class RunQueue:
    """How long the thread that opened this was runnable without a core (proc(5), schedstat)."""

    def __init__(self) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):
            path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def seconds(self) -> float:
        """Return the seconds without a core so far, 0 where they are unknown."""
        try:
            return int(os.pread(self._file, 80, 0).split()[1]) / 1e9 if self._file is not None else 0.0
        except (OSError, ValueError, IndexError):
            return 0.0

    def close(self) -> None:
        """Close the file; from then on there are no figures."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                os.close(file)


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
        self.run_queue = RunQueue()
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
        memory = [host_memory.resident(), 0, 0]
        if now >= self.next_full:
            use = process_memory.of_process(self.pid)
            if use is not None and use["private"] is not None:
                memory = [use["rss"], use["pss"] or 0, use["private"]]
            self.next_full = now + max(1.0, (time.monotonic() - now) / PSS_SHARE)
        self.write(["look", now, *memory, self.run_queue.seconds(), *threads()])

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
        self.run_queue.close()


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
    """A process at one moment: memory in bytes (pss and private 0 where not read), seconds without a core, threads."""

    time: float
    rss: int
    pss: int = 0
    private: int = 0
    delay: float = 0.0
    torch_threads: int = 1
    cv2_threads: int = 0


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

    def add(self, kind: str, *figures: Any) -> None:
        """Take a line as `WorkerLog` writes it; raises ValueError, TypeError or IndexError for a torn one."""
        if kind == "begin":
            self.worker, self.began = int(figures[0]), float(figures[1])
            self.last = self.began
        elif kind == "samples":
            slowest, seconds, cpu, count = figures
            self.samples.append(Sample(self.worker, *slowest))
            self.seconds, self.cpu, self.count = self.seconds + seconds, self.cpu + cpu, self.count + count
            self.last = max(self.last, slowest[0] + slowest[1])
        elif kind == "look":
            self.looks.append(Look(*figures))
        elif kind == "mark":
            self.marks.append(str(figures[0]))
        elif kind == "collate":
            self.batches, self.collating = self.batches + 1, self.collating + figures[0]
        elif kind == "failed":
            self.failed = str(figures[0])


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


def threads() -> tuple[int, int]:
    """Return how many threads torch and OpenCV use in this process for one operation; 0 where they are not loaded."""
    torch, cv2 = sys.modules.get("torch"), sys.modules.get("cv2")
    with contextlib.suppress(Exception):  # half imported, or another module of that name
        return torch.get_num_threads() if torch else 0, cv2.getNumThreads() if cv2 else 0
    return 0, 0
