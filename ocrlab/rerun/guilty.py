"""From guilty data to the pages that fail: short runs that see some of the pages only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ocrlab.rerun import shrink
from ocrlab.rerun.bisect import Hunt, Spent, ledger, made

MOST_TRIES = 10  # of the same pages where it fails now and then


def pages(
    job: Hunt, count: int, rate: float, say: Callable[[dict[str, Any]], None], hint: Sequence[int] = ()
) -> list[list[int]]:
    """Return the groups of pages, by number, each of which fails without all others; everything else is as it was.

    A group of more than one fails only together. Where the runs or the time are spent the smallest pages that are
    known to fail are returned.
    """
    whole = (1 << len(job.factors)) - 1
    tries = 1 if rate > 0.9 else min(MOST_TRIES, math.ceil(math.log(job.limits.error) / math.log(1 - rate)))
    old = ledger(job)
    failing: list[list[int]] = []

    def fails(chosen: list[int]) -> bool:
        for _ in range(tries):
            row = made(job, whole, old, sorted(chosen))
            say(row)
            if row["ended"] == "failed":
                failing.append(sorted(chosen))
                return True
        return False

    groups: list[list[int]] = []
    try:
        for group in shrink.each_alone(range(count), fails, hint):
            groups.append(sorted(group))
            failing.clear()
    except Spent:
        groups += [min(failing, key=len)] if failing else []
    return groups
