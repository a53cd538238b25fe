"""IoU precision, recall and hmean with ignore regions: the ICDAR 2015 protocol (Karatzas et al. 2015).

N ground-truth polygons, M detections, P points (it may differ from polygon to polygon).

Rules, as in the published evaluator:
- A detection of which more than half lies in one ignored ground truth does not count, and cannot match.
- Ground truths are visited in their order, detections in theirs; the first free pair with IoU *above* the
  threshold is a match. Neither score nor the best IoU plays a part.
- On a page without ground truth that counts, recall is 1 and precision is 1 without, 0 with detections that count.
- Over many pages, matches and counts are added up before dividing; nothing to count gives 0.

Where the evaluator drops a polygon that is not valid (self-crossing, no area) we drop it too if it is ground truth,
but count it as a miss if it is a detection: a detector must not gain from a broken polygon. Indices in the pairs are
positions in the lists that were given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ocrlab.errors import ShapeError
from ocrlab.evaluation.metrics import polygon_overlap
from ocrlab.evaluation.metrics.polygon_overlap import Floats, Indices, Mask, Polygons, Shapes, meeting, shapes

THRESHOLDS = (0.5, 0.7, 0.8)
IGNORED_SHARE = 0.5  # of a detection inside one ignored ground truth, above which the detection does not count


@dataclass(frozen=True)
class Overlaps:
    """Areas that ground truth and detections of one page share.

    Pair i is ground truth `rows[i]` and detection `columns[i]`, which share `shared[i]` square pixels (L,); pairs whose
    bounding boxes do not meet are left out. What is not valid has area 0 and takes part in no pair.
    """

    truth: Shapes
    detections: Shapes
    rows: Indices
    columns: Indices
    shared: Floats

    def iou(self) -> Floats:
        """Return intersection over union (N, M) in 0..1; 0 where a polygon is not valid."""
        union = self.truth.area[self.rows] + self.detections.area[self.columns] - self.shared
        dense = np.zeros((len(self.truth), len(self.detections)))
        dense[self.rows, self.columns] = np.minimum(self.shared / union, 1.0)
        return dense


@dataclass(frozen=True)
class PageMatch:
    """What matched what on one page.

    `pairs[t]` holds the (ground truth, detection) positions at threshold t, `iou` is (N, M), `truth_counts` (N,) and
    `detection_counts` (M,) are True where a polygon takes part in the figures.
    """

    pairs: dict[float, list[tuple[int, int]]]
    iou: Floats
    truth_counts: Mask
    detection_counts: Mask

    @property
    def cared_truth(self) -> int:
        """Number of ground truths that count."""
        return int(np.count_nonzero(self.truth_counts))

    @property
    def cared_detections(self) -> int:
        """Number of detections that count."""
        return int(np.count_nonzero(self.detection_counts))

    def matched(self, threshold: float) -> int:
        """Return the number of matches at `threshold`."""
        return len(self.pairs[threshold])

    def recall(self, threshold: float) -> float:
        """Return the share of counted ground truth that was found; 1 where there is none."""
        return page_recall(self.matched(threshold), self.cared_truth)

    def precision(self, threshold: float) -> float:
        """Return the share of counted detections that are right; without ground truth 1 if there are none."""
        return page_precision(self.matched(threshold), self.cared_detections, self.cared_truth)

    def hmean(self, threshold: float) -> float:
        """Return the harmonic mean of precision and recall."""
        return harmonic_mean(self.precision(threshold), self.recall(threshold))


def match(
    truth: Polygons, ignored: npt.ArrayLike, detections: Polygons, *, thresholds: Sequence[float] = THRESHOLDS
) -> PageMatch:
    """Match the detections of one page with its ground truth at every threshold, from one IoU matrix.

    `truth` and `detections` are polygons (P, 2) in the same pixels, `ignored` is (N,) and true where a ground truth
    does not count. Raises ShapeError if `ignored` has another length. No detection, however broken, raises.
    """
    return match_overlaps(overlaps(truth, detections), flags(ignored, len(truth)), thresholds=thresholds)


def match_overlaps(overlaps: Overlaps, skip: Mask, *, thresholds: Sequence[float] = THRESHOLDS) -> PageMatch:
    """Do the same as `match` from areas that are known; `skip` (N,) is true where a ground truth does not count."""
    inside = (overlaps.shared > IGNORED_SHARE * overlaps.detections.area[overlaps.columns]) & skip[overlaps.rows]
    detection_counts = np.ones(len(overlaps.detections), dtype=bool)
    detection_counts[overlaps.columns[inside]] = False
    truth_counts = overlaps.truth.valid & ~skip
    iou = overlaps.iou()
    allowed = iou * truth_counts[:, None] * detection_counts[None, :]
    pairs: dict[float, list[tuple[int, int]]] = {}
    for threshold in thresholds:
        free_rows, free_columns = set(range(len(iou))), set(range(len(detection_counts)))
        pairs[threshold] = []
        for row, column in np.argwhere(allowed > threshold).tolist():  # first come, first served
            if row in free_rows and column in free_columns:
                free_rows.remove(row)
                free_columns.remove(column)
                pairs[threshold].append((row, column))
    return PageMatch(pairs, iou, truth_counts, detection_counts)


def flags(ignored: npt.ArrayLike, count: int) -> Mask:
    """Return the ignore flags of `count` ground truths as (N,); raises ShapeError if there are more or fewer."""
    skip = np.asarray(ignored, dtype=bool).reshape(-1)
    if len(skip) != count:
        what = "The ignore flags do not fit the ground truth"
        raise ShapeError(what, got=f"{len(skip)} flags", need=f"{count}, one a polygon")
    return skip


def summary(pages: Sequence[PageMatch]) -> dict[str, float]:
    """Return `hmean@t`, `precision@t` and `recall@t` over all pages for each threshold, and the number of `pages`.

    Counts are added up before dividing, as the protocol does, so a page weighs as much as it has boxes.
    """
    thresholds = pages[0].pairs if pages else THRESHOLDS
    truth = sum(page.cared_truth for page in pages)
    detections = sum(page.cared_detections for page in pages)
    figures: dict[str, float] = {}
    for threshold in thresholds:
        matched = sum(page.matched(threshold) for page in pages)
        recall = matched / truth if truth else 0.0
        precision = matched / detections if detections else 0.0
        figures[f"hmean@{threshold:g}"] = harmonic_mean(precision, recall)
        figures[f"precision@{threshold:g}"] = precision
        figures[f"recall@{threshold:g}"] = recall
    figures["pages"] = float(len(pages))
    return figures


def overlaps(truth: Polygons | Shapes, detections: Polygons | Shapes, margin: float = 0.0) -> Overlaps:
    """Return the areas shared by N ground truths and M detections, polygons (P, 2) in the same pixels.

    Pairs up to `margin` pixels apart are pairs too, sharing nothing.
    """
    first, second = shapes(truth), shapes(detections)
    rows, columns = meeting(first.bounds, second.bounds, margin)
    return Overlaps(first, second, rows, columns, polygon_overlap.shared_areas(first, second, rows, columns))


def harmonic_mean(precision: float, recall: float) -> float:
    """Return 2pr / (p + r), 0 when both are 0."""
    return 2.0 * precision * recall / (precision + recall) if precision + recall else 0.0


def page_recall(matched: float, truth: float) -> float:
    """Return the share that was found of the ground truth of one page; 1 where there is none."""
    return matched / truth if truth else 1.0


def page_precision(right: float, detections: float, truth: float) -> float:
    """Return the share that is right of the detections of one page; without any 0, or 1 if there is no truth."""
    return right / detections if detections else 0.0 if truth else 1.0
