"""Files of many run folders that are not in memory yet, asked of the disk before they are read.

A list of runs reads thousands of small files one after the other, and a disk that is asked for one at a time is idle in
between. Asking costs a tenth of a warm reading, so that it is done only where something is not in memory.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence

from ocrlab.flight import sentinel
from ocrlab.history import files

FEW = 200  # folders; so many are read before a thread is at work
PROBES = 8  # folders that are looked at to know whether the others are in memory
THREADS = 2
PIECE = 16384  # bytes
ALWAYS = ("config.yaml",)
UNFINISHED = ("incident/verdict.json", "incident/log_tail.txt", "metrics.csv")


def ask(folders: Sequence[str]) -> None:
    """Have the kernel read the files of run folders in the background, in this order, unless it has them."""
    if len(folders) < FEW or not any(map(_absent, folders[:: len(folders) // PROBES])):
        return
    for start in range(THREADS):
        threading.Thread(target=_ask, args=(folders[start::THREADS],), daemon=True).start()


def _ask(folders: Sequence[str]) -> None:
    for folder in folders:
        word = next((word for word, name in sentinel.SENTINELS.items() if _asked(f"{folder}/{name}")), "")
        for name in ALWAYS if word == "success" else (*ALWAYS, *UNFINISHED):
            _asked(f"{folder}/{name}")


def _asked(path: str) -> bool:
    """Ask for a file; tells whether it is there."""
    with contextlib.suppress(OSError):  # a pipe, a link, somebody else's: who reads it says so
        descriptor = os.open(path, files.FLAGS)
        try:
            size = os.fstat(descriptor).st_size
            for start in {0, max(0, size - PIECE)}:  # of a long one the ends
                os.posix_fadvise(descriptor, start, PIECE, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)
        return True
    return False


def _absent(folder: str) -> bool:
    """Tell whether the sentinel of a run folder would have to be read from the disk now."""
    for name in sentinel.SENTINELS.values():
        with contextlib.suppress(OSError):
            descriptor = os.open(f"{folder}/{name}", files.FLAGS)
            try:
                os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
            except BlockingIOError:
                return True
            finally:
                os.close(descriptor)
    return False
