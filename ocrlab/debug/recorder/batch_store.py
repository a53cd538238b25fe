"""Raw batches in `flight/batches`, for data that cannot be rebuilt from its indices."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import Tensor

from ocrlab import safe_read
from ocrlab.debug.instruments import cuda_sticky_errors
from ocrlab.errors import DataError
from ocrlab.run_folder import provenance
from ocrlab.run_folder.fail_safe import print_message, report, worker_ended

LIMIT = 2 << 30  # bytes of all batches of all processes of a machine
MOST_PARTS = 10_000  # of a batch that are looked at
PLAIN = (bool, int, float, complex, str, bytes, type(None))
SHARE = 10  # and at most this fraction of the free space


class BatchStore:
    """The last batches of one process, each in a file of its own; at most `most`, and as many bytes as there is room
    for: the oldest go first, the newest always stays.

    After the first failed write none is stored: batches are then known by their origin, as without this.
    """

    def __init__(self, folder: Path, rank: int, most: int, limit: int = LIMIT) -> None:
        self.folder, self.rank, self.most = folder / "batches", rank, most
        self.folder.mkdir(mode=0o700, exist_ok=True)
        for old in (*self.folder.glob(f"{rank}-*.pt"), *self.folder.glob(f".{rank}-*.pt.digest")):
            old.unlink()
        local = os.environ.get("LOCAL_WORLD_SIZE", "1")
        self.limit = limit // max(1, int(local) if local.isdigit() else 1)
        self.lock = threading.Lock()  # snapshots are written in a thread
        self.sizes: dict[int, int] = {}  # bytes by batch
        self.total_bytes = 0
        self.count = 0
        self.first = 0
        self.on, self.is_full = True, False

    def keep(self, batch: Any) -> str:
        """Write a batch completely or not at all, and return its name; '' once writing has failed."""
        if not self.on:
            return ""
        try:
            return self._keep(batch)
        except Exception as error:  # of a disk, or a type that cannot be pickled
            if worker_ended(error) or cuda_sticky_errors.is_cuda_error(error):
                raise
            self.on = False
            first = error.__context__ if isinstance(error.__context__, OSError) else error  # torch's own comes after it
            report(first, "no more raw batches, later ones are known by what they are made of", self.folder.parent)
            return ""

    def _keep(self, batch: Any) -> str:
        name = f"{self.rank}-{self.count}.pt"
        part = self.folder / f".{name}.tmp"
        try:
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
                signed = None if _is_plain(batch) else provenance.SignedFile(file, name)
                torch.save(batch, file if signed is None else cast("IO[bytes]", signed))
                size = file.tell()
            part.replace(self.folder / name)
            if signed is not None:
                signed.sign(self.folder / name)
        finally:
            part.unlink(missing_ok=True)
        with self.lock:
            self.sizes[self.count] = size
            self.total_bytes += size
        self.count += 1
        self.forget(self.count - self.most)
        self._bound()
        return name

    def _bound(self) -> None:
        """Drop the oldest batches while all take more than the limit."""
        room = min(self.limit, (shutil.disk_usage(self.folder).free + self.total_bytes) // SHARE)
        while self.total_bytes > room and self.first < self.count - 1:
            if not self.is_full:
                self.is_full = True
                stored = self.count - 1 - self.first
                print_message(
                    f"raw batches take {room / 1e9:.2g} GB at most here, so that the last {max(1, stored)} are kept"
                )
            self.forget(self.first + 1)

    def forget(self, before: int) -> None:
        """Drop the batches before a number; those since the older snapshot stay, where there is room for them."""
        with self.lock:
            while self.first < before:
                path = self.folder / f"{self.rank}-{self.first}.pt"
                path.unlink(missing_ok=True)
                provenance.digest_file(path).unlink(missing_ok=True)
                self.total_bytes -= self.sizes.pop(self.first, 0)
                self.first += 1


def _is_plain(value: Any) -> bool:
    """Return whether a batch is surely read back without running anybody's code: tensors and values of Python's own.

    Of such a batch no digest is needed, which takes as long as writing it.
    """
    waiting, looked = [value], 0
    while waiting and looked < MOST_PARTS:
        part, looked = waiting.pop(), looked + 1
        kind = type(part)
        if kind in (dict, list, tuple):
            waiting += [*part, *part.values()] if kind is dict else part
        elif kind is Tensor:
            if part.layout != torch.strided or part.is_quantized:
                return False
        elif kind not in PLAIN:
            return False
    return not waiting


def has_batch(folder: Path, name: str) -> bool:
    """Return whether a batch is still stored."""
    return (folder / "batches" / Path(name).name).is_file()


def read_batch(folder: Path, name: str, *, trust: bool = False) -> Any:
    """Return a stored batch; raises DataError where it is gone or must not be read, and OSError.

    A batch of the user's own types is unpickled, which can run any code: only where this user wrote it on this machine,
    or with `trust`.
    """
    path = folder / "batches" / Path(name).name
    try:
        with safe_read.open_file(path) as file:
            return torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise DataError(
            "A recorded batch is missing, and the record does not name its samples",
            got=f"no {path}",
            need="the batches since the snapshot, of which only the last ones are kept",
            do="Record with a smaller snapshot_every, or with more room on the disk",
        ) from None
    except OSError:
        raise
    except Exception:
        if not (trust or provenance.is_own(path)):
            raise DataError(
                "Reading this raw batch could run code, and you did not record it on this machine",
                got=f"{path}, written by somebody else or changed since",
                need="your consent",
                do="--trust reads it: its code can do whatever you can",
            ) from None
        return torch.load(path, map_location="cpu", weights_only=False)
