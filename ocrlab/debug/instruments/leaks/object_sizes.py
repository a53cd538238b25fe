"""How much memory an object takes, estimated from a few of its items."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

from torch import Tensor

from ocrlab.debug.instruments.memory.storage_tracker import stored_bytes

CONTAINERS = (list, dict, set, deque, tuple, frozenset)
MOST_ITEMS = 64  # of a container whose size is taken


def object_bytes(value: Any, depth: int = 4) -> float:
    """Return the bytes of an object with what it holds, `depth` levels deep."""
    if isinstance(value, Tensor):
        return stored_bytes(value)
    size = getattr(value, "nbytes", None)
    if isinstance(size, int):
        return float(size)
    if type(value).__module__.startswith("PIL.") and hasattr(value, "getbands"):
        return float(value.size[0] * value.size[1] * len(value.getbands()))
    if hasattr(value, "canvas") and hasattr(value.canvas, "get_width_height"):  # the manager of a matplotlib figure
        width, height = value.canvas.get_width_height()
        return float(width * height * 4)
    total = float(sys.getsizeof(value, 0))
    if depth and isinstance(value, CONTAINERS):
        items = list(value.values() if isinstance(value, dict) else value)[:MOST_ITEMS]
        total += mean_bytes(items, depth - 1) * len(value)
    elif depth and hasattr(value, "__dict__") and not isinstance(value, type):
        total += sum(object_bytes(item, depth - 1) for item in list(vars(value).values())[:MOST_ITEMS])
    return total


def mean_bytes(items: list[Any], depth: int = 4) -> float:
    """Return the mean size of some objects in bytes."""
    return sum(object_bytes(item, depth) for item in items) / max(1, len(items))
