"""Decoded images, kept in memory or on disk.

An entry is found by what made it: the content of the image file, and the loader with its bound options. So a changed
file, or another `exif`, is another entry. On disk it is one file: a NumPy array (.npy, format 1.0) and its CRC-32.
It is written under a temporary name and renamed, so that several worker processes can share a folder without locks.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ocrlab.data.annotations import PageError
from ocrlab.data.image_io import read_file
from ocrlab.data.shards.tar_member import Member
from ocrlab.errors import ConfigError, DataError

Image = NDArray[np.uint8]
SUFFIX = ".npy+crc"
TEMPORARY = ".npy+crc.tmp"
ABANDONED = 3600  # seconds after which a temporary file has no writer any more


class Cache:
    """Decoded images by content; `mode` is none, memory or disk, and `limit_gb` bounds it in 10^9 bytes.

    Memory belongs to one process: each DataLoader worker has its own, so share the limit between them, and keep the
    workers (`persistent_workers`), or all is forgotten after each epoch. A disk folder is shared by all processes and
    runs. What this object has seen in use is never removed to make room, since a data set larger than its cache would
    then lose every page just before its turn; older entries go, least recently used first. Can be pickled.
    """

    def __init__(
        self,
        mode: Literal["none", "memory", "disk"] = "memory",
        folder: Path | str | None = None,
        limit_gb: float = 4.0,
    ) -> None:
        if mode not in ("none", "memory", "disk"):
            raise ConfigError("Unknown cache", got=repr(mode), need="none, memory or disk")
        self.mode, self.limit = mode, int(limit_gb * 1e9)
        cache = os.environ.get("XDG_CACHE_HOME") or (Path.home() / ".cache" if mode == "disk" and not folder else "")
        self.folder = Path(folder) if folder else Path(cache) / "ocrlab" / "images"  # a user may have no home
        self.started = time.time_ns()
        self._images: dict[str, Image] = {}
        self._room = self.limit if mode == "memory" else 0  # bytes that may be added before looking around again
        self._full = False
        if mode == "disk":
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                do = "Name another folder, or set runtime.cache=memory"
                raise DataError(f"Cache folder {self.folder} cannot be made", got=error.strerror, do=do) from error

    def __getstate__(self) -> dict[str, Any]:
        # A spawned worker starts empty, instead of being sent gigabytes.
        return {**self.__dict__, "_images": {}, "_room": self.limit if self.mode == "memory" else 0}

    def get(self, path: Path | Member | str, loader: Callable[[Any], Image]) -> Image:
        """Return `loader(path)`, from the cache if it is there; the array is read-only.

        Options go into the loader with functools.partial. Raises what `loader` raises, and TypeError for a lambda or a
        local function in disk mode: its options cannot be seen, and another run would be given the wrong image.
        """
        path = path if isinstance(path, Member) else Path(path)
        if self.mode == "none":
            return _frozen(loader(path))
        loader_id = _identity(loader, lasting=self.mode == "disk")
        key = _key(path, loader_id)
        cached = self._find(key) if key else None
        if cached is not None:
            return cached
        image = _frozen(loader(path))
        if key and _key(path, loader_id) == key:  # else the file was written to while it was read
            self._keep(key, image)
        return image

    def _find(self, key: str) -> Image | None:
        if self.mode == "memory":
            return self._images.get(key)
        file = self.folder / (key + SUFFIX)
        try:
            image = _unpack(file.read_bytes())
        except OSError:
            return None
        now = time.time_ns()
        with contextlib.suppress(OSError):  # removed in the meantime, or of another user
            os.utime(file, ns=(now, now))  # by hand: most file systems do not record reading
        return image

    def _keep(self, key: str, image: Image) -> None:
        if self.mode == "memory":
            if image.nbytes <= self._room:
                self._images[key] = image
                self._room -= image.nbytes
            return
        if self._full:
            return
        data = _pack(image)
        try:
            if len(data) > self._room:
                self._room = self._make_room(len(data))
                self._full = len(data) > self._room
            if not self._full:
                _write(self.folder / (key + SUFFIX), data)
                self._room -= len(data)
        except OSError as error:
            self._full = True  # a cache is a convenience: training goes on without it
            warnings.warn(f"Image cache {self.folder} is not written any more: {error}", RuntimeWarning, stacklevel=3)

    def _make_room(self, need: int) -> int:
        """Remove what this run has not used, oldest first, until `need` bytes fit; return how much may be added.

        That is at most 1% of the limit: other processes add entries too, and the folder must be looked at again.
        """
        total, stale = 0, []
        for entry in os.scandir(self.folder):
            with contextlib.suppress(FileNotFoundError):  # removed by another process in the meantime
                stat = entry.stat()
                if entry.name.endswith(SUFFIX):
                    total += stat.st_size
                    if stat.st_mtime_ns < self.started:
                        stale.append((stat.st_mtime_ns, stat.st_size, entry.path))
                elif entry.name.endswith(TEMPORARY) and stat.st_mtime < time.time() - ABANDONED:
                    os.unlink(entry.path)
        for _, size, file in sorted(stale):
            if total + need <= self.limit:
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file)
            total -= size
        return min(self.limit - total, max(need, self.limit // 100))


def _key(path: Path | Member, loader_id: str) -> str | None:
    """Return the name of an entry, or None if the file cannot be read (the loader words that error)."""
    try:
        digest = hashlib.sha256(read_file(path))
    except PageError:
        return None
    digest.update(loader_id.encode())
    return digest.hexdigest()[:40]


def _identity(loader: Callable[..., Any], lasting: bool) -> str:
    """Name a loader and the options bound to it."""
    if isinstance(loader, partial):
        return f"{_identity(loader.func, lasting)}({loader.args!r}, {sorted(loader.keywords.items())!r})"
    name = f"{getattr(loader, '__module__', '')}.{getattr(loader, '__qualname__', type(loader).__qualname__)}"
    if lasting and ("<lambda>" in name or "<locals>" in name):
        raise TypeError(f"{name} cannot name an entry that outlives this run; use functools.partial of a function")
    return name


def _frozen(image: Image) -> Image:
    image.flags.writeable = False  # in every mode: code that draws on a page fails at once and not with a cache
    return image


def _pack(image: Image) -> bytes:
    file = io.BytesIO()
    np.save(file, np.ascontiguousarray(image), allow_pickle=False)
    data = file.getvalue()
    return data + zlib.crc32(data).to_bytes(4, "little")


def _unpack(data: bytes) -> Image | None:
    """Return the array of an entry, without a copy and read-only, or None if the entry is damaged."""
    body = memoryview(data)[:-4]
    if not len(body) or zlib.crc32(body).to_bytes(4, "little") != data[-4:]:
        return None
    file = io.BytesIO(data)
    try:
        npy.read_magic(file)
        shape, _, dtype = npy.read_array_header_1_0(file)
        return np.frombuffer(body, dtype, offset=file.tell()).reshape(shape)
    except ValueError:  # not what _pack wrote
        return None


def _write(file: Path, data: bytes) -> None:
    number, name = tempfile.mkstemp(dir=file.parent, suffix=TEMPORARY)
    try:
        with os.fdopen(number, "wb") as temporary:
            temporary.write(data)
        os.replace(name, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
