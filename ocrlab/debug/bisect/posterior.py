"""Which factors make a run fail: a posterior over all simple answers, and when one of them may be named.

A run is a set of factors left as they were, written as the bits of an integer; all other factors have safe values. An
answer is a set of one to three factors and how often it fails: where ALL of them are as they were (no factors: whatever
is set), or where ANY of them is (no factors: never).

Most failures always happen and are proved by few runs. One run that passes with no more flips than a failing run shows
a flaky failure. From then on a sequential test decides: the best answer must be so much likelier than every rival, at
the rival's best rate, that a wrong one is named in `error` of all searches at most (Ville 1939: a likelihood ratio ever
exceeds 1/error with that probability at most, whatever the choice of runs and the stopping rule).

A run that ends otherwise is no evidence about the failure, but limits what can be proved. An answer becomes less likely
for each of its factors whose flip only such runs would show, and is not named before two runs that differ in that
factor alone ended as it says. So a second bug behind the first one hides nothing, and a factor whose flip breaks the
program does not keep another one from being named.

For failures that always happen, suspicion only orders the halves; as a prior it named wrong pairs. For flaky failures
it is part of the prior, which saves runs.
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
CHANCE = 0.001  # probability of the same failure where an answer expects none
CERTAIN = 0.9  # rate above which a failure counts as one that always happens
OFTEN = 14  # passing runs with nothing flipped before a failure counts as gone; one in five passes 14 times in 1 of 20
LUCK = 0.3  # likelihood ratio to the best answer below which a rival is dismissed
FEW = 10  # factors up to which every run between two is considered
HINDERED = 0.1  # factor on the likelihood of an answer for each of its factors that no run shows
SLACK = 12.0  # Ville's bound adds up all rivals; in simulations this factor still keeps the error

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
class Posterior:
    """The state after some runs: log prior and log likelihood of each answer (A) at each rate (R).

    `misfit` is the logarithm of prior times likelihood of "none of these answers".
    """

    count: int
    answers: list[Answer]
    rates: list[float]
    prior: Array  # (A, R)
    likelihood: Array  # (A, R)
    suspected: Array  # (A,) log of suspicion relative to other answers of as many factors; in the prior once flaky
    misfit: float
    flaky: bool  # it does not always fail
    runs: list[tuple[int, bool]] = field(default_factory=list)
    excluded: list[int] = field(default_factory=list)  # runs that failed otherwise
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
        unchanged = np.array(runs)[:, None] & self.masks
        return np.where(self.every, unchanged == self.masks, unchanged != 0)

    @property
    def hindrance(self) -> Array:
        """Return (A,) the logarithm of the penalty on answers whose proving runs ended otherwise; 0 for most.

        ALL: the flip of one factor alone ended otherwise, and no run passed with just this factor of the answer
        flipped. ANY: one factor alone ended otherwise, and no such run failed. For flaky failures such an answer is
        left out until any run without the factor has passed.
        """
        hindrances, passed, failed = np.zeros(len(self.answers)), self.ends(False), self.ends(True)
        for bit in (1 << index for index in range(self.count)) if self.excluded else ():
            rest = self.masks ^ bit
            if self.whole ^ bit in self.excluded:
                shown = any(not run & bit for run in passed) if self.flaky else self._contains(passed, rest)
                hindrances += (self.every | self.flaky) & (self.masks & bit != 0) & ~np.asarray(shown)
            alone = ~self.every & (rest & bit == 0) & (rest != 0)
            hindrances += alone & self._contains(self.excluded, bit) & ~self._contains(failed, bit)
        return np.where(hindrances > 0, -np.inf, 0.0) if self.flaky else math.log(HINDERED) * hindrances

    def _contains(self, runs: Sequence[int], wanted: Array | int) -> Array:
        """Return (A,) whether any of the runs leaves just the `wanted` factors of an answer as they were."""
        return np.asarray(((np.array(runs, int)[:, None] & self.masks) == wanted).any(axis=0))

    def weights(self) -> Array:
        """Return (A + 1, R) posteriors that sum to 1; the first of the last row belongs to "none of these"."""
        logs = self.prior + self.likelihood + self.hindrance[:, None]
        logs = np.vstack([logs, np.full(len(self.rates), -np.inf)])
        logs[-1, 0] = self.misfit
        raised = np.exp(logs - logs.max())
        return np.asarray(raised / raised.sum())


@dataclass(frozen=True)
class Hypothesis:
    """The best answer: `kind` is all, any, always, never or other; its factors by place; its posterior and rate."""

    kind: str
    factors: tuple[int, ...]
    posterior: float
    rate: float


def begin_search(suspicion: Sequence[float], rate: float | None = None) -> Posterior:
    """Return the state before the first run; `suspicion` is relative, above 0; `rate` is how often it fails or None."""
    rates = dict.fromkeys(sorted({0.7 * rate, rate, min(1.0, 1.3 * rate)}), 1 / 3) if rate else RATES
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
    logs = np.log(np.outer(np.array(prior) / sum(prior), list(rates.values())))
    nothing, flaky, none = math.log(KINDS["other"]), rate not in (None, 1.0), np.zeros_like(logs)
    search = Posterior(len(suspicion), answers, list(rates), logs, none, np.array(suspected), nothing, flaky)
    if flaky:
        _suspect(search)
    return search


def add_run(search: Posterior, run: int, failed: bool) -> None:
    """Add the end of a run."""
    rates = np.maximum(search.rates, CHANCE) * (1 - CHANCE)
    fails = np.where(search.expects([run])[0][:, None], rates, CHANCE)  # (A, R)
    search.likelihood += np.log(fails if failed else 1 - fails)
    before = [end for other, end in search.runs if other == run]
    same_end = before.count(failed)  # no answer at all: each run has a rate of its own (Krichevsky, Trofimov 1981)
    search.misfit += math.log((same_end + 0.5) / (len(before) + 1))
    search.runs.append((run, failed))
    passed = search.ends(False)
    if not search.flaky and any(less & more == less for less in search.ends(True) for more in passed):
        search.flaky = True
        if 1.0 in search.rates:
            search.prior[:, search.rates.index(1.0)] = -np.inf
        _suspect(search)


def exclude(search: Posterior, run: int) -> None:
    """Add a run that failed in another way; it is not repeated."""
    search.excluded.append(run)


def _suspect(search: Posterior) -> None:
    """Multiply the prior by the suspicion."""
    search.prior += search.suspected[:, None]
    search.prior -= np.log(np.exp(search.prior).sum())


def best_hypothesis(search: Posterior) -> Hypothesis:
    """Return the most probable answer."""
    return rank_hypotheses(search)[0]


def rank_hypotheses(search: Posterior, count: int = 1) -> list[Hypothesis]:
    """Return the `count` most probable answers, best first."""
    weights = search.weights()
    places = np.argsort(-weights.sum(axis=1), kind="stable")[:count]
    return [_hypothesis(search, int(place), weights[place]) for place in places]


def _hypothesis(search: Posterior, place: int, weights: Array) -> Hypothesis:
    posterior = float(weights.sum())
    if place == len(search.answers):
        return Hypothesis("other", (), posterior, 0.0)
    answer = search.answers[place]
    factors = tuple(index for index in range(search.count) if answer.mask >> index & 1)
    kind = ("all" if answer.every else "any") if factors else ("always" if answer.every else "never")
    return Hypothesis(kind, factors, posterior, float(weights @ search.rates) / max(posterior, 1e-300))


def is_settled(search: Posterior, error: float) -> bool:
    """Tell whether the best answer is probable enough and proved as its kind of failure demands."""
    best = best_hypothesis(search)
    if best.kind == "never":  # a rare failure stays improbable for long
        return len(search.runs) >= OFTEN and not any(failed for _, failed in search.runs)
    if best.posterior < 1 - error:
        return False
    if best.kind == "always" and search.flaky and search.excluded and not _each_flipped(search):
        return False  # a factor that could not be flipped may be the culprit
    return best.kind == "other" or (not find_rivals(search, SLACK * error) if search.flaky else is_proved(search, best))


def _each_flipped(search: Posterior) -> bool:
    """Tell whether each factor was flipped in a run that failed."""
    return all(any(not run >> index & 1 for run in search.ends(True)) for index in range(search.count))


def find_rivals(search: Posterior, error: float) -> list[int]:
    """Return the indices of the answers that chance may still hide behind the best one, likeliest first.

    Each rival counts at its best rate below 1, the best answer at the average over its rates.
    """
    place = int(np.argmax(search.weights()[:-1].sum(axis=1)))
    own = (search.prior + search.likelihood)[place]
    score = own.max() + math.log(np.exp(own - own.max()).sum())
    chances = search.likelihood[:, [rate < 1 for rate in search.rates]].max(axis=1)
    chances[place] = -np.inf
    chances[search.hindrance < 0] = -np.inf
    near = np.flatnonzero(chances > score + math.log(error))
    return [int(place_of) for place_of in near[np.argsort(-chances[near], kind="stable")]]


def missing_runs(search: Posterior, best: Hypothesis) -> list[int]:
    """Return the runs still missing before an answer to a failure that always happens can be named.

    ALL: the factors alone fail, and each flip alone passes. ANY: each factor alone fails, and all flipped together
    pass. That is a proof as long as flips only help. For one factor, less is enough within the first log2(n) + 2 runs:
    it lies in all failing runs, and every other factor in a passing run. Where a single flip ends otherwise, two other
    runs that differ in nothing else show what it does. Where the factors alone end otherwise, they need what must stay
    with them.
    """
    named = [1 << index for index in best.factors]
    mask, failed, passed = sum(named), search.ends(True), search.ends(False)
    if not named:
        return [] if 0 in failed else [0]
    elif len(named) == 1 and not search.excluded and len(search.runs) <= math.ceil(math.log2(search.count)) + 2:
        common, cleared = search.whole, mask
        for run in failed:
            common &= run
        for run in passed:
            cleared |= run
        wanted = [mask] if common != mask else []
        wanted += [search.whole ^ mask] if cleared != search.whole or not passed else []
    elif best.kind == "all":
        wanted = [run for bit in named for run in _flipped(search, bit, mask)]
        wanted += _nearest(search, mask, mask, True) or _extra_flips(search, mask)
    else:
        wanted = [run for bit in named for run in _nearest(search, bit, mask, True)]
        wanted += _nearest(search, search.whole ^ mask, mask, False)
    return wanted


def _flipped(search: Posterior, bit: int, mask: int) -> list[int]:
    """Return the missing runs that show that the flip `bit` of `mask` passes; an excluded run where nothing can show
    it.
    """
    failed, passed = search.ends(True), search.ends(False)
    if search.whole ^ bit not in search.excluded:
        return [search.whole ^ bit] if search.whole ^ bit not in passed else []
    if any(run & mask == mask ^ bit and run | bit in failed for run in passed):
        return []
    pairs = [run for run in _between(search, mask ^ bit, search.whole ^ bit) if run not in (*failed, *search.excluded)]
    pairs = [run for run in pairs if run | bit not in (*passed, *search.excluded)]
    if not pairs:
        return [search.whole ^ bit]
    best = max(pairs, key=lambda run: (usable_probability(search, run), run | bit in failed, run.bit_count()))
    return [run for run, runs in ((best, passed), (best | bit, failed)) if run not in runs]


def _nearest(search: Posterior, goal: int, mask: int, fails: bool) -> list[int]:
    """Return the run needed to show that `goal` fails (or passes); [] if that is known.

    Where `goal` ends otherwise, a run with the same factors of `mask` is enough if no further flip towards `goal` is
    possible. If there is none, `goal` itself is returned.
    """
    shown = search.ends(fails)
    if goal not in search.excluded:
        return [goal] if goal not in shown else []
    near = [run for run in shown if run & mask == goal & mask]
    if not near:
        return [goal]
    here = min(near, key=lambda run: (run ^ goal).bit_count())
    if all(here ^ 1 << index in search.excluded for index in range(search.count) if (here ^ goal) >> index & 1):
        return []
    tried = {*search.excluded, *(run for run, _ in search.runs)}
    candidates = [run for run in _between(search, here & goal, here | goal) if run not in tried]
    if not candidates or any(run & mask == goal & mask for run in search.ends(not fails)):
        return [goal]  # the answer does not hold in every run
    return [max(candidates, key=lambda run: (usable_probability(search, run) * (run ^ here).bit_count(), -run))]


def _extra_flips(search: Posterior, mask: int) -> list[int]:
    """Return the untried runs that each flip one of the extra factors of `mask`: are these needed as well?"""
    tried = {*search.excluded, *(run for run, _ in search.runs)}
    extra = extra_factors(search, mask)
    flips = [search.whole ^ 1 << index for index in range(search.count) if extra >> index & 1]
    return [run for run in flips if run not in tried]


def extra_factors(search: Posterior, mask: int) -> int:
    """Return the other factors left as they were in the smallest failing run with all of `mask`; 0 without excluded
    runs.
    """
    near = [run ^ mask for run in search.ends(True) if run & mask == mask]
    return min(near, key=int.bit_count) if near and search.excluded else 0


def _between(search: Posterior, least: int, most: int) -> list[int]:
    """Return the runs between two; of many factors only those with a single factor flipped or left."""
    free = [1 << index for index in range(search.count) if (least ^ most) >> index & 1]
    if len(free) > FEW:
        return sorted({least, most, *(least | bit for bit in free), *(most ^ bit for bit in free)})
    runs = [least]
    for bit in free:
        runs += [run | bit for run in runs]
    return runs


def usable_probability(search: Posterior, run: int) -> float:
    """Return how probably a run does not fail otherwise: some flip of each excluded run breaks the program."""
    if not search.excluded:
        return 1.0
    if run in search.excluded:
        return 0.0
    cleared = 0
    for other, _ in search.runs:
        cleared |= search.whole & ~other
    usable = 1.0
    for other in search.excluded:
        blamed = search.whole & ~other & ~cleared
        flipped = (blamed & ~run).bit_count()
        usable *= 1 - 0.9 * flipped / max(1, blamed.bit_count())
    return usable


def is_proved(search: Posterior, best: Hypothesis) -> bool:
    """Tell whether an answer to a failure that always happens is proved.

    Two or more factors also need the absence of rivals, for (k + 1)(log2(n) + 1) runs at most, where k of n are named.
    """
    size = len(best.factors)
    if best.rate <= CERTAIN or missing_runs(search, best):
        return False
    count = len(search.runs) + len(search.excluded)
    return size < 2 or count >= (size + 1) * (math.log2(search.count) + 1) or not find_rivals(search, LUCK)
