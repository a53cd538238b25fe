"""Batches as they were, in `flight/batches`: for data that cannot be made again from its indices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch


class Raw:
    """The last batches of one process, each in a file of its own; at most `most`."""

    def __init__(self, folder: Path, rank: int, most: int) -> None:
        self.folder, self.rank, self.most = folder / "batches", rank, most
        self.folder.mkdir(mode=0o700, exist_ok=True)
        for old in self.folder.glob(f"{rank}-*.pt"):
            old.unlink()
        self.count = 0
        self.first = 0

    def keep(self, batch: Any) -> str:
        """Write a batch whole or not at all, and return its name; raises OSError."""
        name = f"{self.rank}-{self.count}.pt"
        part = self.folder / f".{name}.tmp"
        try:
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
                torch.save(batch, file)
            part.replace(self.folder / name)
        finally:
            part.unlink(missing_ok=True)
        self.count += 1
        self.forget(self.count - self.most)
        return name

    def forget(self, before: int) -> None:
        """Drop the batches before a number; those since the older snapshot stay."""
        while self.first < before:
            (self.folder / f"{self.rank}-{self.first}.pt").unlink(missing_ok=True)
            self.first += 1


def read(folder: Path, name: str) -> Any:
    """Return a batch that was kept; raises OSError.

    It is of the user's own types, so that unpickling it runs his code. That is done only in a replay, which has
    started his program already.
    """
    path = folder / "batches" / Path(name).name
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception:
        return torch.load(path, map_location="cpu", weights_only=False)
