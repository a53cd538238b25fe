"""Find the samples that make a program fail, by short runs with some of the samples and everything else as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ocrlab.debug.bisect.bisect_job import FAILED, BisectJob, LimitReached, perform_run, read_ledger
from ocrlab.debug.bisect.search import FlakyFailure, Search, find_together, union

MOST_GROUPS = 4  # groups of culprits to look for
CONFIRMED = 5  # failing runs of a list of which no part fails, before it counts as one that needs several samples
ALONE = 2  # more runs of each of a few samples that seem to fail only together
CERTAIN = 0.9  # rate above which a failure counts as one that always happens

Report = Callable[[dict[str, Any]], None]


@dataclass
class SampleCulprits:
    """The groups of samples, by number, that fail without all others, and how the search ended.

    `ending` is found, every (others tried alone fail too), many (it still fails without them), whole (no part of them
    fails), number (as many others fail too) or spent (no runs left). `company`: the culprits need any others with them.
    """

    count: int
    groups: list[list[int]] = field(default_factory=list)
    ending: str = "found"
    company: bool = False
    tries: int = 1  # runs that a part had to pass
    rate: float | None = None  # how often it fails with a culprit, where that is not always


def find_culprits(job: BisectJob, count: int, rate: float, report: Report, hint: Sequence[int] = ()) -> SampleCulprits:
    """Return which samples fail without all others; everything else is as it was.

    The samples of `hint` are tried first. When the runs or the time are spent, the smallest part that is known to fail
    is the last group.
    """
    old, everything = read_ledger(job), (1 << len(job.factors)) - 1

    def perform(items: int) -> bool | None:
        row = perform_run(job, everything, old, numbers(items))
        report(row)
        return FAILED[row["ended"]]

    search = Search(count, perform, job.limits.error, rate if rate < CERTAIN else None)
    search.runs.append((search.whole, True))  # as it was
    culprits = SampleCulprits(count)
    while True:
        with contextlib.suppress(FlakyFailure):
            culprits.groups = []
            try:
                _find_groups(search, culprits, union(1 << index for index in hint))
            except LimitReached:
                named = union(1 << index for group in culprits.groups for index in group)
                parts = [run for run in search.ended(True) if not run & named and run != search.whole]
                smallest = min(parts, key=int.bit_count, default=0)
                culprits.groups += [numbers(smallest & ~search.cleared() or smallest)] if smallest else []
                culprits.ending = "spent"
            culprits.tries, culprits.rate = search.tries, search.failure_rate if search.is_flaky else None
            return culprits


def _find_groups(search: Search, culprits: SampleCulprits, hint: int) -> None:
    """Look for one group after the other, as long as the rest fails without them."""
    left = search.whole
    if 0 < hint.bit_count() < search.count:
        search.fails(hint)
    while True:
        group = search.find_smallest(left, CONFIRMED)
        others = 0 if culprits.groups else _find_as_many(search, left, group)
        if others:
            culprits.groups, culprits.ending = [numbers(group), numbers(others)], "number"
            return
        if 1 < group.bit_count() < search.count:
            few = search.in_order(group) if group.bit_count() <= MOST_GROUPS else []
            alone = next((item for item in few if any(search.run(item) for _ in range(ALONE))), 0)  # passed by chance
            group = alone or _without_company(search, culprits, left, group)
        culprits.groups.append(numbers(group))
        if group == search.whole:
            culprits.ending = "whole"
            return
        left &= ~group
        if not (left and search.fails(left)):
            return
        if len(culprits.groups) == 1 and group.bit_count() == 1 and left.bit_count() > 1:
            items = search.in_order(left)
            pair = [items[(len(items) - 1) // 3], items[-1 - (len(items) - 1) // 3]]
            if all(map(search.fails, pair)):  # a sign that all do
                culprits.groups += [numbers(other) for other in pair]
                culprits.ending = "every"
                return
        if len(culprits.groups) == MOST_GROUPS:
            culprits.ending = "many"
            return


def _find_as_many(search: Search, left: int, group: int) -> int:
    """Return as many other samples that fail too; none where the samples of the group are to blame.

    A last batch of one, or a scheduler that ends too early, fails by the number of samples. The others are taken from
    parts that passed, so that a run is needed.
    """
    size = group.bit_count()
    if any(run.bit_count() == size for run in search.ended(False)):
        return 0
    passed = union(search.ended(False))
    others = search.in_order(left & passed & ~group)
    if len(others) < size > 2:
        others = search.in_order(left & ~group)
    chosen = union(others[:size])
    if chosen.bit_count() < size:
        return 0
    ends = (search.perform(chosen) for _ in range(search.tries))
    if any(ends):
        return chosen
    search.runs += [(chosen, False)] * search.tries
    return 0


def _without_company(search: Search, culprits: SampleCulprits, left: int, group: int) -> int:
    """Return the culprits of a group that fails only together, where any others may stand for the rest of it.

    That is so where a batch must be full: then no sample fails alone, and without the culprit nothing fails.
    """
    least = find_together(search.in_order(group), lambda out: not search.fails(left & ~out))
    culprits.company = least != group and search.fails(left & ~(group & ~least))
    return least if culprits.company else group


def numbers(items: int) -> list[int]:
    """Return the samples of a set by their numbers."""
    return [index for index in range(items.bit_length()) if items >> index & 1]
