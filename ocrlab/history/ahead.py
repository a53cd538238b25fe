"""Files of many run folders that are not in memory yet, asked of the disk before they are read.

A list of runs reads thousands of small files one after the other, and a disk that is asked for one at a time is idle in
between. Asking costs a tenth of a warm reading, so that it is done only where something is not in memory; and a process
of its own does it, as a thread would take the interpreter from the reader at every file.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ocrlab.flight import sentinel
from ocrlab.history import files

FEW = 200  # folders; so many are read before the process is at work
PROBES = 8  # folders that are looked at to know whether the others are in memory
CHILD = "import sys; sys.path.append(sys.argv[1]); from ocrlab.history import ahead; ahead.main()"
PIECE = 16384  # bytes
ALWAYS = ("config.yaml",)
UNFINISHED = ("incident/verdict.json", "incident/log_tail.txt", "metrics.csv")


@contextlib.contextmanager
def asked(folders: Sequence[str]) -> Iterator[None]:
    """Have the kernel read the files of run folders inside the block, in this order, unless it has them."""
    child = None
    if len(folders) >= FEW and any(map(_absent, folders[:: len(folders) // PROBES])):
        with contextlib.suppress(OSError):  # without it the list only takes longer
            child = _begin(folders)
    try:
        yield
    finally:
        if child is not None:
            child.kill()
            child.wait()


def _begin(folders: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start the process that asks, with the folders in a file that lies in memory alone."""
    with open(os.memfd_create("ocrlab folders"), "w+b") as told:
        told.write(b"\0".join(map(os.fsencode, folders)))
        told.seek(0)
        command = [sys.executable, "-I", "-S", "-c", CHILD, str(Path(__file__).parents[2])]
        return subprocess.Popen(command, stdin=told, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> None:
    """Ask for the files of the folders that stdin names."""
    _ask([os.fsdecode(folder) for folder in sys.stdin.buffer.read().split(b"\0")])


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
