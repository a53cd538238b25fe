"""What a group of processes reads, writes and compiles, from /proc; CPU time alone is never progress."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ocrlab.hardware import system_files
from ocrlab.hardware.processes.process_tree import Process

WRITTEN = 64  # bytes; less is the chatter of threads that wake each other
READ_RATE = 16_384  # bytes a second; threads that watch the machine read less from /proc
COMPILED = 0.05  # CPU seconds of a compiler that is at work
ASIDE = ("tracker", "helper")  # roles that live on while the program hangs


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


def count(family: Sequence[Process]) -> Table:
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


def moved(before: Table, after: Table, seconds: float) -> str:
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
