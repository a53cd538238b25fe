"""Which factors make a run fail: a posterior over all simple answers, and when one of them may be named.

A run is a set of factors left as they were, written as the bits of a whole number; all others are flipped to safe
values. An answer says: it fails where ALL of some factors are as they were (one, two, three of them; none at all means
that it fails whatever is set), or where ANY of some are (none at all: it never fails), and how often it then does.

Most failures always happen, and are proved by few runs. The first run that contradicts this, one that passes though
no more was flipped than in one that failed, raises the bar for good: from then on an answer must be so much likelier
than each other one, at whatever rate that fails, that a wrong one is named in `error` of all searches at most
(Ville 1939: a likelihood ratio ever exceeds 1/error with that probability at most, however one chooses and stops).
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

KINDS = {"always": 0.15, "never": 0.15, "other": 0.0005}  # before the first run; the rest:
SIZES = {1: 0.53, 2: 0.15, 3: 0.012}  # how many factors it takes, each half of them ALL and half ANY
RATES = {1.0: 0.88, **dict.fromkeys((0.9, 0.7, 0.5, 0.3, 0.2, 0.1), 0.02)}  # how often it fails
CHANCE = 0.001  # of the same failure where an answer expects none: nothing is ever quite impossible
UNPROVEN = ("always", "never", "other")  # answers that name no factor
OFTEN = 14  # runs as it was that pass before a failure counts as gone: of one in five such a row is rarer than 1 in 20

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

    def weights(self) -> Array:
        """Return (A + 1, R) posteriors, that sum to 1; in the last row the first is that of no answer at all."""
        logs = self.prior + self.likelihood
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
    for size, mass in SIZES.items():
        chosen = list(itertools.combinations(range(len(suspicion)), size))
        shares = [math.prod(suspicion[index] for index in group) for group in chosen]
        for group, part in zip(chosen, shares, strict=True):
            mask = sum(1 << index for index in group)
            for every in (True,) if size == 1 else (True, False):
                answers.append(Answer(mask, every))
                prior.append(mass * part / sum(shares) / (1 if size == 1 else 2))
    logs = np.log(np.outer(np.array(prior) / sum(prior), list(known.values())))
    nothing = math.log(KINDS["other"])
    return Search(len(suspicion), answers, list(known), logs, np.zeros_like(logs), nothing, rate not in (None, 1.0))


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
        search.prior -= np.log(np.exp(search.prior).sum())


def bar(search: Search, run: int) -> None:
    """Take in that a run failed in another way: it tells nothing, and is not made again."""
    search.barred.append(run)


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
    if best.kind == "other":
        return True
    return not len(rivals(search, error)) if search.flaky else not unproven(search, best)


def rivals(search: Search, error: float) -> Array:
    """Return the places of the answers that luck could still have hidden behind the best one, the likeliest first.

    Each is taken at the rate that speaks most for it; the best one at no rate that was chosen afterwards.
    """
    place = int(np.argmax(search.weights()[:-1].sum(axis=1)))
    own = (search.prior + search.likelihood)[place]
    score = own.max() + math.log(np.exp(own - own.max()).sum())
    chances = search.likelihood[:, np.isfinite(search.prior[0])].max(axis=1)
    chances[place] = -np.inf
    near = np.flatnonzero(chances > score + math.log(error))
    return np.asarray(near[np.argsort(-chances[near], kind="stable")])


def unproven(search: Search, best: Found) -> list[int]:
    """Return the runs that are wanted before an answer is named of a failure that always happens.

    ALL: alone they fail, and with any one of them flipped, and nothing else, it passes. ANY: each alone fails, and with
    all of them flipped it passes. This proves it, however involved the truth may be, as long as flips only help. For
    one factor less does, so that it takes log2(n) + 2 runs: it alone lies in all failing runs, in no passing one.
    """
    named = [1 << index for index in best.factors]
    mask, failed, passed = sum(named), search.ends(True), search.ends(False)
    if not named:
        wanted = [] if 0 in failed else [0]
    elif len(named) == 1:
        common, cleared = search.whole, mask
        for run in failed:
            common &= run
        for run in passed:
            cleared |= run
        wanted = [mask] if common != mask else []
        wanted += [search.whole ^ mask] if cleared != search.whole else []
    elif best.kind == "all":
        wanted = [search.whole ^ one for one in named if search.whole ^ one not in passed]
        wanted += [mask] if mask not in failed else []
    else:
        wanted = [one for one in named if one not in failed]
        wanted += [search.whole ^ mask] if search.whole ^ mask not in passed else []
    return [run for run in wanted if run not in search.barred]
