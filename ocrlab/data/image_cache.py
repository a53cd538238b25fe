"""Decoded images in memory, so that a page is decoded once by each process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocrlab.data.shards.tar_member import Member

Image = NDArray[np.uint8]


class Cache:
    """Decoded images by the name of their file, up to `limit_gb` (10^9 bytes); with 0 it stores nothing.

    It belongs to one process: each DataLoader worker has its own, so share the limit between them, and keep the workers
    (`persistent_workers`), or all is forgotten after each epoch. What is stored is never removed to make room, since a
    data set larger than its cache would then lose every page just before its turn.
    """

    def __init__(self, limit_gb: float) -> None:
        self.limit = int(limit_gb * 1e9)
        self.images: dict[Path | Member, Image] = {}
        self.size = 0  # bytes

    def __getstate__(self) -> dict[str, Any]:
        return {"limit": self.limit, "images": {}, "size": 0}  # a spawned worker is not sent gigabytes

    def get(self, path: Path | Member, load: Callable[[Any], Image]) -> Image:
        """Return `load(path)`, from the cache if it is there; the array is read-only. Raises what `load` raises."""
        image = self.images.get(path)
        if image is None:
            image = load(path)
            image.flags.writeable = False  # also if it is not stored: code that draws on a page fails at once
            if self.size + image.nbytes <= self.limit:
                self.images[path] = image
                self.size += image.nbytes
        return image
