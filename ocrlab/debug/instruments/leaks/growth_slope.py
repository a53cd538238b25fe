"""How fast memory grows, and how sure that is: a slope that a few jumps cannot turn (Theil 1950, Sen 1968).

Without NumPy, as what watches asks too: the most points are 4,560 pairs, 3 ms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median

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

    def of(self, steps: int) -> Slope:
        """Return the growth for each `steps` steps."""
        return replace(self, value=self.value * steps, low=self.low * steps, high=self.high * steps)


def slope(steps: Sequence[float], values: Sequence[float]) -> Slope:
    """Return the slope of values over steps: the median of all pairs, its interval, and Kendall's test for a trend."""
    n = min(len(steps), MOST)
    if n < 4:
        return Slope(points=n)
    picked = [i * (len(steps) - 1) // (n - 1) for i in range(n)]
    points = [(float(steps[i]), float(values[i])) for i in picked]
    between = [(x1 - x0, y1 - y0) for (x0, y0), (x1, y1) in combinations(points, 2)]
    pairs = sorted(rise / run for run, rise in between if run > 0)
    if not pairs:
        return Slope(points=n)
    spread = math.sqrt(n * (n - 1) * (2 * n + 5) / 18)  # of Kendall's score where there is no trend
    score = sum((rise > 0) - (rise < 0) for _, rise in between)
    half = SURE * spread / 2
    low, high = (int(min(max(len(pairs) / 2 + side, 0), len(pairs) - 1)) for side in (-half, half))
    confidence = 0.5 * (1 + math.erf((score - math.copysign(1, score)) / spread / math.sqrt(2))) if score else 0.5
    return Slope(float(median(pairs)), float(pairs[low]), float(pairs[high]), confidence, n)


def still_grows(steps: Sequence[float], values: Sequence[float]) -> bool:
    """Return whether the later half grows at least half as fast as the whole: what levels off is a cache, no leak."""
    middle = len(steps) // 2
    whole, later = slope(steps, values), slope(steps[middle:], values[middle:])
    return whole.value > 0 and later.value >= 0.5 * whole.value
