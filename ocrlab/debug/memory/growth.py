"""Whether memory grows, how fast and how surely, and how long it lasts until a limit is reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ocrlab.debug.instruments.leaks import growth_slope

SURE = 0.95
LEAST_BYTES, LEAST_SHARE = 8 << 20, 0.02  # of growth in all: less is how memory breathes
POINTS = 6


@dataclass(frozen=True)
class Growth:
    """Bytes for each unit (step or second), `low` to `high` with 95 %, the confidence that it grows at all (0..1).

    `grows` is false for what levels off, for too few points and for too little; `left` is how many units remain until
    the limit, None where it does not grow or has no limit.
    """

    rate: float
    low: float
    high: float
    confidence: float
    points: int
    rise: float
    grows: bool
    left: float | None = None


def growth(at: Sequence[float], values: Sequence[float], limit: float | None = None) -> Growth:
    """Return how values (bytes) grow over `at` (steps or seconds), of which there are as many."""
    slope = growth_slope.slope(at, values)
    rise = float(values[-1] - min(values)) if values else 0.0
    enough = rise >= max(LEAST_BYTES, LEAST_SHARE * max(values, default=0.0))
    grows = bool(
        slope.points >= POINTS and slope.confidence >= SURE and slope.low > 0 and enough
        and growth_slope.still_grows(at, values)
    )  # fmt: skip
    left = max(0.0, limit - values[-1]) / slope.value if grows and limit is not None else None
    return Growth(slope.value, slope.low, slope.high, slope.confidence, slope.points, rise, grows, left)
