"""Which factors make a run fail: a posterior over all simple answers, and the run that halves it best.

A run is a set of factors left as they were, written as the bits of a whole number; all others are flipped to safe
values. An answer says: it fails where ALL of some factors are as they were (one, two, three of them; none at all means
that it fails whatever is set), or where ANY of some are (none at all: it never fails), and how often it then does.
The next run is the one whose end tells most (Lindley 1956, Mackay 1992); for failures that always happen this is group
testing (Dorfman 1943): one culprit of n is certain after log2(n) + 2 runs, the first of them as it was.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

KINDS = {"always": 0.15, "never": 0.15, "other": 0.0005}  # before the first run; the rest:
SIZES = {1: 0.53, 2: 0.15, 3: 0.012}  # how many factors it takes, each half of them ALL and half ANY
RATES = {1.0: 0.88, **dict.fromkeys((0.9, 0.7, 0.5, 0.3, 0.2, 0.1), 0.02)}  # how often it fails
CHANCE = 0.001  # of the same failure where an answer expects none: nothing is ever quite impossible
GONE = 1e-7  # share of the best answer below which one is left out of the choice
EVERY_SET = 10  # factors up to which every possible run is weighed; beyond, the best neighbours of good ones
UNPROVEN = ("always", "never", "other")  # answers that name no factor
PROOFS = 1
OFTEN = 14  # runs as it was that pass before a failure counts as gone: of one in five such a row is rarer than 1 in 20
LIKELY = 0.8  # from here on an answer is put to the proof
CLOSE = 0.995  # runs that tell nearly as much as the best: of these the one that proves most directly


@dataclass
class Answer:
    """It fails where all (`every`) or any of the factors in `mask` are as they were; `weights` by failure rate."""

    mask: int
    every: bool
    weights: list[float]

    def expects(self, run: int) -> bool:
        """Tell whether a run is expected to fail, as often as it does."""
        return run & self.mask == self.mask if self.every else run & self.mask != 0

    @property
    def weight(self) -> float:
        return sum(self.weights)


@dataclass
class Search:
    """What is known after some runs: every answer with its weight, and `misfit`, the weight of none of them."""

    count: int
    rates: list[float]
    answers: list[Answer]
    misfit: float
    runs: list[tuple[int, bool]] = field(default_factory=list)
    barred: list[int] = field(default_factory=list)  # runs that failed otherwise: they tell nothing
    turn: random.Random = field(default_factory=lambda: random.Random(0))

    @property
    def whole(self) -> int:
        """The run as it was."""
        return (1 << self.count) - 1


@dataclass(frozen=True)
class Found:
    """The best answer: `kind` is all, any, always, never or other; its factors by place; its posterior and rate."""

    kind: str
    factors: tuple[int, ...]
    posterior: float
    rate: float


def begin(suspicion: Sequence[float], rate: float | None = None) -> Search:
    """Return a search over factors, each with how much it is suspected (relative, above 0).

    `rate` is how often the failure happens, where somebody knows it.
    """
    rates = RATES if rate is None else dict.fromkeys(sorted({0.7 * rate, rate, min(1.0, 1.3 * rate)}), 1 / 3)
    prior = list(rates.values())
    answers = [Answer(0, True, [KINDS["always"] * share for share in prior])]
    answers.append(Answer(0, False, [KINDS["never"] * share for share in prior]))
    for size, mass in SIZES.items():
        chosen = list(itertools.combinations(range(len(suspicion)), size))
        shares = [math.prod(suspicion[index] for index in group) for group in chosen]
        for group, part in zip(chosen, shares, strict=True):
            mask = sum(1 << index for index in group)
            for every in (True,) if size == 1 else (True, False):
                weight = mass * part / sum(shares) / (1 if size == 1 else 2)
                answers.append(Answer(mask, every, [weight * share for share in prior]))
    return Search(len(suspicion), list(rates), answers, KINDS["other"])


def learn(search: Search, run: int, failed: bool) -> None:
    """Take in how a run ended."""
    for answer in search.answers:
        on = answer.expects(run)
        for place, rate in enumerate(search.rates):
            fails = max(rate, CHANCE) * (1 - CHANCE) if on else CHANCE
            answer.weights[place] *= fails if failed else 1 - fails
    before = [end for other, end in search.runs if other == run]
    seen = before.count(failed)
    search.misfit *= (seen + 0.5) / (len(before) + 1)  # each run with a rate of its own: Krichevsky, Trofimov 1981
    search.runs.append((run, failed))
    total = search.misfit + sum(answer.weight for answer in search.answers)
    search.misfit /= total
    for answer in search.answers:
        answer.weights = [weight / total for weight in answer.weights]


def bar(search: Search, run: int) -> None:
    """Take in that a run failed in another way: it tells nothing, and is not made again."""
    search.barred.append(run)


def found(search: Search) -> Found:
    """Return the most probable answer."""
    return ranked(search)[0]


def ranked(search: Search, count: int = 1) -> list[Found]:
    """Return the `count` most probable answers, best first."""
    best = heapq.nlargest(count, search.answers, key=lambda answer: answer.weight)
    told = [_found(search, answer) for answer in best]
    return sorted([*told, Found("other", (), search.misfit, 0.0)], key=lambda one: -one.posterior)[:count]


def _found(search: Search, answer: Answer) -> Found:
    rate = sum(r * w for r, w in zip(search.rates, answer.weights, strict=True)) / answer.weight
    factors = tuple(index for index in range(search.count) if answer.mask >> index & 1)
    kind = ("all" if answer.every else "any") if factors else ("always" if answer.every else "never")
    return Found(kind, factors, answer.weight, rate)


def settled(search: Search, error: float) -> bool:
    """Tell whether the best answer is probable enough, and what would be done about it has been tried."""
    best = found(search)
    if best.kind == "never":  # however improbable a rare failure was before
        return len(search.runs) >= OFTEN and not any(failed for _, failed in search.runs)
    return best.posterior >= 1 - error and (best.kind in UNPROVEN or not _unproven(search, best))


def _unproven(search: Search, best: Found) -> list[int]:
    """Return the run that has not passed yet, and should if an answer is right and some factors are flipped for it.

    It is wanted until every factor that is acquitted was there in a run that passed.
    """
    named = sum(1 << index for index in best.factors)
    cleared = named
    for run, failed in search.runs:
        cleared |= 0 if failed else run
    flips = [1 << index for index in best.factors] if best.kind == "all" else [named]
    wanted = [search.whole ^ flip for flip in flips if search.whole ^ flip not in search.barred]
    return [] if cleared == search.whole else wanted[:1]


def choose(search: Search) -> int:
    """Return the run to make next: as it was until it has failed once, then the one that tells most."""
    if not any(failed for _, failed in search.runs) and search.whole not in search.barred:
        return search.whole
    best = found(search)
    if best.posterior > LIKELY and best.kind not in UNPROVEN:
        missing = _unproven(search, best)
        if missing:
            return missing[0]
    halving = _halve(search)
    if halving is not None and halving not in search.barred:
        return halving
    rows = _rows(search)
    told = {run: _told(rows, run) * _usable(search, run) for run in _candidates(search, rows)}
    most = max(told.values())
    close = [run for run, bits in told.items() if bits >= CLOSE * most]
    return min(close, key=lambda run: (_indirect(search, run), run))


Row = tuple[Answer, float, float]  # an answer, weight times rate, weight times the entropy that the rate leaves


def _rows(search: Search) -> list[Row]:
    least = GONE * max(answer.weight for answer in search.answers)
    rows = []
    for answer in search.answers:
        weight = answer.weight
        if weight > least:
            rate = sum(r * w for r, w in zip(search.rates, answer.weights, strict=True)) / weight
            rows.append((answer, weight * rate, weight * _entropy(rate)))
    return rows


def _told(rows: Sequence[Row], run: int) -> float:
    """Return the bits that the end of a run is expected to tell about which answer is right."""
    fails = left = 0.0
    for answer, failing, entropy in rows:
        mask = answer.mask
        if run & mask == mask if answer.every else run & mask:
            fails += failing
            left += entropy
    return _entropy(fails) - left


def _entropy(share: float) -> float:
    if not 1e-12 < share < 1 - 1e-12:
        return 0.0
    return -share * math.log2(share) - (1 - share) * math.log2(1 - share)


def _candidates(search: Search, rows: Sequence[Row]) -> list[int]:
    if search.count <= EVERY_SET:
        return list(range(1 << search.count))
    marginal = [sum(row[0].weight for row in rows if row[0].mask >> index & 1) for index in range(search.count)]
    order = sorted(range(search.count), key=lambda index: -marginal[index])
    found: dict[int, float] = {}
    starts = [sum(1 << index for index in order[:size]) for size in (1, 2, search.count // 2)]
    starts += [search.whole ^ start for start in starts] + [search.turn.getrandbits(search.count)]
    for start in starts:
        _climb(rows, start, search.count, found)
    return [*found, 0, search.whole]


def _climb(rows: Sequence[Row], start: int, count: int, found: dict[int, float]) -> None:
    """Add to `found` the runs on the way from a start to one that no single flip makes better."""
    here = start
    while True:
        for run in (here, *(here ^ 1 << index for index in range(count))):
            if run not in found:
                found[run] = _told(rows, run)
        best = max((here ^ 1 << index for index in range(count)), key=found.__getitem__)
        if found[best] <= found[here]:
            return
        here = best


def _halve(search: Search) -> int | None:
    """Return the run that halves the single culprits in question, if all ends so far agree with there being one.

    One that always fails lies in all failing runs and in no passing one. What is certain of it in the end is that no
    other factor is needed (no other lies in all failing runs) and none would do (every other lies in a passing run):
    factors of which nothing is known yet go along, so that all of this takes log2(n) + 1 runs.
    """
    failing, passing = search.whole, 0
    for run, failed in search.runs:
        failing, passing = (failing & run, passing) if failed else (failing, passing | run)
    left = [index for index in range(search.count) if (failing & ~passing) >> index & 1]
    if not left:
        return None
    if len(left) == 1:
        alone = 1 << left[0]
        if failing != alone:
            return alone
        return search.whole ^ alone if passing | alone != search.whole else None
    weights = {answer.mask: answer.weight for answer in search.answers if answer.mask.bit_count() == 1}
    left.sort(key=lambda index: -weights[1 << index])
    total = sum(weights[1 << index] for index in left)
    size = 1 if weights[1 << left[0]] > total / 2 else len(left) // 2
    return sum(1 << index for index in left[:size]) | search.whole & ~failing & ~passing


def _usable(search: Search, run: int) -> float:
    """Return how probably a run does not fail otherwise, as those did in which some flip must be to blame."""
    if not search.barred:
        return 1.0
    if run in search.barred:
        return 0.0
    cleared = 0
    for other, _ in search.runs:
        cleared |= search.whole & ~other
    usable = 1.0
    for other in search.barred:
        blamed = search.whole & ~other & ~cleared
        flipped = (blamed & ~run).bit_count()
        usable *= 1 - 0.9 * flipped / max(1, blamed.bit_count())
    return usable


def _indirect(search: Search, run: int) -> int:
    """Return how far a run is from one factor alone, as it was or flipped: these are what people believe."""
    size = run.bit_count()
    return min(abs(size - 1), abs(search.count - 1 - size))
