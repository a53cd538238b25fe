"""A small file that another process reads while this one writes it, and after this one has died.

On file systems that keep a block in its place the file is mapped: a store costs nanoseconds, and the kernel holds it
when the process dies. A page of a mapped file that has no room on the disk ends a process by SIGBUS, which nobody can
catch, and copy-on-write and network file systems look for room at each store. There, every change is written by
`pwrite`, whose error is an OSError.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A block that these have allocated is written again where it lies; a file system that is not known may not do so.
# overlay is that of containers, whose upper layer is mostly one of the others.
IN_PLACE = frozenset({"ext2", "ext3", "ext4", "xfs", "tmpfs", "ramfs", "f2fs", "jfs", "overlay"})


class WrittenFile:
    """A file of fixed size with the item access of a mapping, each change of which is written by `pwrite`."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor, self.content = descriptor, bytearray(size)

    def __getitem__(self, at: Any) -> Any:
        return self.content[at]

    def __setitem__(self, at: Any, value: Any) -> None:
        self.content[at] = value
        if isinstance(at, slice):
            os.pwrite(self.descriptor, value, at.start or 0)
        else:
            os.pwrite(self.descriptor, bytes((value,)), at)

    def __len__(self) -> int:
        return len(self.content)

    def close(self) -> None:
        """Close the file; what it says stays. A later change raises OSError."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


SharedFile = mmap.mmap | WrittenFile


@dataclass(frozen=True)
class DoubleBuffer:
    """Two places for one value, and a byte that selects the valid one: a reader never sees half a value."""

    selector: int  # offset of the byte
    first: int  # offset of the first place; the second one follows it
    size: int  # bytes of a place

    def write(self, file: SharedFile, value: bytes) -> None:
        """Write a value into the place that is not valid, then select it."""
        side = 1 - (file[self.selector] & 1)
        at = self.first + side * self.size
        file[at : at + len(value)] = value
        file[self.selector] = side

    def read(self, content: bytes) -> bytes:
        """Return the place that is valid."""
        at = self.first + (content[self.selector] & 1) * self.size
        return content[at : at + self.size]


def create(path: Path | str, size: int) -> SharedFile:
    """Return a new file of `size` zero bytes, mode 0600, under its name only when it is whole.

    Raises OSError, also for a disk that has no room for all of it, and for a path where something else than a file is:
    that is never replaced.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "there is something that is not a regular file", str(path))
    part = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    shared: SharedFile | None = None
    try:
        with contextlib.suppress(OSError):
            os.fchmod(descriptor, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # else the file system cannot reserve
                raise
            zeros, at = bytes(1 << 20), 0
            while at < size:
                at += os.pwrite(descriptor, zeros[: size - at], at)
        in_place = file_system(path.parent) in IN_PLACE
        shared = mmap.mmap(descriptor, size) if in_place else WrittenFile(os.dup(descriptor), size)
        os.replace(part, path)
    except BaseException:
        if shared is not None:
            shared.close()
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    finally:
        os.close(descriptor)
    return shared


def file_system(folder: Path) -> str:
    """Return the type of the file system that a folder lies on, as the kernel calls it; '' where it does not say."""
    try:
        place = os.path.realpath(folder)
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.split() for line in file]
    except OSError:
        return ""
    kind, longest = "", -1
    for words in lines:  # "36 35 98:0 /root /mount/point options - ext4 ..."; the last one of a place is what is seen
        mount = words[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        inside = mount == "/" or place == mount or place.startswith(f"{mount}/")
        if inside and len(mount) >= longest and "-" in words:
            kind, longest = words[words.index("-") + 1], len(mount)
    return kind
