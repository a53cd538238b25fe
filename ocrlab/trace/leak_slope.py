"""How fast memory grows, and how sure that is: a slope that a few jumps cannot turn (Theil 1950, Sen 1968)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MOST = 96  # points; of more, every second one is left out
SURE = 1.96  # standard deviations of a two-sided 95 % interval


@dataclass(frozen=True)
class Slope:
    """Growth for each step (`low` to `high` with 95 % confidence) and the probability that it grows at all (0..1)."""

    value: float = 0.0
    low: float = 0.0
    high: float = 0.0
    confidence: float = 0.0
    points: int = 0


def slope(steps: Sequence[float], values: Sequence[float]) -> Slope:
    """Return the slope of values over steps: the median of all pairs, its interval, and Kendall's test for a trend."""
    x, y = np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if len(x) > MOST:
        picked = np.linspace(0, len(x) - 1, MOST).astype(int)
        x, y = x[picked], y[picked]
    n = len(x)
    if n < 4:
        return Slope(points=n)
    first, second = np.triu_indices(n, 1)
    run, rise = x[second] - x[first], y[second] - y[first]
    pairs = np.sort(rise[run > 0] / run[run > 0])
    if not len(pairs):
        return Slope(points=n)
    spread = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)  # of Kendall's score where there is no trend
    score = float(np.sign(rise).sum())
    half = SURE * spread / 2
    low, high = (int(np.clip(len(pairs) / 2 + side, 0, len(pairs) - 1)) for side in (-half, half))
    confidence = 0.5 * (1 + math.erf((score - math.copysign(1, score)) / spread / math.sqrt(2))) if score else 0.5
    return Slope(float(np.median(pairs)), float(pairs[low]), float(pairs[high]), confidence, n)


def still_grows(steps: Sequence[float], values: Sequence[float]) -> bool:
    """Tell whether the later half grows at least half as fast as the whole: what levels off is a cache, no leak."""
    middle = len(steps) // 2
    whole, later = slope(steps, values), slope(steps[middle:], values[middle:])
    return whole.value > 0 and later.value >= 0.5 * whole.value
