"""Two detectors on the same pages: by how much one is better, and whether that can be chance.

The pages are drawn anew, with repetition, many times; both detectors get the same draw, so that a hard page is hard for
both (paired bootstrap; Efron 1979, and for comparisons of this kind Berg-Kirkpatrick et al. 2012). What it can tell is
how sure the difference is on pages like these; it does not know how much another seed of the training would change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ocrlab.errors import ConfigError, ShapeError
from ocrlab.evaluation.metrics.page_scores import AT, COLUMNS, DatasetScores, PageScores, widened

ROUNDS = 10_000
LEVEL = 0.95  # of all intervals that are read together
FEWEST = 5  # pages, below which an interval would be narrower than what is known
BLOCK = 4_000_000  # weights drawn at once

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PairedDifference:
    """A figure of two detectors on the same pages: `difference` is second minus first, with a confidence interval.

    `low` to `high` is that interval, of 95 % for one comparison; `ahead` is the share of draws in which the second is
    ahead, a draw without a difference counting half; `p` is two-sided. These four are NaN with fewer than 5 pages.
    """

    first: float
    second: float
    difference: float
    low: float
    high: float
    ahead: float
    p: float
    pages: int

    @property
    def verdict(self) -> str:
        """better, worse, or cannot tell: whether the whole interval lies on one side of 0."""
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "cannot tell"


def counts(page: PageScores) -> dict[str, Floats]:
    """Return for each IoU threshold (`@0.5`) what there is to add up of a page: matches, ground truths, detections."""
    total = page.counts.sum(axis=0)
    at = {name: COLUMNS.index(name) for name in ("truth", "detections", *(f"found{iou}" for iou in AT))}
    return {iou: total[[at[f"found{iou}"], at["truth"], at["detections"]]] for iou in AT}


def level(among: int) -> float:
    """Return how sure each of `among` intervals must be so that all hold together in 95 % (Bonferroni; Dunn 1961)."""
    return 1 - (1 - LEVEL) / among


def compare(
    first: npt.ArrayLike, second: npt.ArrayLike, *, among: int = 1, rounds: int = ROUNDS, seed: int = 0
) -> PairedDifference:
    """Return how hmean differs between two detectors; rows (pages, 3) as `counts` gives them, in the same order.

    Where it is one of several comparisons, `among` is how many: of twenty runs that are all the same, one would else
    be found better or worse. The interval is then wider and p larger, `ahead` stays.

    Raises ShapeError if they are not of the same pages.
    """
    first_counts, second_counts = (np.asarray(rows, dtype=np.float64).reshape(-1, 3) for rows in (first, second))
    if len(first_counts) != len(second_counts) or not np.array_equal(first_counts[:, 1], second_counts[:, 1]):
        got = f"{len(first_counts)} and {len(second_counts)} pages"
        what = "The two detectors were not judged on the same pages"
        raise ShapeError(what, got=got, need="the same pages in the same order")
    both = float(_hmean(first_counts.sum(axis=0))), float(_hmean(second_counts.sum(axis=0)))
    plain = (*both, both[1] - both[0])
    if len(first_counts) < FEWEST:
        nothing = float("nan")
        return PairedDifference(*plain, nothing, nothing, nothing, nothing, len(first_counts))
    outside = 1 - level(among)
    differences = _differences(first_counts, second_counts, rounds, np.random.default_rng(seed))
    differences = plain[2] + widened(len(first_counts), outside) * (differences - plain[2])
    differences[np.abs(differences) < 1e-12] = 0  # equal before rounding, so equal after it
    low, high = np.percentile(differences, (50 * outside, 100 - 50 * outside))
    above, below = np.count_nonzero(differences > 0), np.count_nonzero(differences < 0)
    ahead = (above + (rounds - above - below) / 2) / rounds
    p = min(1.0, among * 2 * (rounds - max(above, below) + 1) / (rounds + 1))
    return PairedDifference(*plain, float(low), float(high), float(ahead), float(p), len(first_counts))


def compare_scores(a: DatasetScores, b: DatasetScores, *, iou: float = 0.5) -> PairedDifference:
    """Compare two detectors that were scored on the same pages by their hmean at `iou` (0.5, 0.7 or 0.8).

    Raises ShapeError where the pages differ, ConfigError for another threshold.
    """
    at = f"@{iou:g}"
    if at not in AT:
        raise ConfigError("Scores cannot be compared at this IoU", got=iou, need=", ".join(label[1:] for label in AT))
    if a.pages.keys() != b.pages.keys():
        differing = sorted(a.pages.keys() ^ b.pages.keys())
        raise ShapeError(
            "The two detectors were not scored on the same pages",
            got=f"{len(differing)} pages in one of them only, such as {differing[0]!r}",
            need="the same page names in both",
        )
    return compare([counts(a.pages[name])[at] for name in a.pages], [counts(b.pages[name])[at] for name in a.pages])


def _differences(first: Floats, second: Floats, rounds: int, rng: np.random.Generator) -> Floats:
    """Return second minus first for `rounds` draws of the pages."""
    pages = len(first)
    parts: list[Floats] = []
    left = rounds
    while left:
        block = min(left, max(1, BLOCK // pages))
        weights = rng.multinomial(pages, np.full(pages, 1 / pages), size=block)
        parts.append(_hmean(weights @ second) - _hmean(weights @ first))
        left -= block
    return np.concatenate(parts)


def _hmean(sums: Floats) -> Floats:
    """Return the harmonic mean of precision and recall of sums (..., 3); 0 where there is nothing to find."""
    return np.asarray(2 * sums[..., 0] / np.maximum(sums[..., 1] + sums[..., 2], 1))


def by_page(first: Sequence[float], second: Sequence[float]) -> list[int]:
    """Return the positions of pages by their difference, the one that got worst first, then in their order."""
    return sorted(range(len(first)), key=lambda at: (second[at] - first[at], at))
