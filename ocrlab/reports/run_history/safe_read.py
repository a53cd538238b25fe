"""A file of a run folder, which may be a stranger's: never a link, a pipe or a device, and never all of a huge one."""

from __future__ import annotations

import os
import stat

MOST = 4_000_000  # bytes; a config, a sentinel or a table of metrics that is larger is none of ours
FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # opening a pipe must not wait for its writer


def read(path: str, most: int = MOST) -> bytes:
    """Return the content of a regular file; raises OSError, also for a link, a pipe and a file above `most` bytes."""
    descriptor = os.open(path, FLAGS)
    try:
        size = _size(descriptor, path)
        if size > most:
            raise OSError(f"{path} is too large: {size} bytes, at most {most}")
        return os.read(descriptor, size + 1)  # not `most`: the room for it would be made before it is read
    finally:
        os.close(descriptor)


def tail(path: str, most: int) -> bytes:
    """Return the last `most` bytes of a regular file, all of a smaller one; raises OSError."""
    descriptor = os.open(path, FLAGS)
    try:
        size = _size(descriptor, path)
        return os.pread(descriptor, min(most, size), max(0, size - most))
    finally:
        os.close(descriptor)


def ends(path: str, most: int) -> tuple[bytes, bytes]:
    """Return the first and the last `most` bytes of a regular file, all of a smaller one twice; raises OSError."""
    descriptor = os.open(path, FLAGS)
    try:
        size = _size(descriptor, path)
        return os.pread(descriptor, min(most, size), 0), os.pread(descriptor, min(most, size), max(0, size - most))
    finally:
        os.close(descriptor)


def _size(descriptor: int, path: str) -> int:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"{path} is no regular file")
    return status.st_size
