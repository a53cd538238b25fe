"""Choose the next run: the one whose end is expected to tell most (Lindley 1956, MacKay 1992).

For failures that always happen this is group testing (Dorfman 1943): one culprit of n is certain after log2(n) + 2
runs, the first of them with nothing flipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ocrlab.debug.bisect import posterior as searches
from ocrlab.debug.bisect.posterior import Array, Posterior

EVERY_SET = 10  # factors up to which every possible run is rated; with more, only neighbours of good runs
NEGLIGIBLE = 1e-7  # share of the best answer below which an answer does not count in the choice
LIKELY = 0.5  # probability from which an answer is put to the proof
NOTHING = 1e-6  # bits
DEAD = 1e-4  # share of the answers that always fail below which the flaky ones decide
CLOSE = 0.995  # share of the best run's bits; of the runs above it the one that proves most directly is chosen

Information = Callable[[Sequence[int]], Array]


def choose_run(search: Posterior, error: float = 0.05) -> int:
    """Return the next run: with nothing flipped until that has failed once, then the one that tells most.

    Where no run tells anything, it is one that failed otherwise before.
    """
    if not any(failed for _, failed in search.runs) and search.whole not in search.excluded:
        return search.whole
    best = searches.best_hypothesis(search)
    weights = search.weights()[:-1]  # (A, R)
    halving: list[int] = []
    if search.flaky and best.kind != "other" and best.posterior >= 1 - error:
        weights = _against(search, weights, searches.find_rivals(search, searches.SLACK * error))
    elif not search.flaky:
        halving = [] if search.excluded else _halve(search)  # halving flips too much of what breaks the program
        likely = not halving and best.posterior > LIKELY and best.kind not in ("never", "other")
        missing = [run for run in searches.missing_runs(search, best) if run not in search.excluded] if likely else []
        if missing:
            return missing[0]
        if likely and len(best.factors) > 1 and best.posterior >= 1 - error:
            weights = _against(search, weights, searches.find_rivals(search, searches.LUCK))
        else:
            certain = weights * (np.array(search.rates) == 1.0)
            weights = certain if certain.sum() > DEAD else weights
    information = _information(search, weights)
    runs, bits = (halving, information(halving)) if halving else _candidates(search, information)
    bits = bits * np.array([searches.usable_probability(search, run) for run in runs]) if search.excluded else bits
    if search.excluded and bits.max() < NOTHING:
        return search.excluded[0]
    close = np.flatnonzero(bits >= CLOSE * bits.max())
    return min((runs[place] for place in close), key=lambda run: (_indirect(search, run), run))


def _common(search: Posterior) -> tuple[int, int]:
    """Return the factors that all failing runs have in common, and those of any passing run."""
    failing, passing = search.whole, 0
    for run, failed in search.runs:
        failing, passing = (failing & run, passing) if failed else (failing, passing | run)
    return failing, passing


def _against(search: Posterior, weights: Array, rivals: Sequence[int]) -> Array:
    """Return weights of which the best answer has one half, and its rivals the other."""
    place = int(np.argmax(weights.sum(axis=1)))
    if not rivals:
        return weights
    logs = search.likelihood[list(rivals)][:, [rate < 1 for rate in search.rates]]
    chances = np.exp(logs.max(axis=1) - logs.max())
    opposed = np.zeros_like(weights)
    opposed[place] = weights[place] / weights[place].sum()
    for rival, chance in zip(rivals, chances / chances.sum(), strict=True):
        opposed[rival] = chance * weights[rival] / max(weights[rival].sum(), 1e-300)
    return opposed / opposed.sum()


def _information(search: Posterior, weights: Array) -> Information:
    """Return a function from runs to the bits that each is expected to tell about which answer is right."""
    each = weights.sum(axis=1)
    rows = np.flatnonzero(each > NEGLIGIBLE * each.max())
    weights, each = weights / each.sum(), each / each.sum()
    failing = weights[rows] @ np.array(search.rates)
    left = each[rows] * _entropy(failing / each[rows])

    def bits(runs: Sequence[int]) -> Array:
        unchanged = np.array(runs)[:, None] & search.masks[rows]
        expected = np.where(search.every[rows], unchanged == search.masks[rows], unchanged != 0)
        return np.asarray(_entropy(expected @ failing) - expected @ left)

    return bits


def _entropy(share: Array) -> Array:
    share = np.clip(share, 1e-12, 1 - 1e-12)
    return np.asarray(-share * np.log2(share) - (1 - share) * np.log2(1 - share))


def _candidates(search: Posterior, information: Information) -> tuple[list[int], Array]:
    if search.count <= EVERY_SET:
        runs = list(range(1 << search.count))
        return runs, information(runs)
    weights = search.weights()[:-1].sum(axis=1)
    marginal = [float(weights[(search.masks >> index & 1) == 1].sum()) for index in range(search.count)]
    order = sorted(range(search.count), key=lambda index: -marginal[index])
    starts = [sum(1 << index for index in order[:size]) for size in (0, 1, 2, search.count // 2)]
    starts += [search.whole ^ start for start in starts] + [search.turn.getrandbits(search.count)]
    bits: dict[int, float] = {}
    for start in starts:
        _climb(information, start, search.count, bits)
    return list(bits), np.array(list(bits.values()))


def _climb(information: Information, start: int, count: int, bits: dict[int, float]) -> None:
    """Add to `bits` the runs on the way from `start` to one that no single flip improves."""
    here = start
    while True:
        near = [here ^ 1 << index for index in range(count)]
        new = [run for run in (here, *near) if run not in bits]
        if new:
            bits.update(zip(new, information(new).tolist(), strict=True))
        best = max(near, key=bits.__getitem__)
        if bits[best] <= bits[here]:
            return
        here = best


def _halve(search: Posterior) -> list[int]:
    """Return the runs that halve the suspects, if all ends so far agree with a single culprit.

    A culprit that always fails lies in all failing runs and in no passing run. It is certain when no other factor lies
    in all failing runs (none is needed too) and every other lies in a passing run (none fails as well). In the last run
    that halves, untested factors go along and acquitted ones do not, so that one more run makes both certain: log2(n) +
    1 runs. In the runs before, all factors except the suspects are free.

    For n = 2, 4, 8, ... this uses every outcome that so many runs can have; no choice of runs names one suspect sooner
    and no other later (test_next_run.py tries all). For any other n there is a margin, which `_share` uses.
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
    """Return how many suspects, most suspected first, carry half of all suspicion.

    Neither part is larger than the power of two that even halves would need, so that no culprit takes more runs.
    """
    count, all_of_it = len(suspected), sum(suspected)
    most = 1 << (count - 1).bit_length() - 1
    sizes = range(max(1, count - most), min(most, count - 1) + 1)
    return min(sizes, key=lambda size: (round(abs(2 * sum(suspected[:size]) - all_of_it), 9), size))


def _indirect(search: Posterior, run: int) -> int:
    """Return how far a run is from a single factor as it was, or a single flip: these convince people."""
    size = run.bit_count()
    return min(abs(size - 1), abs(search.count - 1 - size))
