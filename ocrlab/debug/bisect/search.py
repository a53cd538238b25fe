"""Which of many items a failure needs: delta debugging over runs that leave some items as they were (Zeller 2002).

The items, factors or samples, are the bits of an integer. A run leaves the items in its bits as they were, and it
fails, passes, or ends otherwise (None). More items never hide a failure: what contains a failing run fails, and what
lies in a passing run passes. A run that ended otherwise counts as one that does not fail, but proves nothing.

A failure that happens now and then takes a sequential probability ratio test (Wald 1945). Without the failure no run
fails, so that one failing run decides; a set counts as passing after so many passing runs that they would be improbable
if it could fail.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

OFTEN = 14  # passing runs with nothing flipped after which a failure counts as gone; one in five passes so in 1 of 20
MOST_TRIES = 30  # passing runs that a set needs at most
MOST_GROUPS = 4  # groups of culprits, each of which fails without the others
STEADY = 0.88  # share of failures that always happen
SLACK = 2.0  # rivals share one set of runs, so that their chances add up to too much; a tenth where each item is enough

Fails = Callable[[int], bool]


@dataclass(frozen=True)
class Answer:
    """What a search over factors has found.

    `status`: found (`items`, needed together or, with `each_alone`, each one enough), none (fails with all flipped),
    never (does not fail), misfit (no simple answer), otherwise (only other failures) or undecided (limits reached).
    """

    status: str
    items: tuple[int, ...] = ()
    each_alone: bool = False
    unproved: tuple[int, ...] = ()  # needed too, or their flip breaks the program

    @property
    def kind(self) -> str:
        """The same in one word for the record: all, any, always, never or other."""
        culprit = "any" if self.each_alone else "all"
        return {"found": culprit, "none": "always", "never": "never"}.get(self.status, "other")


class FlakyFailure(Exception):
    """A set that had failed has passed: what single runs have shown so far is not certain."""


@dataclass
class Search:
    """The runs so far and what follows from them; `perform` makes a run and may raise to end the search."""

    count: int
    perform: Callable[[int], bool | None]
    error: float = 0.05  # accepted probability that a set is taken to pass and can fail
    rate: float | None = None  # how often it fails, where that is known
    suspicion: Sequence[float] = ()  # of each item, above 0: only the order follows from it
    runs: list[tuple[int, bool | None]] = field(default_factory=list)

    @property
    def whole(self) -> int:
        """The run with everything as it was."""
        return (1 << self.count) - 1

    def __post_init__(self) -> None:
        self.passing_error = (
            self.error
        )  # probability that a set counted as passing can fail; less after a contradiction

    def ended(self, end: bool | None) -> list[int]:
        """Return the runs that failed (True), passed (False) or ended otherwise (None)."""
        return [run for run, how in self.runs if how is end]

    @property
    def is_flaky(self) -> bool:
        """Whether the failure happens now and then: a run has passed that contains a failing one."""
        failing = self.ended(True)
        flaky = any(run & less == less for run in self.ended(False) for less in failing)
        return flaky or self.rate not in (None, 1.0)

    @property
    def failure_rate(self) -> float:
        """How often a run fails that can fail (Krichevsky, Trofimov 1981)."""
        failing = self.ended(True)
        passes = sum(any(run & less == less for less in failing) for run in self.ended(False))
        return self.rate or (len(failing) + 0.5) / (len(failing) + passes + 1)

    @property
    def tries(self) -> int:
        """How many runs of a set must pass before it counts as one that cannot fail."""
        if not self.is_flaky:
            return 1
        return max(
            2, min(MOST_TRIES, math.ceil(math.log(self.passing_error) / math.log(1 - min(self.failure_rate, 0.99))))
        )

    def run(self, items: int) -> bool | None:
        """Make a run; raises FlakyFailure where it is the first to show that the failure is flaky."""
        was_flaky = self.is_flaky
        end = self.perform(items)
        self.runs.append((items, end))
        if self.is_flaky and not was_flaky:
            raise FlakyFailure
        return end

    def fails(self, items: int) -> bool:
        """Return whether a set fails, by runs where that does not follow from those so far."""
        while True:
            if any(run & items == run for run in self.ended(True)):
                return True
            if items in self.ended(None) or self.passes(items):
                return False
            self.run(items)

    def passes(self, items: int) -> bool:
        """Return whether the runs so far show that a set passes."""
        return sum(run & items == items for run in self.ended(False)) >= self.tries

    def cleared(self) -> int:
        """Return the items that lie in a run which passes: none of them makes it fail alone."""
        return union(run for run in self.ended(False) if self.passes(run))

    def in_order(self, items: int) -> list[int]:
        """Return the items of a set, each as a set of its own, the most suspected first."""
        single = [1 << index for index in range(items.bit_length()) if items >> index & 1]
        return sorted(single, key=lambda item: -self._weight(item)) if self.suspicion else single

    def _weight(self, item: int) -> float:
        return self.suspicion[item.bit_length() - 1] if self.suspicion else 1.0

    def halve(self, left: int) -> int:
        """Return the only item that fails by itself and lies in all failing runs of `left`; 0 if there are several.

        A culprit of n takes log2(n) + 2 runs: in the runs that halve the suspects, cleared items go along; in the last
        of them those do that no run has tested, so that one more run shows that it fails alone and all others pass.
        """
        cleared = self.cleared() & left
        while True:
            failing = [run for run in self.ended(True) if run & ~left == 0]
            common = functools.reduce(operator.and_, failing, left)
            suspects = self.in_order(common & ~cleared)
            if not suspects:
                return 0
            if len(suspects) == 1:
                if common == suspects[0]:
                    return common
                if not self.fails(suspects[0]):
                    return 0
                continue
            half = suspects[: self._share(suspects)]
            items = half[0] | left & ~common & ~cleared if len(half) == 1 else union(half) | cleared
            cleared |= 0 if self.fails(items) else items

    def _share(self, suspects: Sequence[int]) -> int:
        """Return how many suspects, the most suspected first, carry half of the suspicion.

        Neither part is larger than the power of two that even halves need, so that no culprit takes more runs.
        """
        weights = [self._weight(item) for item in suspects]
        most = 1 << (len(suspects) - 1).bit_length() - 1
        sizes = range(max(1, len(suspects) - most), min(most, len(suspects) - 1) + 1)
        return min(sizes, key=lambda size: (round(abs(2 * sum(weights[:size]) - sum(weights)), 9), size))

    def find_smallest(self, left: int, confirmed: int = 1) -> int:
        """Return a part of `left`, which fails, that fails and needs each of its items (Junker 2004).

        Where no item fails alone, `left` must have failed `confirmed` times: the parts may have passed by chance.
        """
        item = self.halve(left)
        if item and self.fails(item):
            return item
        smallest = min((run for run in self.ended(True) if run & ~left == 0), key=int.bit_count)
        while not self.is_flaky and self.ended(True).count(smallest) < confirmed:
            self.run(smallest)
        return find_together(self.in_order(smallest), self.fails)

    def find_factors(self) -> Answer:
        """Return the factors that the failure needs."""
        while True:
            with contextlib.suppress(FlakyFailure):
                answer = self._answer()
                if answer.status == "misfit" and self.is_flaky and self.tries < MOST_TRIES:
                    self.passing_error /= 4
                elif (run := self._find_next_proof(answer)) is None:
                    return answer
                else:
                    self.run(run)

    def _find_next_proof(self, answer: Answer) -> int | None:
        """Return a run to repeat before an answer is named; None where it is certain enough.

        One factor that always fails is proved by the search. Several that do need (k + 1)(log2(n) + 1) runs.
        """
        past_runs = [run for run, _ in self.runs]
        if answer.status == "misfit" and not self.is_flaky:  # a flaky failure may have contradicted itself
            return next(
                (run for run, end in reversed(self.runs) if end is not None and past_runs.count(run) == 1), None
            )
        if answer.status != "found" or answer.unproved:
            return None
        chances, size = self.chances(answer), len(answer.items)
        weakest = max(chances, key=chances.__getitem__)
        if weakest in self.ended(None):
            return None
        if self.is_flaky:
            slack = SLACK / 10 if answer.each_alone else SLACK
            return weakest if sum(chances.values()) > slack * self.error else None
        enough = size < 3 or sum(chances.values()) <= self.error
        if size == 1 or (enough and len(past_runs) >= (size + 1) * (math.log2(self.count) + 1)):
            return None
        items = [1 << index for index in answer.items]
        failing = items if answer.each_alone else [union(items) | union(1 << index for index in answer.unproved)]
        return min([*failing, weakest], key=past_runs.count)

    def _answer(self) -> Answer:
        whole = self.whole
        while not self.ended(True):
            if whole in self.ended(None):
                return Answer("otherwise")
            if len(self.ended(False)) >= OFTEN:
                return Answer("never")
            self.run(whole)
        item = self.halve(whole)
        others = whole ^ item
        if item and ((others and not others & ~self.cleared()) or (not self.fails(others) and self.passes(others))):
            return self._answer_for([item])
        group = self.find_smallest(whole)
        if self.fails(0):
            return Answer("none")
        if group.bit_count() > 2 and not self.is_flaky and self.ended(True).count(group) < 2:
            self.run(group)  # parts of it may have passed by chance
        while group.bit_count() > 1:
            needed = {item: self._is_needed(item, group) for item in self.in_order(group)}
            if False not in needed.values():
                proved = [item for item, how in needed.items() if how]
                return self._answer_for(proved, group) if proved else Answer("otherwise")
            needless = next(item for item, how in needed.items() if how is False)
            other = self.find_smallest(whole ^ needless)
            if other & ~group or other == group:
                return Answer("misfit")
            group = other
        items = [group]
        while self.fails(whole & ~union(items)):
            group = self.find_smallest(whole & ~union(items))
            if group.bit_count() > 1 or len(items) == MOST_GROUPS:
                return Answer("misfit")
            items.append(group)
        if len(items) == 1 and not self._is_needed(items[0], items[0]):
            return Answer("otherwise")
        return self._answer_for(items)

    def _answer_for(self, items: Sequence[int], group: int = 0) -> Answer:
        indices = tuple(sorted(item.bit_length() - 1 for item in items))
        unproved = self.in_order(group & ~union(items))
        return Answer("found", indices, not group and len(items) > 1, tuple(i.bit_length() - 1 for i in unproved))

    def _is_needed(self, item: int, group: int) -> bool | None:
        """Return whether a failing group passes without an item; None where both runs that show it end otherwise."""
        if self.fails(self.whole ^ item):
            return False
        if self.passes(self.whole ^ item):
            return True
        return None if self.fails(group ^ item) or not self.passes(group ^ item) else True

    def chances(self, answer: Answer) -> dict[int, float]:
        """Return how probable it is that the runs without each item have passed by chance, by the run that shows it.

        It is the likelihood of the rival that needs the item less, at its best rate, over that of the answer.
        """
        items = [1 << index for index in answer.items]
        named = union(items)
        failing, passing = len(self.ended(True)), self.ended(False)
        own = sum(run & named != 0 if answer.each_alone else run & named == named for run in passing)
        chances = {}
        for item in [named] if answer.each_alone else items:
            rivals = [named & ~item | other for other in self.in_order(self.whole & ~named)] or [named & ~item]
            passed = min(sum(not run & item and run & rival == rival for run in passing) for rival in rivals)
            ratio = _best_likelihood(failing, own + passed) - _average_likelihood(failing, own)
            chances[self.whole ^ item] = min(1.0, math.exp(ratio) * (1 if self.is_flaky else 1 - STEADY))
        return chances

    def probability(self, answer: Answer) -> float:
        """Return how probable an answer is."""
        if answer.status != "found":
            return float(answer.status == "none")
        return max(0.0, 1 - sum(self.chances(answer).values()))


def _average_likelihood(failing: int, passing: int) -> float:
    """Return the logarithm of the probability of so many ends, averaged over the rates (Krichevsky, Trofimov 1981)."""
    parts = math.lgamma(failing + 0.5) + math.lgamma(passing + 0.5)
    return parts - math.lgamma(failing + passing + 1) - math.log(math.pi)


def _best_likelihood(failing: int, passing: int) -> float:
    """Return the same at the rate that makes them most probable."""
    return sum(count * math.log(count / (failing + passing)) for count in (failing, passing) if count)


def find_together(items: Sequence[int], fails: Fails) -> int:
    """Return the items that fail only together: the last one of the shortest failing beginning, and so on with it."""
    needed, rest = 0, list(items)
    while rest and not (needed and fails(needed)):
        passing, failing = 0, len(rest)
        while failing - passing > 1:
            middle = (passing + failing) // 2
            if fails(union(rest[:middle]) | needed):
                failing = middle
            else:
                passing = middle
        needed, rest = needed | rest[failing - 1], rest[: failing - 1]
    return needed


def union(sets: Iterable[int]) -> int:
    """Return the items that are in any of some sets."""
    return functools.reduce(operator.or_, sets, 0)
