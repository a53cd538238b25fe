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
import shapely

from ocrlab.errors import ShapeError

THRESHOLDS = (0.5, 0.7, 0.8)
IGNORED_SHARE = 0.5  # of a detection inside one ignored ground truth, above which the detection does not count
SMALLEST = 1e-9  # square pixels; less is no area
LARGEST = 1e9  # pixels; a coordinate beyond it is no place on a page, and its square could overflow

Polygons = Sequence[npt.ArrayLike]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Overlaps:
    """Areas that ground truth and detections of one page share.

    `intersection` (N, M), `truth_area` (N,) and `detection_area` (M,) are in square pixels; what is not valid has area
    0 and is False in `truth_valid` (N,) or `detection_valid` (M,).
    """

    intersection: Floats
    truth_area: Floats
    detection_area: Floats
    truth_valid: Mask
    detection_valid: Mask

    def iou(self) -> Floats:
        """Return intersection over union (N, M) in 0..1; 0 where a polygon is not valid."""
        union = self.truth_area[:, None] + self.detection_area[None, :] - self.intersection
        return np.minimum(np.divide(self.intersection, union, out=np.zeros_like(union), where=union > 0), 1.0)


@dataclass(frozen=True)
class PageMatch:
    """What matched what on one page, at each of `thresholds`.

    `pairs[t]` holds (ground truth, detection) positions, `iou` is (N, M), `truth_counts` (N,) and `detection_counts`
    (M,) are True where a polygon takes part in the figures.
    """

    thresholds: tuple[float, ...]
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
        return self.matched(threshold) / self.cared_truth if self.cared_truth else 1.0

    def precision(self, threshold: float) -> float:
        """Return the share of counted detections that are right; without ground truth 1 if there are none."""
        if self.cared_detections:
            return self.matched(threshold) / self.cared_detections
        return 0.0 if self.cared_truth else 1.0

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
    skip = np.asarray(ignored, dtype=bool).reshape(-1)
    if len(skip) != len(truth):
        raise ShapeError(
            "The ignore flags do not fit the ground truth",
            got=f"{len(skip)} flags",
            need=f"{len(truth)}, one a polygon",
        )
    found = overlaps(truth, detections)
    covered = found.intersection[skip & found.truth_valid] > IGNORED_SHARE * found.detection_area
    truth_counts = found.truth_valid & ~skip
    detection_counts: Mask = np.logical_not(np.any(covered, axis=0)).reshape(-1)
    iou = found.iou()
    allowed = iou * truth_counts[:, None] * detection_counts[None, :]
    pairs = {threshold: greedy(allowed, threshold) for threshold in thresholds}
    return PageMatch(tuple(thresholds), pairs, iou, truth_counts, detection_counts)


def summary(pages: Sequence[PageMatch]) -> dict[str, float]:
    """Return `hmean@t`, `precision@t` and `recall@t` over all pages for each threshold, and the number of `pages`.

    Counts are added up before dividing, as the protocol does, so a page weighs as much as it has boxes.
    """
    thresholds = pages[0].thresholds if pages else THRESHOLDS
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


def overlaps(truth: Polygons, detections: Polygons) -> Overlaps:
    """Return the areas shared by N ground truths and M detections, polygons (P, 2) in the same pixels.

    Only pairs whose bounding boxes meet are intersected, all in one call.
    """
    shapes, valid = shapes_of([*truth, *detections])
    area = np.where(valid, shapely.area(shapes), 0.0)
    left, top, right, bottom = shapely.bounds(shapes).T  # NaN where not valid, which meets nothing
    n = len(truth)
    wide = np.minimum.outer(right[:n], right[n:]) > np.maximum.outer(left[:n], left[n:])
    high = np.minimum.outer(bottom[:n], bottom[n:]) > np.maximum.outer(top[:n], top[n:])
    rows, columns = np.nonzero(wide & high)
    shared = np.zeros((n, len(detections)))
    shared[rows, columns] = shapely.area(shapely.intersection(shapes[rows], shapes[n + columns]))
    return Overlaps(shared, area[:n], area[n:], valid[:n], valid[n:])


def shapes_of(polygons: Polygons) -> tuple[npt.NDArray[np.object_], Mask]:
    """Return shapely polygons (None where not valid) and whether each is valid.

    Valid means at least 3 points, all finite, that enclose an area and do not cross.
    """
    points = [as_points(polygon) for polygon in polygons]
    sizes = np.array([len(p) for p in points], dtype=np.intp)
    every = np.concatenate([np.empty((0, 2)), *points])
    owner = np.repeat(np.arange(len(points)), sizes)
    usable = sizes >= 3
    usable[owner[~(np.abs(every) <= LARGEST).all(axis=1)]] = False  # NaN compares false
    shapes = np.full(len(points), None, dtype=object)
    if usable.any():
        kept = usable[owner]
        rings = shapely.linearrings(every[kept], indices=(np.cumsum(usable) - 1)[owner[kept]])
        shapes[usable] = shapely.polygons(rings)
    valid = shapely.is_valid(shapes) & (shapely.area(shapes) > SMALLEST)
    shapes[~valid] = None
    return shapes, valid


def as_points(polygon: npt.ArrayLike) -> Floats:
    """Return a polygon as (P, 2) float64, or (0, 2) when it is not a list of points."""
    try:
        points = np.asarray(polygon, dtype=np.float64)
    except (TypeError, ValueError):  # ragged, or not numbers
        return np.empty((0, 2))
    return points if points.ndim == 2 and points.shape[1] == 2 else np.empty((0, 2))


def greedy(iou: Floats, threshold: float) -> list[tuple[int, int]]:
    """Return the pairs of an IoU matrix (N, M) above `threshold`, first come first served in row, then column order."""
    taken_rows: set[int] = set()
    taken_columns: set[int] = set()
    pairs = []
    rows, columns = np.nonzero(iou > threshold)
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        if row not in taken_rows and column not in taken_columns:
            taken_rows.add(row)
            taken_columns.add(column)
            pairs.append((row, column))
    return pairs


def harmonic_mean(precision: float, recall: float) -> float:
    """Return 2pr / (p + r), 0 when both are 0."""
    return 2.0 * precision * recall / (precision + recall) if precision + recall else 0.0
