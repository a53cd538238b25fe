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
class _Side:
    """One side of the pairs that touch (L,): positions and shares; by position, what counts and what is earned."""

    places: Indices
    share: Floats
    counts: Mask
    earned: Floats

    def number(self, chosen: Mask) -> Indices:
        """Return in how many of the chosen pairs each polygon is."""
        return np.bincount(self.places[chosen], minlength=len(self.counts))


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
    recall, precision = shared / (wide * high), shared / (other_wide * other_high)
    counts = np.ones(len(second), dtype=bool)
    counts[columns[skip[rows] & (precision > PRECISION)]] = False
    page = PageAreas(np.zeros(len(first)), np.zeros(len(second)), first.valid & ~skip, counts)
    distance = np.hypot(*((a[:, :2] + a[:, 2:] - b[:, :2] - b[:, 2:]) / 2).T)
    near = 2 * distance < np.hypot(wide, high) + np.hypot(other_wide, other_high)
    sides = (
        _Side(rows, recall, page.truth_counts, page.truth),
        _Side(columns, precision, page.detection_counts, page.detections),
    )
    _match_single(*sides, near)
    _match_several(*sides, RECALL, PRECISION, SPLIT)
    _match_several(*sides[::-1], PRECISION, RECALL, 1.0)
    return page


def _match_single(truth: _Side, detections: _Side, near: Mask) -> None:
    """Let pairs without rivals earn 1; `near` tells whose centres are near each other."""
    rows, columns = truth.places, detections.places
    fits = (truth.share >= RECALL) & (detections.share >= PRECISION)
    alone = (truth.number(fits)[rows] == 1) & (detections.number(fits)[columns] == 1)
    counted, others_counted = truth.counts[rows], detections.counts[columns]
    single = (truth.number(others_counted)[rows] == 1) & (detections.number(counted)[columns] == 1)
    chosen = fits & counted & others_counted & alone & single & near
    truth.earned[rows[chosen]] = detections.earned[columns[chosen]] = 1.0


def _match_several(whole: _Side, parts: _Side, least: float, least_of_part: float, worth: float) -> None:
    """Let a polygon and the parts that fill `least` of it earn `worth`; `least_of_part` of each part lies in it."""
    counted = parts.counts[parts.places]
    inside = counted & (parts.share >= least_of_part)
    touched = whole.counts & (whole.number(counted) >= 2)
    for place in np.unique(whole.places[inside & touched[whole.places]]).tolist():
        if whole.earned[place]:
            continue
        pairs = np.flatnonzero(inside & (whole.places == place))
        pairs = pairs[parts.earned[parts.places[pairs]] == 0]
        if round(sum(whole.share[pairs].tolist()), 4) >= least:
            whole.earned[place] = parts.earned[parts.places[pairs]] = 1.0 if len(pairs) == 1 else worth
