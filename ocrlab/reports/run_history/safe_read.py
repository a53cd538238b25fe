"""A file of a run folder, which may be a stranger's: never a link, a pipe or a device, and never all of a huge one."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

MOST = 4_000_000  # bytes; a config, a sentinel or a table of metrics that is larger is none of ours
FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # opening a pipe must not wait for its writer


def read(path: str, most: int = MOST) -> bytes:
    """Return the content of a regular file; raises OSError, also for a link, a pipe and a file above `most` bytes."""
    with _open(path) as (descriptor, size):
        if size > most:
            raise OSError(f"{path} is too large: {size} bytes, at most {most}")
        return os.read(descriptor, size + 1)  # not `most`: memory for it would be allocated before it is read


def ends(path: str, most: int) -> tuple[bytes, bytes]:
    """Return the first and the last `most` bytes of a regular file, all of a smaller one twice; raises OSError."""
    with _open(path) as (descriptor, size):
        return os.pread(descriptor, min(most, size), 0), os.pread(descriptor, min(most, size), max(0, size - most))


@contextlib.contextmanager
def _open(path: str) -> Iterator[tuple[int, int]]:
    """Open a regular file and give its descriptor and its size in bytes."""
    descriptor = os.open(path, FLAGS)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is no regular file")
        yield descriptor, status.st_size
    finally:
        os.close(descriptor)
