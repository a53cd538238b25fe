"""From guilty data to the samples that fail: short runs that see some of the samples only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ocrlab.debug.bisect import quickxplain
from ocrlab.debug.bisect.bisect_job import Hunt, Spent, ledger, made

MOST_TRIES = 10  # of the same samples where it fails now and then
MOST_GROUPS = 4  # that are looked for one after the other
MOST_DOUBTS = 3  # times that halves are tried anew, since what they are halves of had passed as well
AGAIN = 4  # runs of what failed once, of which no half does, that must fail before it is believed to need both
ALONE = 2  # runs more of each of a few that seem to fail only together
CERTAIN = 0.9  # rate above which a failure passes for one that always happens

Say = Callable[[dict[str, Any]], None]


@dataclass
class Guilt:
    """What is known of the samples, by number: the groups that fail without all others, and how that was found.

    `ending` is found, every (others that were tried alone fail as well), many (it still fails without them), whole (no
    part of them fails), number (as many others fail as well) or spent; `company`: what is named needs others with it,
    whichever.
    """

    count: int
    groups: list[list[int]] = field(default_factory=list)
    ending: str = "found"
    company: bool = False
    tries: int = 1  # runs that a part had to pass
    rate: float | None = None  # how often it fails with a guilty one, where that is not always


class Number(Exception):
    """As many other samples fail too: it holds both groups."""

    def __init__(self, group: Sequence[int], others: Sequence[int]) -> None:
        super().__init__(f"{len(group)} samples")
        self.groups = [sorted(group), list(others)]


class Trial:
    """Runs with some samples, everything else as it was: one each, and more where it is seen to fail now and then."""

    def __init__(self, job: Hunt, rate: float, say: Say) -> None:
        self.job, self.say, self.old = job, say, ledger(job)
        self.whole = (1 << len(job.factors)) - 1
        self.doubts = 0
        self.left: Sequence[int] = ()  # of which others may take the place of those that fail
        self.failing: list[list[int]] = []
        self.passing: list[list[int]] = []
        self.seen = [0, 0]  # runs that failed, and that passed, with samples of which some are guilty
        self.tries = tries(rate, job.limits.error)

    def once(self, chosen: Sequence[int]) -> bool:
        """Tell whether one run fails in the way that is looked for; raises Spent."""
        row = made(self.job, self.whole, self.old, sorted(chosen))
        self.say(row)
        if row["ended"] == "failed":
            self.failing.append(sorted(chosen))
        return bool(row["ended"] == "failed")

    def fails(self, chosen: Sequence[int]) -> bool:
        """Tell whether any of as many runs fails as it takes to see a failure of its rate."""
        for number in range(self.tries if chosen else 0):
            if self.once(chosen):
                self._learn(1, number)
                return True
        self.passing.append(sorted(chosen))
        return False

    def sure(self, left: Sequence[int]) -> bool:
        """Tell whether samples that failed once, and of which no half does, fail again; else each is tried oftener."""
        if self.doubts >= MOST_DOUBTS:
            return True
        for number in range(AGAIN):
            if not self.once(left):
                self.doubts += 1
                self._learn(number + (self.tries == 1), 1)
                return False
        others = _as_many(self, self.left, left)
        if others:
            raise Number(left, others)
        return True

    def _learn(self, failed: int, passed: int) -> None:
        self.seen = [self.seen[0] + failed, self.seen[1] + passed]
        if self.seen[1]:
            self.tries = max(self.tries, tries(self.rate, self.job.limits.error))

    @property
    def rate(self) -> float:
        """How often it failed with samples of which some are guilty (Krichevsky, Trofimov 1981)."""
        return (self.seen[0] + 0.5) / (sum(self.seen) + 1)


def tries(rate: float, error: float) -> int:
    """Return how often samples must pass before they are believed to be innocent: wrongly in `error` of all cases."""
    return 1 if rate > CERTAIN else min(MOST_TRIES, math.ceil(math.log(error) / math.log(1 - rate)))


def pages(job: Hunt, count: int, rate: float, say: Say, hint: Sequence[int] = ()) -> Guilt:
    """Return which samples fail without all others; everything else is as it was.

    Where the runs or the time are spent, the smallest samples that are known to fail are the last group.
    """
    trial, found = Trial(job, rate, say), Guilt(count)
    try:
        _look(trial, found, hint)
    except Spent:
        found.ending = "spent"
        found.groups += [min(trial.failing, key=len)] if trial.failing else []
    found.tries, found.rate = trial.tries, trial.rate if trial.seen[1] else None
    return found


def _look(trial: Trial, found: Guilt, hint: Sequence[int]) -> None:
    """Look for one group after the other, as long as what is left fails without those that were found."""
    left = list(range(found.count))
    while True:
        trial.failing.clear()
        trial.left = () if found.groups else left
        try:
            group = quickxplain.smallest(left, trial.fails, hint, trial.sure)
            others = _as_many(trial, trial.left, group)
            if others:
                raise Number(group, others)
        except Number as number:
            found.groups, found.ending = number.groups, "number"
            return
        whole = len(group) == found.count
        if 1 < len(group) < found.count:
            group = _alone(trial, group) or _company(trial, found, left, group)
        found.groups.append(sorted(group))
        trial.failing.clear()
        if whole:
            found.ending = "whole"
            return
        left = [item for item in left if item not in group]
        if not trial.fails(left):
            return
        if len(found.groups) == 1 and len(group) == 1 and _everyone(trial, found, left):
            found.ending = "every"
            return
        if len(found.groups) == MOST_GROUPS:
            found.ending = "many"
            return


def _as_many(trial: Trial, left: Sequence[int], group: Sequence[int]) -> list[int]:
    """Return as many others that fail too, none where it is these samples that are to blame.

    A last batch of one, or a scheduler that ends too early, fails by how many samples there are. The others are taken
    from what has passed; a few may fail together for reasons of their own, and all samples for one that all have.
    """
    if any(len(some) == len(group) for some in trial.passing):
        return []
    passed = {one for some in trial.passing for one in some}
    others = [one for one in left if one in passed and one not in group]
    if len(others) < len(group) > 2:
        others = [one for one in left if one not in group]
    others = others[: len(group)]
    return others if len(others) == len(group) and trial.fails(others) else []


def _alone(trial: Trial, group: Sequence[int]) -> list[int]:
    """Return one of a few that fails alone after all, though it had passed: now and then it does."""
    few = group if len(group) <= MOST_GROUPS else ()
    return next(([one] for one in few if any(trial.once([one]) for _ in range(ALONE))), [])


def _company(trial: Trial, found: Guilt, left: Sequence[int], group: list[int]) -> list[int]:
    """Return those of a group that only fail together which are to blame, where the rest may be any others.

    It is so where a batch wants to be filled: nothing fails alone then, and without the guilty one nothing fails.
    """

    def cures(out: Sequence[int]) -> bool:
        return not trial.fails([item for item in left if item not in out])

    least = quickxplain.smallest(group, cures)
    if len(least) == len(group):
        return group
    rest = [item for item in group if item not in least]
    found.company = trial.fails([item for item in left if item not in rest])
    return least if found.company else group


def _everyone(trial: Trial, found: Guilt, left: Sequence[int]) -> bool:
    """Tell whether two others fail alone as well, which speaks for all of them."""
    if len(left) < 2:
        return False
    others = [left[(len(left) - 1) // 3], left[-1 - (len(left) - 1) // 3]]
    if not all(trial.fails([other]) for other in others):
        return False
    found.groups += [[other] for other in others]
    return True
