"""Find the samples that make a program fail, by short runs with some of the samples (delta debugging: Zeller 2002).

A part that passes is run again as often as the rate of the failure demands, before its samples count as innocent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ocrlab.debug.bisect.bisect_job import BisectJob, LimitReached, perform_run, read_ledger

MOST_TRIES = 10  # runs of the same samples, of a flaky failure
MOST_GROUPS = 4  # groups of culprits to look for
MOST_RETRIES = 3  # times that halves are tried again because the list itself has passed too
AGAIN = 4  # failing runs of a list of which no half fails, before it counts as one that needs both halves
ALONE = 2  # more runs of each of a few samples that seem to fail only together
CERTAIN = 0.9  # rate above which a failure counts as one that always happens

Report = Callable[[dict[str, Any]], None]
Fails = Callable[[list[int]], bool]


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


class CountDecides(Exception):
    """As many other samples fail too; `groups` holds both."""

    def __init__(self, group: Sequence[int], others: Sequence[int]) -> None:
        super().__init__(f"{len(group)} samples")
        self.groups = [sorted(group), list(others)]


class SampleTrials:
    """Runs with some samples and everything else as it was: one run of each part, several once the failure is flaky."""

    def __init__(self, job: BisectJob, rate: float, report: Report) -> None:
        self.job, self.report, self.old = job, report, read_ledger(job)
        self.whole = (1 << len(job.factors)) - 1
        self.retries = 0
        self.left: Sequence[int] = ()  # the samples among which as many others are tried
        self.failing: list[list[int]] = []
        self.passing: list[list[int]] = []
        self.ends = [0, 0]  # runs with a culprit that failed, and that passed
        self.tries = tries(rate, job.limits.error)

    def once(self, chosen: Sequence[int]) -> bool:
        """Tell whether one run fails in the wanted way; raises LimitReached."""
        row = perform_run(self.job, self.whole, self.old, sorted(chosen))
        self.report(row)
        if row["ended"] == "failed":
            self.failing.append(sorted(chosen))
        return bool(row["ended"] == "failed")

    def fails(self, chosen: Sequence[int]) -> bool:
        """Tell whether any of `tries` runs fails."""
        for number in range(self.tries if chosen else 0):
            if self.once(chosen):
                self._learn(1, number)
                return True
        self.passing.append(sorted(chosen))
        return False

    def sure(self, left: Sequence[int]) -> bool:
        """Tell whether samples of which no half fails do fail again; if not, raise the number of tries."""
        if self.retries >= MOST_RETRIES:
            return True
        for number in range(AGAIN):
            if not self.once(left):
                self.retries += 1
                self._learn(number + (self.tries == 1), 1)
                return False
        others = _as_many(self, self.left, left)
        if others:
            raise CountDecides(left, others)
        return True

    def _learn(self, failed: int, passed: int) -> None:
        self.ends = [self.ends[0] + failed, self.ends[1] + passed]
        if self.ends[1]:
            self.tries = max(self.tries, tries(self.rate, self.job.limits.error))

    @property
    def rate(self) -> float:
        """How often it fails with a culprit among the samples (Krichevsky, Trofimov 1981)."""
        return (self.ends[0] + 0.5) / (sum(self.ends) + 1)


def tries(rate: float, error: float) -> int:
    """Return how many runs samples must pass to count as innocent, wrongly in `error` of all cases."""
    return 1 if rate > CERTAIN else min(MOST_TRIES, math.ceil(math.log(error) / math.log(1 - rate)))


def find_culprits(job: BisectJob, count: int, rate: float, report: Report, hint: Sequence[int] = ()) -> SampleCulprits:
    """Return which samples fail without all others; everything else is as it was.

    When the runs or the time are spent, the smallest part that is known to fail is the last group.
    """
    trial, culprits = SampleTrials(job, rate, report), SampleCulprits(count)
    try:
        _find_groups(trial, culprits, hint)
    except LimitReached:
        culprits.ending = "spent"
        culprits.groups += [min(trial.failing, key=len)] if trial.failing else []
    culprits.tries, culprits.rate = trial.tries, trial.rate if trial.ends[1] else None
    return culprits


def _find_groups(trial: SampleTrials, culprits: SampleCulprits, hint: Sequence[int]) -> None:
    """Look for one group after the other, as long as the rest fails without them."""
    left = list(range(culprits.count))
    while True:
        trial.failing.clear()
        trial.left = () if culprits.groups else left
        try:
            group = find_smallest(left, trial.fails, hint, trial.sure)
            others = _as_many(trial, trial.left, group)
            if others:
                raise CountDecides(group, others)
        except CountDecides as number:
            culprits.groups, culprits.ending = number.groups, "number"
            return
        whole = len(group) == culprits.count
        if 1 < len(group) < culprits.count:
            group = _alone(trial, group) or _company(trial, culprits, left, group)
        culprits.groups.append(sorted(group))
        trial.failing.clear()
        if whole:
            culprits.ending = "whole"
            return
        left = [item for item in left if item not in group]
        if not trial.fails(left):
            return
        if len(culprits.groups) == 1 and len(group) == 1 and _everyone(trial, culprits, left):
            culprits.ending = "every"
            return
        if len(culprits.groups) == MOST_GROUPS:
            culprits.ending = "many"
            return


def _as_many(trial: SampleTrials, left: Sequence[int], group: Sequence[int]) -> list[int]:
    """Return as many others that fail too; none where these samples are to blame.

    A last batch of one, or a scheduler that ends too early, fails by the number of samples. The others are taken from
    parts that passed.
    """
    if any(len(some) == len(group) for some in trial.passing):
        return []
    passed = {item for some in trial.passing for item in some}
    others = [item for item in left if item in passed and item not in group]
    if len(others) < len(group) > 2:
        others = [item for item in left if item not in group]
    others = others[: len(group)]
    return others if len(others) == len(group) and trial.fails(others) else []


def _alone(trial: SampleTrials, group: Sequence[int]) -> list[int]:
    """Return one of a few that fails alone after all; of a flaky failure it may have passed by chance."""
    few = group if len(group) <= MOST_GROUPS else ()
    return next(([item] for item in few if any(trial.once([item]) for _ in range(ALONE))), [])


def _company(trial: SampleTrials, culprits: SampleCulprits, left: Sequence[int], group: list[int]) -> list[int]:
    """Return the culprits of a group that fails only together, where any others may stand for the rest of it.

    That is so where a batch must be full: then no sample fails alone, and without the culprit nothing fails.
    """

    def cures(out: Sequence[int]) -> bool:
        return not trial.fails([item for item in left if item not in out])

    least = find_smallest(group, cures)
    if len(least) == len(group):
        return group
    rest = [item for item in group if item not in least]
    culprits.company = trial.fails([item for item in left if item not in rest])
    return least if culprits.company else group


def _everyone(trial: SampleTrials, culprits: SampleCulprits, left: Sequence[int]) -> bool:
    """Tell whether two others fail alone as well, as a sign that all do."""
    if len(left) < 2:
        return False
    others = [left[(len(left) - 1) // 3], left[-1 - (len(left) - 1) // 3]]
    if not all(trial.fails([other]) for other in others):
        return False
    culprits.groups += [[other] for other in others]
    return True


def find_smallest(items: Sequence[int], fails: Fails, hint: Sequence[int] = (), sure: Fails | None = None) -> list[int]:
    """Return a part of `items`, which fail together, that fails and needs each of its items (Junker 2004).

    One item of n takes 1.5 log2(n) runs, k that fail only together k log2(n) more. The items of `hint` are tried first.
    `sure` is asked about a list of which no half fails; where it is not sure, the halves are tried again.
    """
    left = list(items)
    near = [item for item in left if item in set(hint)]
    if 0 < len(near) < len(left) and fails(near):
        left = near
    while len(left) > 1:
        halves = [left[: len(left) // 2], left[len(left) // 2 :]]
        failing = next((half for half in halves if fails(half)), None)
        if failing is not None:
            left = failing
        elif sure is None or sure(left):
            needed = _together(left, fails)
            return [item for item in left if item in needed]
    return left


def _together(items: list[int], fails: Fails) -> list[int]:
    """Return what fails only together: the last item of the shortest failing beginning is needed, and so on with it."""
    needed: list[int] = []
    rest = items
    while rest and not (needed and fails(needed)):
        passing, failing = 0, len(rest)
        while failing - passing > 1:
            middle = (passing + failing) // 2
            if fails([*rest[:middle], *needed]):
                failing = middle
            else:
                passing = middle
        needed, rest = [rest[failing - 1], *needed], rest[: failing - 1]
    return needed
