"""A file that may be a stranger's: only a regular one is opened, opening never waits, and never all of a huge one.

What opens a file of the user goes through here; a pipe, a device or a socket under the name of a file is refused by the
OSError that any other unreadable file gives. Standard library only.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TextIO

SMALL = 4_000_000  # bytes; a config, a sentinel or a table of metrics that is larger was not written by ocrlab
RECORD = 200_000_000  # bytes of a notebook or a record that is parsed whole
LINE = 10_000_000  # bytes of a line of JSON lines, or of a list on stdin
LARGEST = 2**31 - 1  # bytes of any file that is read whole
FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # of a pipe that takes the place of a file after it was looked at
KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}
DESCRIPTORS = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")  # `<(command)` of a shell: opened already


def open_file(path: Path | str, *, links: bool = True, descriptors: bool = False) -> io.BufferedReader:
    """Open a regular file to read its bytes; raises OSError for anything else, without `links` for a link too.

    With `descriptors` the pipe of an open descriptor (/dev/fd/63) is opened as well: its writer is at work.
    """
    if descriptors and str(path).startswith(DESCRIPTORS):
        return open(path, "rb")
    _refuse(os.stat(path, follow_symlinks=links), path)
    descriptor = os.open(path, FLAGS if links else FLAGS | os.O_NOFOLLOW)
    try:
        _refuse(os.fstat(descriptor), path)
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def open_table(path: Path | str) -> TextIO:
    """Open a regular file as the csv module reads it: UTF-8, line ends as they are; raises OSError."""
    return io.TextIOWrapper(open_file(path), encoding="utf-8", errors="replace", newline="")


def read(path: Path | str, most: int = LARGEST, *, links: bool = True) -> bytes:
    """Return the content of a regular file; raises OSError, also for a file above `most` bytes."""
    with open_file(path, links=links) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EOVERFLOW, f"it is too large: {size:,} bytes, at most {most:,}", str(path))
        return file.read(size + 1 if size else -1)  # not `most`, which would be allocated; a file of /proc has size 0


def read_small(path: Path | str) -> bytes:
    """Return the content of a small regular file that is not a link; raises OSError for anything else."""
    return read(path, SMALL, links=False)


def read_text(path: Path | str, most: int = LARGEST) -> str:
    """Return the content of a regular file as UTF-8 with plain line ends; raises OSError as `read` does."""
    text = read(path, most).decode("utf-8", errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def ends(path: Path | str, most: int) -> tuple[bytes, bytes]:
    """Return the first and the last `most` bytes of a regular file that is not a link, all of a smaller one twice."""
    with open_file(path, links=False) as file:
        descriptor, size = file.fileno(), os.fstat(file.fileno()).st_size
        return os.pread(descriptor, min(most, size), 0), os.pread(descriptor, min(most, size), max(0, size - most))


def lines(file: BinaryIO, most: int = LINE) -> Iterator[bytes | None]:
    """Yield the lines of a stream, None in the place of one above `most` bytes, of which no more is in memory."""
    while line := file.readline(most + 1):
        if len(line) <= most:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(most)
        yield None


def leads_out(path: Path | str, *folders: Path | str) -> bool:
    """Return whether a path, with its links followed, is outside of all `folders`."""
    real = Path(os.path.realpath(path))
    return not any(real.is_relative_to(os.path.realpath(folder)) for folder in folders)


def _refuse(status: os.stat_result, path: Path | str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, "it is a link, not a regular file", str(path))
    if not stat.S_ISREG(status.st_mode):
        kind = KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise OSError(errno.EOPNOTSUPP, f"it is {kind}, not a regular file", str(path))
