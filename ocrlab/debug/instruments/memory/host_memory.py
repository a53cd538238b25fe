"""What this process holds, in microseconds: resident, private, in use by malloc. Linux; 0 where it is unknown."""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Callable
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
HIGH = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return _statm()[0]


def anonymous_memory() -> int:
    """Return the resident memory of this process that no file and no shared memory stands for, in bytes."""
    whole, shared = _statm()
    return whole - shared


def high_water() -> int:
    """Return the most resident memory that this process ever had, in bytes."""
    try:
        match = HIGH.search(Path("/proc/self/status").read_text(encoding="ascii", errors="replace"))
    except OSError:
        return 0
    return int(match[1]) * 1024 if match else 0


def malloc_in_use() -> int:
    """Return the bytes that malloc has allocated, without its own cache; 0 where it is not glibc's."""
    return _allocated()()


@functools.cache
def _allocated() -> Callable[[], int]:
    """Return a function that reads malloc's figures (mallinfo2 of glibc 2.33 and later)."""
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return lambda: 0
    ask.restype = _Info

    def read() -> int:
        info = ask()
        return int(info.uordblks + info.hblkhd)

    return read


class _Info(ctypes.Structure):
    """struct mallinfo2; uordblks is what was given out of the heaps, hblkhd what was mapped for one caller."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def _statm() -> tuple[int, int]:
    try:
        with open("/proc/self/statm", "rb") as file:
            fields = file.read().split()
        return int(fields[1]) * PAGE, int(fields[2]) * PAGE
    except (OSError, IndexError, ValueError):
        return 0, 0
