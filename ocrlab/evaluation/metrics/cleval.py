"""CLEval: detection judged character by character (Baek et al. 2020, CLEval).

N ground-truth polygons, M detections, K characters of all the ground truth together, L pairs.

Characters are pseudo: the transcription gives how many a ground truth has, and their centres lie at equal steps along
its middle line. A detection takes the characters whose centres are inside it. Rules, as in the published evaluator:
- A pair is a hit if at least 0.3 of the detection lies in the ground truth and it takes a character of it. Matches are
  hits without rival on either side (one to one), two and more hits of one ground truth (split), and two and more
  ground truths of which a detection takes characters and that together cover 0.3 of it (merged).
- Recall is characters taken over characters there; precision is distinct over all characters taken, where a detection
  without a match adds characters that its shape stands for. Every cut of a ground truth, and every merge, costs one
  character (granularity penalty).
- A detection of which 0.3 lies in ignored ground truth does not count; counted ground truth is cut out of that first.
- The corners of quads are cut to whole pixels, but not before the characters are placed.

Where the evaluator differs: a polygon that is not valid (self-crossing, no area) is left out if it is ground truth and
a miss if it is a detection; without texts the shapes say how many characters there are; and polygons of other than 4
points, which the published code cannot judge, have half their points above the middle line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import shapely

from ocrlab.evaluation.metrics import cleval_characters
from ocrlab.evaluation.metrics.cleval_characters import Counts
from ocrlab.evaluation.metrics.iou import Overlaps, flags, harmonic_mean, overlaps, page_precision, page_recall
from ocrlab.evaluation.metrics.polygon_overlap import Mask, Polygons, Shapes, meeting, shapes, shared_areas

PRECISE = np.float32(0.3)  # of a detection inside ground truth, at which the two may match; the evaluator has float32


@dataclass(frozen=True)
class PageCharacters:
    """Characters of one page, by ground truth (N,) and by detection (M,); 0 where a polygon does not count.

    By ground truth: `truth` there are, `found` of them, `cuts` the penalty for splits. By detection: `taken` counts a
    character as often as it is taken, `right` only the first time, `false` are those of detections without a match,
    `merges` the penalty.
    """

    truth: Counts
    detected: Counts
    cuts: Counts
    taken: Counts
    right: Counts
    false: Counts
    merges: Counts
    truth_counts: Mask
    detection_counts: Mask

    @property
    def recall(self) -> float:
        """Characters found less the penalty, of those there; 1 where there are none."""
        return page_recall(max(0, int(self.detected.sum()) - int(self.cuts.sum())), int(self.truth.sum()))

    @property
    def precision(self) -> float:
        """Distinct characters less the penalty, of all taken; where none is taken 1 if there is none, else 0."""
        right = max(0, int(self.right.sum()) - int(self.merges.sum()))
        return page_precision(right, int(self.taken.sum()) + int(self.false.sum()), int(self.truth.sum()))

    @property
    def hmean(self) -> float:
        """Harmonic mean of precision and recall."""
        return harmonic_mean(self.precision, self.recall)


def judge(
    truth: Polygons | Shapes,
    ignored: npt.ArrayLike,
    texts: Sequence[str] | None,
    detections: Polygons | Shapes,
) -> PageCharacters:
    """Return the characters of one page that were and were not found; polygons (P, 2) in the same pixels.

    `ignored` is (N,), true where a ground truth does not count; an empty text has no characters, but with None for all
    `texts` the shapes say how many there are. Raises ShapeError if flags or texts have another length; no detection,
    however broken, raises.
    """
    first, second, skip = shapes(truth), shapes(detections), flags(ignored, len(truth))
    ratio = cleval_characters.ratios(first)
    count = np.where(first.valid, cleval_characters.lengths(first, ratio, skip, texts), 0)
    pairs = overlaps(whole_pixels(first), whole_pixels(second), margin=1.0)  # a centre may be beyond the cut corner
    grid = cleval_characters.taken(first, ratio, count, pairs.detections, (pairs.rows, pairs.columns))
    share = shares(pairs, skip)
    truth_counts, n, m = first.valid & ~skip, len(first), len(second)
    detection_counts = ~covered(pairs, share, grid.count, skip)
    matched = matches(pairs, share, grid.count, truth_counts, detection_counts)
    valid = matched[grid.pair]
    char, column = grid.char[valid], pairs.columns[grid.pair[valid]]
    taker = np.full(len(grid.owner), -1, dtype=np.intp)
    taker[char[::-1]] = column[::-1]  # the last one written stays: the first detection that takes a character has it
    here = taker >= 0
    by_detection = np.bincount(pairs.columns[matched], minlength=m)
    upright = np.rint(0.5 + 1 / (1e-5 + cleval_characters.ratios(second)))  # characters that the shape stands for
    false = np.where(detection_counts & (by_detection == 0), np.minimum(upright, cleval_characters.MOST), 0)
    return PageCharacters(
        truth=np.where(truth_counts, count, 0),
        detected=np.bincount(grid.owner[here], minlength=n),
        cuts=np.maximum(np.bincount(pairs.rows[matched], minlength=n) - 1, 0),
        taken=np.bincount(column, minlength=m),
        right=np.bincount(taker[here], minlength=m),
        false=false.astype(np.int64),
        merges=np.maximum(by_detection - 1, 0),
        truth_counts=truth_counts,
        detection_counts=detection_counts,
    )


def whole_pixels(boxes: Shapes) -> Shapes:
    """Return the polygons with the corners of quads cut to whole pixels, towards 0."""
    cut = np.trunc(boxes.corners)
    if np.array_equal(cut, boxes.corners):
        return boxes
    if boxes.four.all():
        return shapes(cut)
    return shapes([corners if four else p for corners, four, p in zip(cut, boxes.four, boxes.points, strict=True)])


def shares(pairs: Overlaps, skip: Mask) -> npt.NDArray[np.float32]:
    """Return which share of the detection lies in the ground truth, for each pair (L,).

    Of ignored ground truth only the part counts that no counted ground truth covers.
    """
    area = pairs.detections.area[pairs.columns]
    shared = pairs.shared.copy()
    truth = pairs.truth
    ignored, counted = np.flatnonzero(skip & truth.valid), np.flatnonzero(~skip & truth.valid)
    rows, columns = meeting(truth.bounds[ignored], truth.bounds[counted])
    over = shared_areas(truth, truth, ignored[rows], counted[columns]) > 0
    for row in np.unique(rows[over]):
        rest = truth.objects[ignored[row]]
        for column in columns[over & (rows == row)]:
            rest = shapely.difference(rest, truth.objects[counted[column]])
        mine = np.flatnonzero(pairs.rows == ignored[row])
        shared[mine] = shapely.area(shapely.intersection(rest, pairs.detections.objects[pairs.columns[mine]]))
    return (shared / area).astype(np.float32)


def covered(pairs: Overlaps, share: npt.NDArray[np.float32], taken: Counts, skip: Mask) -> Mask:
    """Return which detections (M,) lie in ignored ground truth: 0.3 in one, or in several with characters there."""
    ignored = skip[pairs.rows]
    gone = np.zeros(len(pairs.detections), dtype=bool)
    gone[pairs.columns[ignored & (share >= PRECISE)]] = True
    several = ignored & (taken > 0)
    total = np.bincount(pairs.columns[several], share[several], minlength=len(gone))
    return gone | (total.astype(np.float32) >= PRECISE)


def matches(
    pairs: Overlaps, share: npt.NDArray[np.float32], taken: Counts, truth_counts: Mask, detection_counts: Mask
) -> Mask:
    """Return which pairs (L,) match: one to one, one ground truth to many detections, or the other way round."""
    rows, columns = pairs.rows, pairs.columns
    n, m = len(truth_counts), len(detection_counts)
    both = truth_counts[rows] & detection_counts[columns]
    hit = (share >= PRECISE) & (taken > 0)
    alone = (np.bincount(rows[hit], minlength=n)[rows] == 1) & (np.bincount(columns[hit], minlength=m)[columns] == 1)
    split = hit & both & (np.bincount(rows[hit & both], minlength=n)[rows] >= 2)
    part = both & (taken > 0)
    together = np.bincount(columns[part], share[part], minlength=m) >= 0.3  # not in float32, so in the evaluator too
    merged = part & together[columns] & (np.bincount(columns[part], minlength=m)[columns] >= 2)
    return (hit & both & alone) | split | merged
