"""What this process holds, in microseconds: resident, private, in use by malloc. Linux; 0 where it is unknown."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from pathlib import Path
from typing import Any

from ocrlab.hardware.system_files import memory_fields

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return _statm()[0]


def anonymous_memory() -> int:
    """Return the resident memory of this process that no file and no shared memory stands for, in bytes."""
    whole, shared = _statm()
    return whole - shared


def high_water() -> int:
    """Return the most resident memory that this process ever had, in bytes."""
    return memory_fields(Path("/proc/self/status")).get("VmHWM", 0)


def malloc_in_use() -> int:
    """Return the bytes that malloc has allocated, without its own cache; 0 where it is not glibc's."""
    ask = _mallinfo()
    info = ask() if ask else None
    return int(info.uordblks + info.hblkhd) if info else 0


@functools.cache
def _mallinfo() -> Any:
    """Return the function with malloc's figures (mallinfo2 of glibc 2.33 and later), None where there is none."""
    with contextlib.suppress(OSError, AttributeError):
        ask = ctypes.CDLL(None).mallinfo2
        ask.restype = _Info
        return ask
    return None


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
