"""A heartbeat that costs less than a microsecond: one page of a mapped file for each process, read from outside.

The watcher names a folder in the environment variable OCRLAB_HEARTBEAT; without it `beat` does nothing. The page keeps
its last word when the process dies, because the kernel holds it. A reader takes it twice and compares both ends of the
record, so that one that is being written, or that somebody else wrote, is not believed.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from pathlib import Path
from typing import Any

from ocrlab.run_folder import shared_file

FOLDER = "OCRLAB_HEARTBEAT"
MAGIC = b"OCRLABH1"
RECORD = struct.Struct("<8sQdq16s200sQ")  # magic, count, monotonic seconds, step, phase, sample, count again
SIZE = 4096
STOPS = "stop"  # the phase of a program that was asked to stop and does so


class Writer:
    """The heartbeat of this process, in a new file; raises OSError."""

    def __init__(self, path: Path | str) -> None:
        self.page = shared_file.create(path, SIZE)
        self.count = 0
        self.step, self.phase, self.sample = 0, b"", b""

    def beat(self, *, step: int | None = None, phase: str | None = None, sample: str | None = None) -> None:
        """Say that this process goes on, and where it is; what is not given stays as it was."""
        if step is not None:
            self.step = step
        if phase is not None:
            self.phase = phase.encode(errors="replace")[:16]
        if sample is not None:  # a file name may hold any bytes
            self.sample = sample.encode(errors="backslashreplace")[-200:]
        self.count = count = self.count + 1
        self.page[: RECORD.size] = RECORD.pack(
            MAGIC, count, time.monotonic(), self.step, self.phase, self.sample, count
        )


def read(path: Path | str) -> dict[str, Any] | None:
    """Return {"pid", "count", "time" (monotonic seconds), "step", "phase", "sample"}; None for no whole heartbeat."""
    path = Path(path)
    with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
        for _ in range(3):
            first, second = os.pread(file.fileno(), RECORD.size, 0), os.pread(file.fileno(), RECORD.size, 0)
            if first == second and len(first) == RECORD.size:
                magic, count, when, step, phase, sample, again = RECORD.unpack(first)
                if magic != MAGIC or count != again or not count:
                    return None
                phase, sample = (text.rstrip(b"\0").decode(errors="replace") for text in (phase, sample))
                pid = int(path.name) if path.name.isdigit() else None
                return {"pid": pid, "count": count, "time": when, "step": step, "phase": phase, "sample": sample}
    return None


def newest(folder: Path | str) -> dict[str, Any] | None:
    """Return the heartbeat in a folder that was given last, None if there is none."""
    return max(everyone(folder), key=lambda record: float(record["time"]), default=None)


def everyone(folder: Path | str) -> list[dict[str, Any]]:
    """Return the heartbeats of all processes that left one in a folder."""
    with contextlib.suppress(OSError):
        return [record for name in os.listdir(folder) if (record := read(Path(folder, name)))]
    return []


_mine: tuple[int, Writer | None] = (0, None)  # of which process, as a fork must not go on with its parent's


def beat(*, step: int | None = None, phase: str | None = None, sample: str | None = None) -> None:
    """Give the heartbeat of this process, if anybody listens; never raises."""
    global _mine
    pid, writer = _mine
    if pid != os.getpid():
        pid, writer, folder = os.getpid(), None, os.environ.get(FOLDER)
        if folder:
            with contextlib.suppress(OSError, ValueError):
                writer = Writer(Path(folder, str(pid)))
        _mine = (pid, writer)
    if writer is not None:
        try:
            writer.beat(step=step, phase=phase, sample=sample)
        except (OSError, ValueError):  # a disk that is full now, a file that was closed
            _mine = (pid, None)
