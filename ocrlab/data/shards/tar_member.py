"""A file inside an uncompressed tar: a plain range of bytes, read where it lies, with no handle kept open.

So it can be sent to a worker of any start method, and a million of them cost nothing. The header before the bytes is
read with them: a tar that was written anew since it was indexed is noticed, but for files of exactly the same size.
"""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ocrlab import safe_read

BLOCK = 512  # bytes of a tar header (POSIX.1-1988, ustar)
SIZE = slice(124, 136)  # of the field that holds the member's size


class StaleError(OSError):
    """The bytes of a member are not where the index says."""


@dataclass(frozen=True, slots=True)
class Member:
    """Where a file lies: the tar, the offset of its bytes, how many, and its name; reads like a Path."""

    tar: Path
    at: int
    size: int
    inside: str

    @property
    def name(self) -> str:
        """The last part of its name, as a Path has it."""
        return PurePosixPath(self.inside).name

    @property
    def suffix(self) -> str:
        """The end of its name from the last dot on."""
        return PurePosixPath(self.inside).suffix

    @property
    def stem(self) -> str:
        """The last part of its name without the suffix."""
        return PurePosixPath(self.inside).stem

    def __str__(self) -> str:
        return f"{self.tar}/{self.inside}"

    def read_bytes(self) -> bytes:
        """Return its bytes; raises OSError where the tar cannot be read, is cut off, or is not the one indexed."""
        return self.head(self.size)

    def head(self, size: int) -> bytes:
        """Return its first `size` bytes at most; raises OSError as `read_bytes` does."""
        want = BLOCK + min(size, self.size)
        with safe_read.open_file(self.tar) as file:
            file.seek(self.at - BLOCK)
            data = file.read(want)
        if len(data) < want:
            raise StaleError(0, f"{self.tar} ends before it: it was cut off since its index was made")
        try:
            recorded = tarfile.nti(data[SIZE])  # type: ignore[attr-defined]  # octal, or GNU's base 256
        except tarfile.TarError:
            recorded = -1
        if recorded != self.size:
            raise StaleError(0, f"{self.tar} was rewritten after its index was built; start again")
        return data[BLOCK:]
