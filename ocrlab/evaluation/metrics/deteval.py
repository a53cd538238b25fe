"""DetEval with the rules of SROIE 2019, task 1: upright boxes, one to one, one to many and many to one.

N ground truths, M detections. Wolf and Jolion 2006, Object count / area graphs; the rules and numbers are those of the
evaluator that the Robust Reading Competition published for SROIE (TL4p_deteval, version 1.0) after that of ICDAR 2013:
- A polygon stands for its bounding box, whose edges are pixels: a box from 3 to 3 is one pixel wide.
- A detection of which more than 0.4 lies in one ignored ground truth does not count.
- A pair fits if 0.8 of the ground truth and 0.4 of the detection are shared. It matches one to one if neither fits
  anything else nor touches anything else that counts, and the centres are nearer than the mean of the diagonals.
- A ground truth of which detections, each at least 0.4 inside it, together cover 0.8 matches all of these: it then
  earns 0.8, and each of them 0.8. A detection that covers several ground truths by 0.8 each, which together fill 0.4
  of it, matches all of them, and all earn 1. Where only one is left, that one earns 1.
- Ground truths first, then detections, each in their order, and what has matched is gone. Over many pages, what was
  earned and what counts is added up before dividing.

As in iou.py, what is not valid is left out if it is ground truth, and a miss if it is a detection; and a page without
anything to find has recall 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ocrlab.evaluation.metrics.iou import flags, harmonic_mean, page_precision, page_recall
from ocrlab.evaluation.metrics.polygon_overlap import Floats, Indices, Mask, Polygons, Shapes, meeting, shapes

RECALL, PRECISION = 0.8, 0.4  # shares of the ground truth and of the detection that a match needs
SPLIT = 0.8  # what a ground truth found in pieces earns, and each piece


@dataclass(frozen=True)
class PageAreas:
    """What ground truth (N,) and detections (M,) of one page earned, 0..1 each, and which of them count."""

    truth: Floats
    detections: Floats
    truth_counts: Mask
    detection_counts: Mask

    @property
    def recall(self) -> float:
        """What counted ground truth earned on average; 1 where there is none."""
        return page_recall(float(self.truth.sum()), int(self.truth_counts.sum()))

    @property
    def precision(self) -> float:
        """What counted detections earned on average; without ground truth 1 if there are none."""
        counts = int(self.detection_counts.sum()), int(self.truth_counts.sum())
        return page_precision(float(self.detections.sum()), *counts)

    @property
    def hmean(self) -> float:
        """Harmonic mean of precision and recall."""
        return harmonic_mean(self.precision, self.recall)


@dataclass(frozen=True)
class _Shares:
    """Pairs that touch: ground truth `rows[i]`, detection `columns[i]`, and the share of each that both have."""

    rows: Indices
    columns: Indices
    recall: Floats
    precision: Floats


def judge(truth: Polygons | Shapes, ignored: npt.ArrayLike, detections: Polygons | Shapes) -> PageAreas:
    """Return what was earned on one page; polygons (P, 2) in the same pixels, `ignored` (N,) true where not counted.

    Raises ShapeError if `ignored` has another length; no detection, however broken, raises.
    """
    first, second, skip = shapes(truth), shapes(detections), flags(ignored, len(truth))
    rows, columns = meeting(first.bounds, second.bounds, margin=1.0)  # a pixel, or part of one, in common
    a, b = first.bounds[rows], second.bounds[columns]
    size = np.minimum(a[:, 2:], b[:, 2:]) - np.maximum(a[:, :2], b[:, :2]) + 1
    (wide, high), (other_wide, other_high) = (a[:, 2:] - a[:, :2] + 1).T, (b[:, 2:] - b[:, :2] + 1).T
    shared = size[:, 0] * size[:, 1]
    pairs = _Shares(rows, columns, shared / (wide * high), shared / (other_wide * other_high))
    counts = np.ones(len(second), dtype=bool)
    counts[columns[skip[rows] & (pairs.precision > PRECISION)]] = False
    page = PageAreas(np.zeros(len(first)), np.zeros(len(second)), first.valid & ~skip, counts)
    distance = np.hypot(*((a[:, :2] + a[:, 2:] - b[:, :2] - b[:, 2:]) / 2).T)
    near = 2 * distance < np.hypot(wide, high) + np.hypot(other_wide, other_high)
    _match_single(page, pairs, near)
    _match_split(page, pairs)
    _match_merged(page, pairs)
    return page


def _match_single(page: PageAreas, pairs: _Shares, near: Mask) -> None:
    """Write into `page` what pairs without rivals earn; `near` tells whose centres are near each other."""
    rows, columns = pairs.rows, pairs.columns
    fits = (pairs.recall >= RECALL) & (pairs.precision >= PRECISION)
    both = page.truth_counts[rows] & page.detection_counts[columns]
    touched_truth, touched = _touched(page, pairs)
    alone = (_count(rows, fits, page.truth)[rows] == 1) & (_count(columns, fits, page.detections)[columns] == 1)
    single = (touched_truth[rows] == 1) & (touched[columns] == 1)
    chosen = fits & both & alone & single & near
    page.truth[rows[chosen]] = 1.0
    page.detections[columns[chosen]] = 1.0


def _match_split(page: PageAreas, pairs: _Shares) -> None:
    """Write into `page` what ground truth found in pieces earns, and the pieces."""
    touched, _ = _touched(page, pairs)
    inside = page.detection_counts[pairs.columns] & (pairs.precision >= PRECISION)
    for row in np.unique(pairs.rows[inside & (page.truth_counts & (touched >= 2))[pairs.rows]]).tolist():
        if page.truth[row]:
            continue
        mine = np.flatnonzero(inside & (pairs.rows == row))
        mine = mine[page.detections[pairs.columns[mine]] == 0]
        if round(sum(pairs.recall[mine].tolist()), 4) >= RECALL:
            page.truth[row] = page.detections[pairs.columns[mine]] = 1.0 if len(mine) == 1 else SPLIT


def _match_merged(page: PageAreas, pairs: _Shares) -> None:
    """Write into `page` what several ground truths under one detection earn, and that detection."""
    _, touched = _touched(page, pairs)
    inside = page.truth_counts[pairs.rows] & (pairs.recall >= RECALL)
    for column in np.unique(pairs.columns[inside & (page.detection_counts & (touched >= 2))[pairs.columns]]).tolist():
        if page.detections[column]:
            continue
        mine = np.flatnonzero(inside & (pairs.columns == column))
        mine = mine[page.truth[pairs.rows[mine]] == 0]
        if round(sum(pairs.precision[mine].tolist()), 4) >= PRECISION:
            page.truth[pairs.rows[mine]] = page.detections[column] = 1.0


def _touched(page: PageAreas, pairs: _Shares) -> tuple[Indices, Indices]:
    """Return how many counted detections touch each ground truth (N,), and how many counted truths each detection."""
    truth = _count(pairs.rows, page.detection_counts[pairs.columns], page.truth)
    return truth, _count(pairs.columns, page.truth_counts[pairs.rows], page.detections)


def _count(places: Indices, chosen: Mask, every: Floats) -> Indices:
    return np.bincount(places[chosen], minlength=len(every))
