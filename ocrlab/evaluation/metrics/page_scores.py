"""One page judged by all three protocols at once, and many pages added up: IoU, DetEval and CLEval, also by text size.

N ground truths, M detections. A box belongs to the size of its short side in pixels of the page, that is the height of
its text: small below 16, medium below 32, large from there on. A detection belongs to the size of the counted ground
truth that it shares most area with, and to its own where there is none: so the counts of the sizes add up to all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from ocrlab.errors import ShapeError
from ocrlab.evaluation.metrics import cleval, deteval, iou
from ocrlab.evaluation.metrics.iou import THRESHOLDS, harmonic_mean
from ocrlab.evaluation.metrics.polygon_overlap import Floats, Indices, Polygons, shapes, short_sides

SIZES = ("small", "medium", "large")
EDGES = (16.0, 32.0)  # pixels, where one size ends and the next begins
AT = tuple(f"@{threshold:g}" for threshold in THRESHOLDS)
SIZED = ("@0.5", "deteval_", "cleval_")  # protocols whose figures are given by size, too
# Sums over ground truth, then over detections; all that any figure needs.
TRUTH = ("truth", *(f"found{at}" for at in AT), "deteval_earned", "characters", "characters_found", "cuts", "splits")
DETECTED = ("detections", *(f"right{at}" for at in AT), "deteval_detections", "deteval_paid", "taken", "right", "false")
DETECTED += ("merges", "merged")
COLUMNS = TRUTH + DETECTED


@dataclass(frozen=True)
class PageScores:
    """One page as each protocol judged it; `truth_size` (N,) and `detection_size` (M,) are positions in SIZES."""

    iou: iou.PageMatch
    deteval: deteval.PageAreas
    cleval: cleval.PageCharacters
    truth_size: Indices
    detection_size: Indices

    @cached_property
    def counts(self) -> Floats:
        """What there is to add up (size, column), columns as in COLUMNS."""
        n, m = len(self.truth_size), len(self.detection_size)
        letters, areas = self.cleval, self.deteval
        pairs = [np.array(self.iou.pairs[t], dtype=np.intp).reshape(-1, 2) for t in THRESHOLDS]
        matched, right = ([np.bincount(p[:, side], minlength=count) for p in pairs] for side, count in ((0, n), (1, m)))
        truth = [self.iou.truth_counts, *matched, areas.truth]
        truth += [letters.truth, letters.detected, letters.cuts, letters.cuts > 0]
        detected = [self.iou.detection_counts, *right, areas.detection_counts, areas.detections]
        detected += [letters.taken, letters.right, letters.false, letters.merges, letters.merges > 0]
        by_truth, by_detection = (np.eye(len(SIZES))[size] for size in (self.truth_size, self.detection_size))
        return np.concatenate([np.array(truth) @ by_truth, np.array(detected) @ by_detection]).T

    def figures(self) -> dict[str, float]:
        """Return the figures of this page alone; with nothing to find, recall is 1, and precision 1 without finds."""
        values: dict[str, float] = {}
        for threshold, at in zip(THRESHOLDS, AT, strict=True):
            values[f"hmean{at}"] = self.iou.hmean(threshold)
            values[f"precision{at}"], values[f"recall{at}"] = self.iou.precision(threshold), self.iou.recall(threshold)
        for name, scores in (("deteval", self.deteval), ("cleval", self.cleval)):
            values |= {f"{name}_{rate}": getattr(scores, rate) for rate in ("hmean", "precision", "recall")}
        return values


def judge(
    truth: Polygons,
    ignored: npt.ArrayLike,
    texts: Sequence[str] | None,
    detections: Polygons,
) -> PageScores:
    """Judge one page: polygons (P, 2) in the same pixels, `ignored` (N,) true where a ground truth does not count.

    `texts` say how many characters each ground truth has; where all are empty, or with None, their shapes do. Raises
    ShapeError if flags or texts have another length; no polygon, however broken, raises.
    """
    skip = iou.flags(ignored, len(truth))
    boxes, detected = shapes(truth), shapes(detections)
    shared = iou.overlaps(boxes, detected)
    matched = iou.match_overlaps(shared, skip)
    transcriptions = texts if texts is not None and (len(texts) != len(truth) or any(texts)) else None
    letters = cleval.judge(boxes, skip, transcriptions, detected)
    sizes, detected_sizes = (np.searchsorted(EDGES, short_sides(shape), side="right") for shape in (boxes, detected))
    both = np.flatnonzero(matched.truth_counts[shared.rows] & (shared.shared > 0))
    both = both[np.argsort(shared.shared[both], kind="stable")]
    detected_sizes[shared.columns[both]] = sizes[shared.rows[both]]  # the last one written stays: the largest share
    return PageScores(matched, deteval.judge(boxes, skip, detected), letters, sizes, detected_sizes)


def summary(pages: Iterable[PageScores]) -> dict[str, float]:
    """Return the figures over all pages: what was found and what counts is added up before dividing.

    `hmean@T`, `precision@T`, `recall@T` for T 0.5, 0.7, 0.8; the same as `deteval_hmean` and `cleval_hmean`; those at
    0.5, of DetEval and of CLEval also by size, as `hmean@0.5/small`; `truth/small` counts the boxes; `pages`. Where
    there is nothing to count a figure is 0.
    """
    running = Running()
    for page in pages:
        running.add(page)
    return running.compute()


class Running:
    """Figures over pages that come one by one.

    `state` (size, column) holds plain sums, so that states of several processes are merged by adding them up, as
    `torch.distributed.all_reduce` does on a tensor of it.
    """

    def __init__(self) -> None:
        self.state: Floats = np.zeros((len(SIZES), len(COLUMNS) + 1))  # the last column counts pages, in row 0

    def add(self, page: PageScores) -> None:
        """Add a page that was judged."""
        self.state[:, :-1] += page.counts
        self.state[0, -1] += 1

    def compute(self) -> dict[str, float]:
        """Return the figures of all pages so far, as `summary` does."""
        values = _figures(self.state.sum(axis=0)) | {"pages": float(self.state[0, -1])}
        for size, row in zip(SIZES, self.state, strict=True):
            for name, value in _figures(row).items():
                if name.endswith(SIZED[0]) or name.startswith(SIZED[1:]):
                    values[f"{name}/{size}"] = value
            values[f"truth/{size}"] = float(row[COLUMNS.index("truth")])
        return values


def interval(pages: Sequence[PageScores], *, rounds: int = 2000, seed: int = 0) -> tuple[float, float]:
    """Return the 95 % interval of hmean@0.5 over pages drawn anew, with repetition, `rounds` times; NaN below 2 pages.

    Source: Efron 1979, Bootstrap methods; the percentile interval, with pages and not boxes as what is drawn, and as
    wide as few pages ask: that of 3 pages would else hold the truth in 70 of 100 cases.
    """
    if len(pages) < 2:
        return float("nan"), float("nan")
    columns = [COLUMNS.index(name) for name in ("found@0.5", "truth", "detections")]
    counts = np.array([page.counts[:, columns].sum(axis=0) for page in pages])
    rng = np.random.default_rng(seed)
    samples = rng.multinomial(len(pages), np.full(len(pages), 1 / len(pages)), size=rounds)
    matched, truth, detections = (samples @ counts).T
    hmean = 2 * matched / np.maximum(truth + detections, 1)  # the harmonic mean of matched / truth and of matched / all
    matched, truth, detections = counts.sum(axis=0)
    middle = 2 * matched / max(truth + detections, 1)
    ends = middle + widened(len(pages), 0.05) * (np.percentile(hmean, (2.5, 97.5)) - middle)
    low, high = np.clip(ends, 0, 1)
    return float(low), float(high)


def widened(pages: int, outside: float) -> float:
    """Return by how much draws of few pages are too close together: sqrt(n / (n - 1)) times Student's t by normal.

    Hesterberg 2015 ("expanded percentile interval"); the quantile is Cornish and Fisher's expansion, to 1 % from 5 on.
    """
    z, free = NormalDist().inv_cdf(1 - outside / 2), pages - 1
    t = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * free**3)
    return math.sqrt(pages / free) * t / z


def _figures(row: Floats) -> dict[str, float]:
    """Return every figure of one row of sums."""
    at = dict(zip(COLUMNS, row.tolist(), strict=False))
    values: dict[str, float] = {}
    for level in AT:
        values |= _three(at[f"found{level}"], at["truth"], at[f"right{level}"], at["detections"], after=level)
    values |= _three(at["deteval_earned"], at["truth"], at["deteval_paid"], at["deteval_detections"], before="deteval_")
    cuts, merges, all_taken = at["cuts"], at["merges"], at["taken"] + at["false"]
    recalled, precise = max(0.0, at["characters_found"] - cuts), max(0.0, at["right"] - merges)
    values |= _three(recalled, at["characters"], precise, all_taken, before="cleval_")
    return values


def _three(
    matched: float, truth: float, right: float, detections: float, *, before: str = "", after: str = ""
) -> dict[str, float]:
    recall = matched / truth if truth else 0.0
    precision = right / detections if detections else 0.0
    values = {"hmean": harmonic_mean(precision, recall), "precision": precision, "recall": recall}
    return {f"{before}{name}{after}": value for name, value in values.items()}


@dataclass(frozen=True)
class DatasetScores:
    """Every page that was judged, by name, how many were left out, and the seconds that it took."""

    pages: Mapping[str, PageScores]
    skipped: int = 0
    seconds: float = 0.0

    def record(self) -> dict[str, float]:
        """Return the figures over all pages as `summary` names them, `hmean@0.5_low` and `_high`, skipped, seconds."""
        low, high = interval(list(self.pages.values()))
        ends = {"hmean@0.5_low": low, "hmean@0.5_high": high}
        return {**summary(self.pages.values()), **ends, "skipped": float(self.skipped), "seconds": self.seconds}

    def rows(self) -> list[dict[str, str | float]]:
        """Return one row a page, in order: its name, its boxes (`truth`, `detections`, both that count), its figures.

        `missed` and `false` are counted boxes without a partner at IoU 0.5.
        """
        rows: list[dict[str, str | float]] = []
        for name, page in self.pages.items():
            truth, detections, matched = page.iou.cared_truth, page.iou.cared_detections, page.iou.matched(0.5)
            boxes = {"truth": truth, "detections": detections, "missed": truth - matched, "false": detections - matched}
            rows.append({"page": name, **boxes, **page.figures()})
        return rows

    def worst(self, count: int = 5) -> list[dict[str, str | float]]:
        """Return the `count` rows of lowest hmean@0.5, then of lowest CLEval, worst first."""
        return sorted(self.rows(), key=lambda row: (row["hmean@0.5"], row["cleval_hmean"], row["page"]))[:count]


def score(pages: Mapping[str, tuple[Any, ...]]) -> DatasetScores:
    """Score detections against the ground truth of the same pages: IoU hmean, DetEval and CLEval.

    `pages` maps the name of a page to (truth, detections) or (truth, detections, ignored): two lists of polygons
    (P, 2) in the pixels of the page, and (N,) true where a polygon of the truth does not count. Raises ShapeError for
    anything else.
    """
    start = time.perf_counter()
    judged: dict[str, PageScores] = {}
    for name, page in pages.items():
        if not isinstance(page, tuple) or len(page) not in (2, 3):
            got = f"{type(page).__name__} of {len(page)}" if hasattr(page, "__len__") else type(page).__name__
            need = "(truth, detections) or (truth, detections, ignored)"
            raise ShapeError(f"Page {name!r} cannot be scored", got=got, need=need)
        truth, detections, ignored = (*page, [False] * len(page[0]))[:3]
        judged[name] = judge(truth, ignored, None, detections)
    return DatasetScores(judged, seconds=time.perf_counter() - start)
