"""Which factors make a run fail: a posterior over all simple answers, and when one of them may be named.

A run is a set of factors left as they were, written as the bits of a whole number; all others are flipped to safe
values. An answer says: it fails where ALL of some factors are as they were (one, two, three of them; none at all means
that it fails whatever is set), or where ANY of some are (none at all: it never fails), and how often it then does.

Most failures always happen, and are proved by few runs. The first run that contradicts this, one that passes though
no more was flipped than in one that failed, raises the bar for good: from then on an answer must be so much likelier
than each other one, at whatever rate that fails, that a wrong one is named in `error` of all searches at most
(Ville 1939: a likelihood ratio ever exceeds 1/error with that probability at most, however one chooses and stops).

A run that ends otherwise tells nothing of the failure, but of what can be proved: an answer is less likely for each of
its factors whose flip was to be shown by such a run, until another run has shown it, and is none before two runs that
differ in that factor alone have ended as it says. So a second bug that shows once the first is gone hides nothing, and
what cannot be told from one factor alone (one more, whose flip breaks the program) does not keep that from being named.

Of failures that always happen a suspicion only says which half comes first: as a prior it let runs be made that do not
halve, and wrong pairs be named. Those that happen now and then it makes likelier, which takes fewer runs.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

KINDS = {"always": 0.02, "never": 0.15, "other": 0.0005}  # before the first run; the rest:
SIZES = {1: 0.53, 2: 0.25, 3: 0.012}  # how many factors it takes, each half of them ALL and half ANY
RATES = {1.0: 0.88, **dict.fromkeys((0.9, 0.7, 0.5, 0.3, 0.2, 0.1), 0.02)}  # how often it fails
CHANCE = 0.001  # of the same failure where an answer expects none: nothing is ever quite impossible
CERTAIN = 0.9  # rate above which a failure passes for one that always happens
OFTEN = 14  # runs as it was that pass before a failure counts as gone: of one in five such a row is rarer than 1 in 20
LUCK = 0.3  # likelihood of another answer, against prior and likelihood of the best, that is no doubt any more
FEW = 10  # factors up to which every run between two is weighed
HINDERED = 0.1  # likelihood of an answer for each factor of which no run shows what it does, as that ended otherwise
SLACK = 12.0  # Ville's bound counts every wrong answer apart; simulated, so much more still keeps the error

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Answer:
    """It fails where all (`every`) or any of the factors in `mask` are as they were."""

    mask: int
    every: bool

    def expects(self, run: int) -> bool:
        """Tell whether a run can fail."""
        return run & self.mask == self.mask if self.every else run & self.mask != 0


@dataclass
class Search:
    """What is known after some runs: of each answer (A) and rate (R) the logarithm of prior and of likelihood.

    `misfit` is that of no answer at all, prior and likelihood together.
    """

    count: int
    answers: list[Answer]
    rates: list[float]
    prior: Array  # (A, R)
    likelihood: Array  # (A, R)
    suspected: Array  # (A,) logarithm of how much more than others of as many factors; in the prior once it is flaky
    misfit: float
    flaky: bool  # it does not always fail: known, or seen
    runs: list[tuple[int, bool]] = field(default_factory=list)
    barred: list[int] = field(default_factory=list)  # runs that failed otherwise: they tell nothing
    turn: random.Random = field(default_factory=lambda: random.Random(0))

    def __post_init__(self) -> None:
        self.masks = np.array([answer.mask for answer in self.answers])  # (A,)
        self.every = np.array([answer.every for answer in self.answers])  # (A,)

    @property
    def whole(self) -> int:
        """The run as it was."""
        return (1 << self.count) - 1

    def ends(self, failed: bool) -> list[int]:
        """Return the runs that failed, or those that passed."""
        return [run for run, end in self.runs if end == failed]

    def expects(self, runs: Sequence[int]) -> Array:
        """Return (runs, A) whether each run can fail, for each answer."""
        kept = np.array(runs)[:, None] & self.masks
        return np.where(self.every, kept == self.masks, kept != 0)

    @property
    def hindered(self) -> Array:
        """Return (A,) the logarithm of how much less likely answers are as runs for them ended otherwise, 0 for most.

        ALL: a factor was flipped alone, and no run has passed in which it was flipped and the others were not. ANY: one
        was left without the others, and no such run has failed. Of what comes now and then such an answer is left out,
        until a run without the factor has passed, whatever else was flipped: a failing one beside it proves little.
        """
        found, passed, failed = np.zeros(len(self.answers)), self.ends(False), self.ends(True)
        for one in (1 << index for index in range(self.count)) if self.barred else ():
            rest = self.masks ^ one
            if self.whole ^ one in self.barred:
                shown = any(not run & one for run in passed) if self.flaky else self._kept(passed, rest)
                found += (self.every | self.flaky) & (self.masks & one != 0) & ~np.asarray(shown)
            alone = ~self.every & (rest & one == 0) & (rest != 0)
            found += alone & self._kept(self.barred, one) & ~self._kept(failed, one)
        return np.where(found > 0, -np.inf, 0.0) if self.flaky else math.log(HINDERED) * found

    def _kept(self, runs: Sequence[int], wanted: Array | int) -> Array:
        """Return (A,) whether in any of the runs just those factors of an answer are as they were."""
        return np.asarray(((np.array(runs, int)[:, None] & self.masks) == wanted).any(axis=0))

    def weights(self) -> Array:
        """Return (A + 1, R) posteriors, that sum to 1; in the last row the first is that of no answer at all."""
        logs = self.prior + self.likelihood + self.hindered[:, None]
        logs = np.vstack([logs, np.full(len(self.rates), -np.inf)])
        logs[-1, 0] = self.misfit
        raised = np.exp(logs - logs.max())
        return np.asarray(raised / raised.sum())


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
    known = dict.fromkeys(sorted({0.7 * rate, rate, min(1.0, 1.3 * rate)}), 1 / 3) if rate else RATES
    answers, prior = [Answer(0, True), Answer(0, False)], [KINDS["always"], KINDS["never"]]
    suspected = [0.0, 0.0]
    for size, mass in SIZES.items():
        chosen = list(itertools.combinations(range(len(suspicion)), size))
        shares = [math.prod(suspicion[index] for index in group) for group in chosen]
        for group, part in zip(chosen, shares, strict=True):
            mask = sum(1 << index for index in group)
            for every in (True,) if size == 1 else (True, False):
                answers.append(Answer(mask, every))
                prior.append(mass / len(chosen) / (1 if size == 1 else 2))
                suspected.append(math.log(part / sum(shares) * len(chosen)))
    logs = np.log(np.outer(np.array(prior) / sum(prior), list(known.values())))
    nothing, flaky, none = math.log(KINDS["other"]), rate not in (None, 1.0), np.zeros_like(logs)
    made = Search(len(suspicion), answers, list(known), logs, none, np.array(suspected), nothing, flaky)
    if flaky:
        _suspect(made)
    return made


def learn(search: Search, run: int, failed: bool) -> None:
    """Take in how a run ended."""
    rates = np.maximum(search.rates, CHANCE) * (1 - CHANCE)
    fails = np.where(search.expects([run])[0][:, None], rates, CHANCE)  # (A, R)
    search.likelihood += np.log(fails if failed else 1 - fails)
    before = [end for other, end in search.runs if other == run]
    seen = before.count(failed)  # no answer at all: each run has a rate of its own (Krichevsky, Trofimov 1981)
    search.misfit += math.log((seen + 0.5) / (len(before) + 1))
    search.runs.append((run, failed))
    passed = search.ends(False)
    if not search.flaky and any(less & more == less for less in search.ends(True) for more in passed):
        search.flaky = True
        if 1.0 in search.rates:
            search.prior[:, search.rates.index(1.0)] = -np.inf
        _suspect(search)


def bar(search: Search, run: int) -> None:
    """Take in that a run failed in another way: it is not made again, and tells only what cannot be proved by it."""
    search.barred.append(run)


def _suspect(search: Search) -> None:
    """Take what is suspected into the prior."""
    search.prior += search.suspected[:, None]
    search.prior -= np.log(np.exp(search.prior).sum())


def found(search: Search) -> Found:
    """Return the most probable answer."""
    return ranked(search)[0]


def ranked(search: Search, count: int = 1) -> list[Found]:
    """Return the `count` most probable answers, best first."""
    weights = search.weights()
    places = np.argsort(-weights.sum(axis=1), kind="stable")[:count]
    return [_found(search, int(place), weights[place]) for place in places]


def _found(search: Search, place: int, weights: Array) -> Found:
    posterior = float(weights.sum())
    if place == len(search.answers):
        return Found("other", (), posterior, 0.0)
    answer = search.answers[place]
    factors = tuple(index for index in range(search.count) if answer.mask >> index & 1)
    kind = ("all" if answer.every else "any") if factors else ("always" if answer.every else "never")
    return Found(kind, factors, posterior, float(weights @ search.rates) / max(posterior, 1e-300))


def settled(search: Search, error: float) -> bool:
    """Tell whether the best answer is probable enough, and as well proved as a failure of its kind needs."""
    best = found(search)
    if best.kind == "never":  # however improbable a rare failure was before
        return len(search.runs) >= OFTEN and not any(failed for _, failed in search.runs)
    if best.posterior < 1 - error:
        return False
    if best.kind == "always" and search.flaky and search.barred and not _each_flipped(search):
        return False  # what could not be flipped may be it
    return best.kind == "other" or (not doubts(search, SLACK * error) if search.flaky else proved(search, best))


def _each_flipped(search: Search) -> bool:
    """Tell whether each factor was flipped in a run that failed."""
    return all(any(not run >> index & 1 for run in search.ends(True)) for index in range(search.count))


def doubts(search: Search, error: float) -> list[int]:
    """Return the places of the answers that luck may still have hidden behind the best one, the likeliest first.

    Each is taken to fail now and then, at the rate that speaks most for it; for the best one none is chosen afterwards.
    """
    place = int(np.argmax(search.weights()[:-1].sum(axis=1)))
    own = (search.prior + search.likelihood)[place]
    score = own.max() + math.log(np.exp(own - own.max()).sum())
    chances = search.likelihood[:, [rate < 1 for rate in search.rates]].max(axis=1)
    chances[place] = -np.inf
    chances[search.hindered < 0] = -np.inf
    near = np.flatnonzero(chances > score + math.log(error))
    return [int(one) for one in near[np.argsort(-chances[near], kind="stable")]]


def unproven(search: Search, best: Found) -> list[int]:
    """Return the runs that are wanted before an answer is named of a failure that always happens.

    ALL: alone they fail, and with any one of them flipped, and nothing else, it passes. ANY: each alone fails, and with
    all of them flipped it passes. This proves it, however involved the truth may be, as long as flips only help. Of
    one factor less will do in the first log2(n) + 2 runs: it lies in all failing ones, every other in a passing one.
    Where a flip alone ends otherwise, two other runs that differ in nothing else show what it does; where they alone
    do, what must stay beside them does, with nothing more that could be flipped.
    """
    named = [1 << index for index in best.factors]
    mask, failed, passed = sum(named), search.ends(True), search.ends(False)
    if not named:
        return [] if 0 in failed else [0]
    elif len(named) == 1 and not search.barred and len(search.runs) <= math.ceil(math.log2(search.count)) + 2:
        common, cleared = search.whole, mask
        for run in failed:
            common &= run
        for run in passed:
            cleared |= run
        wanted = [mask] if common != mask else []
        wanted += [search.whole ^ mask] if cleared != search.whole or not passed else []
    elif best.kind == "all":
        wanted = [run for one in named for run in _flipped(search, one, mask)]
        wanted += _nearest(search, mask, mask, True) or _beside(search, mask)
    else:
        wanted = [run for one in named for run in _nearest(search, one, mask, True)]
        wanted += _nearest(search, search.whole ^ mask, mask, False)
    return wanted


def _flipped(search: Search, one: int, mask: int) -> list[int]:
    """Return the run in which a factor of `mask` is flipped, and that is wanted to pass; none where that is known, one
    that is not to be made where it cannot be known.
    """
    failed, passed = search.ends(True), search.ends(False)
    if search.whole ^ one not in search.barred:
        return [search.whole ^ one] if search.whole ^ one not in passed else []
    if any(run & mask == mask ^ one and run | one in failed for run in passed):
        return []
    pairs = [run for run in _between(search, mask ^ one, search.whole ^ one) if run not in (*failed, *search.barred)]
    pairs = [run for run in pairs if run | one not in (*passed, *search.barred)]
    if not pairs:
        return [search.whole ^ one]
    best = max(pairs, key=lambda run: (usable(search, run), run | one in failed, run.bit_count()))
    return [run for run, known in ((best, passed), (best | one, failed)) if run not in known]


def _nearest(search: Search, goal: int, mask: int, fails: bool) -> list[int]:
    """Return the run that is wanted to show that `goal` fails, or passes, and none where that is known.

    Where it ends otherwise, a run will do that keeps the same of `mask`, and of which nothing more can be flipped
    towards `goal`; one that is not to be made is returned where there is none.
    """
    known = search.ends(fails)
    if goal not in search.barred:
        return [goal] if goal not in known else []
    near = [run for run in known if run & mask == goal & mask]
    if not near:
        return [goal]
    here = min(near, key=lambda run: (run ^ goal).bit_count())
    if all(here ^ 1 << index in search.barred for index in range(search.count) if (here ^ goal) >> index & 1):
        return []
    made = {*search.barred, *(run for run, _ in search.runs)}
    ways = [run for run in _between(search, here & goal, here | goal) if run not in made]
    if not ways or any(run & mask == goal & mask for run in search.ends(not fails)):
        return [goal]  # the answer does not hold in every run
    return [max(ways, key=lambda run: (usable(search, run) * (run ^ here).bit_count(), -run))]


def _beside(search: Search, mask: int) -> list[int]:
    """Return the runs not yet made that flip, alone, what had to stay beside `mask`: does it need this too?"""
    made = {*search.barred, *(run for run, _ in search.runs)}
    extra = beside(search, mask)
    flips = [search.whole ^ 1 << index for index in range(search.count) if extra >> index & 1]
    return [run for run in flips if run not in made]


def beside(search: Search, mask: int) -> int:
    """Return what was as it was beside all of `mask` in the failing run with the fewest; none without barred runs."""
    near = [run ^ mask for run in search.ends(True) if run & mask == mask]
    return min(near, key=int.bit_count) if near and search.barred else 0


def _between(search: Search, least: int, most: int) -> list[int]:
    """Return the runs that lie between two; of many factors only those in which one of these is flipped or left."""
    free = [1 << index for index in range(search.count) if (least ^ most) >> index & 1]
    if len(free) > FEW:
        return sorted({least, most, *(least | one for one in free), *(most ^ one for one in free)})
    runs = [least]
    for one in free:
        runs += [run | one for run in runs]
    return runs


def usable(search: Search, run: int) -> float:
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


def proved(search: Search, best: Found) -> bool:
    """Tell whether nothing more is wanted of a failure that always happens.

    k factors of n, two or more, are put to the proof until luck alone could not have shown them, though for no more
    than (k + 1)(log2(n) + 1) runs, those that told nothing among them.
    """
    size = len(best.factors)
    if best.rate <= CERTAIN or unproven(search, best):
        return False
    made = len(search.runs) + len(search.barred)
    return size < 2 or made >= (size + 1) * (math.log2(search.count) + 1) or not doubts(search, LUCK)
