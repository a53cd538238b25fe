"""Random choices that come out the same on every machine and every version of Python and NumPy.

Python promises a stable stream only for `Random.random()`, and NumPy promises none for its Generator, so everything
that decides about an annotation is built on that one method.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")


class Dice:
    """A seeded source of choices; different `key` numbers give independent streams."""

    def __init__(self, *key: int) -> None:
        digest = hashlib.sha256(repr(key).encode()).digest()
        self._source = random.Random(int.from_bytes(digest[:8], "big"))

    def between(self, low: float, high: float) -> float:
        """Return a number in [low, high)."""
        return low + (high - low) * self._source.random()

    def whole(self, low: int, high: int) -> int:
        """Return a whole number in low..high, both included."""
        return low + int((high - low + 1) * self._source.random())

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self._source.random() < probability

    def pick(self, options: Sequence[T]) -> T:
        """Return one of `options`."""
        return options[self.whole(0, len(options) - 1)]

    def digits(self, pattern: str) -> str:
        """Return `pattern` with each `#` replaced by a digit."""
        return "".join(str(self.whole(0, 9)) if mark == "#" else mark for mark in pattern)

    def noise(self, height: int, width: int) -> NDArray[np.uint8]:
        """Return white noise, (height, width) uint8; used for pixels only, never for an annotation."""
        return np.frombuffer(self._source.randbytes(height * width), np.uint8).reshape(height, width)
