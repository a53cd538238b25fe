"""Which run to make next: the one whose end tells most (Lindley 1956, MacKay 1992).

For failures that always happen this is group testing (Dorfman 1943): one culprit of n is certain after log2(n) + 2
runs, the first of them as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ocrlab.debug.bisect import posterior as searches
from ocrlab.debug.bisect.posterior import Array, Search

EVERY_SET = 10  # factors up to which every possible run is weighed; beyond, the best neighbours of good ones
GONE = 1e-7  # share of the best answer below which one is left out of the choice
LIKELY = 0.5  # from here on an answer is put to the proof
NOTHING = 1e-6  # bits
DEAD = 1e-4  # share of the answers that always fail below which those that fail now and then decide
CLOSE = 0.995  # runs that tell nearly as much as the best: of these the one that proves most directly

Told = Callable[[Sequence[int]], Array]


def choose(search: Search, error: float = 0.05) -> int:
    """Return the run to make next: as it was until it has failed once, then the one that tells most.

    It is one that failed otherwise before where no other tells anything.
    """
    if not any(failed for _, failed in search.runs) and search.whole not in search.barred:
        return search.whole
    best = searches.found(search)
    weights = search.weights()[:-1]  # (A, R)
    halving: list[int] = []
    if search.flaky and best.kind != "other" and best.posterior >= 1 - error:
        weights = _against(search, weights, searches.doubts(search, searches.SLACK * error))
    elif not search.flaky:
        halving = [] if search.barred else _halve(search)  # its runs flip too much of what is to blame
        likely = not halving and best.posterior > LIKELY and best.kind not in ("never", "other")
        missing = [run for run in searches.unproven(search, best) if run not in search.barred] if likely else []
        if missing:
            return missing[0]
        if likely and len(best.factors) > 1 and best.posterior >= 1 - error:
            weights = _against(search, weights, searches.doubts(search, searches.LUCK))
        else:
            certain = weights * (np.array(search.rates) == 1.0)
            weights = certain if certain.sum() > DEAD else weights
    told = _teller(search, weights)
    runs, bits = (halving, told(halving)) if halving else _candidates(search, told)
    bits = bits * np.array([searches.usable(search, run) for run in runs]) if search.barred else bits
    if search.barred and bits.max() < NOTHING:
        return search.barred[0]
    close = np.flatnonzero(bits >= CLOSE * bits.max())
    return min((runs[place] for place in close), key=lambda run: (_indirect(search, run), run))


def _common(search: Search) -> tuple[int, int]:
    """Return the factors that all failing runs have in common, and those of any passing one."""
    failing, passing = search.whole, 0
    for run, failed in search.runs:
        failing, passing = (failing & run, passing) if failed else (failing, passing | run)
    return failing, passing


def _against(search: Search, weights: Array, rivals: Sequence[int]) -> Array:
    """Return weights half of which are those of the best answer, and half those of what luck may still have hidden."""
    place = int(np.argmax(weights.sum(axis=1)))
    if not rivals:
        return weights
    logs = search.likelihood[list(rivals)][:, [rate < 1 for rate in search.rates]]
    chances = np.exp(logs.max(axis=1) - logs.max())
    made = np.zeros_like(weights)
    made[place] = weights[place] / weights[place].sum()
    for rival, chance in zip(rivals, chances / chances.sum(), strict=True):
        made[rival] = chance * weights[rival] / max(weights[rival].sum(), 1e-300)
    return made / made.sum()


def _teller(search: Search, weights: Array) -> Told:
    """Return a function of runs to the bits that the end of each is expected to tell about which answer is right."""
    each = weights.sum(axis=1)
    rows = np.flatnonzero(each > GONE * each.max())
    weights, each = weights / each.sum(), each / each.sum()
    failing = weights[rows] @ np.array(search.rates)
    left = each[rows] * _entropy(failing / each[rows])

    def told(runs: Sequence[int]) -> Array:
        kept = np.array(runs)[:, None] & search.masks[rows]
        expected = np.where(search.every[rows], kept == search.masks[rows], kept != 0)
        return np.asarray(_entropy(expected @ failing) - expected @ left)

    return told


def _entropy(share: Array) -> Array:
    share = np.clip(share, 1e-12, 1 - 1e-12)
    return np.asarray(-share * np.log2(share) - (1 - share) * np.log2(1 - share))


def _candidates(search: Search, told: Told) -> tuple[list[int], Array]:
    if search.count <= EVERY_SET:
        runs = list(range(1 << search.count))
        return runs, told(runs)
    weights = search.weights()[:-1].sum(axis=1)
    marginal = [float(weights[(search.masks >> index & 1) == 1].sum()) for index in range(search.count)]
    order = sorted(range(search.count), key=lambda index: -marginal[index])
    starts = [sum(1 << index for index in order[:size]) for size in (0, 1, 2, search.count // 2)]
    starts += [search.whole ^ start for start in starts] + [search.turn.getrandbits(search.count)]
    found: dict[int, float] = {}
    for start in starts:
        _climb(told, start, search.count, found)
    return list(found), np.array(list(found.values()))


def _climb(told: Told, start: int, count: int, found: dict[int, float]) -> None:
    """Add to `found` the runs on the way from a start to one that no single flip makes better."""
    here = start
    while True:
        near = [here ^ 1 << index for index in range(count)]
        new = [run for run in (here, *near) if run not in found]
        if new:
            found.update(zip(new, told(new).tolist(), strict=True))
        best = max(near, key=found.__getitem__)
        if found[best] <= found[here]:
            return
        here = best


def _halve(search: Search) -> list[int]:
    """Return the runs that halve the single culprits in question, if all ends so far agree with there being one.

    One that always fails lies in all failing runs and in no passing one. What is certain of it in the end is that no
    other factor is needed (no other lies in all failing runs) and none would do (every other lies in a passing run).
    In the last run that halves, factors of which nothing is known go along and acquitted ones do not, so that one more
    makes both certain: log2(n) + 1 runs. In those before, all but the culprits in question are free.

    Of n = 2, 4, 8, ... this takes every end that so many runs can have: no choice of runs names a suspect sooner that
    does not name another one later (test_choice.py tries all). Of any other n there is room, which `_share` uses.
    """
    failing, passing = _common(search)
    left = [index for index in range(search.count) if (failing & ~passing) >> index & 1]
    if not left:
        return []
    if len(left) == 1:
        alone = 1 << left[0]
        if failing != alone:
            return [alone]
        return [search.whole ^ alone] if passing | alone != search.whole else []
    suspected = {index: np.exp(search.suspected[search.masks == 1 << index]).item() for index in left}
    left.sort(key=lambda index: -suspected[index])
    size = _share([suspected[index] for index in left])
    half, others = (sum(1 << index for index in part) for part in (left[:size], left[size:]))
    if size == 1:
        return [half | search.whole & ~failing & ~passing]
    free = search.whole & ~half & ~others
    if search.count > EVERY_SET:
        return [half, half | free, half | free & ~passing, half | free & passing]
    return [run | half for run in range(1 << search.count) if not run & ~free]


def _share(suspected: Sequence[float]) -> int:
    """Return how many culprits, the most suspected of which come first, bear half of all suspicion.

    No part is larger than the power of two that the larger of even halves would need, so that none takes more runs.
    """
    count, all_of_it = len(suspected), sum(suspected)
    most = 1 << (count - 1).bit_length() - 1
    sizes = range(max(1, count - most), min(most, count - 1) + 1)
    return min(sizes, key=lambda size: (round(abs(2 * sum(suspected[:size]) - all_of_it), 9), size))


def _indirect(search: Search, run: int) -> int:
    """Return how far a run is from one factor alone, as it was or flipped: these are what people believe."""
    size = run.bit_count()
    return min(abs(size - 1), abs(search.count - 1 - size))
