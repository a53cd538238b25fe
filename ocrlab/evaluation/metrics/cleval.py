"""CLEval: detection (and, with texts, recognition) judged character by character (Baek et al. 2020, CLEval).

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

from ocrlab.errors import ShapeError
from ocrlab.evaluation.metrics import cleval_characters
from ocrlab.evaluation.metrics.cleval_characters import Counts
from ocrlab.evaluation.metrics.iou import Overlaps, flags, harmonic_mean, measured
from ocrlab.evaluation.metrics.polygon_overlap import Mask, Polygons, Shapes, meeting, shapes, shared_areas


def common(first: str, second: str) -> str:
    """Return the longest common subsequence; of several, the one that the published evaluator takes."""
    if first == second:
        return first
    length = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, a in enumerate(first):
        above, row = length[i], length[i + 1]
        for j, b in enumerate(second):
            row[j + 1] = above[j] + 1 if a == b else max(above[j + 1], row[j])
    letters = []
    i, j = len(first), len(second)
    while i and j:
        if first[i - 1] == second[j - 1]:
            letters.append(first[i - 1])
            i, j = i - 1, j - 1
        elif length[i - 1][j] > length[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return "".join(reversed(letters))


def reading_order(detections: Sequence[int], takes: Sequence[set[int]], characters: int) -> list[int]:
    """Return the detections of one ground truth in the order in which they take its characters.

    `takes[i]` are the characters that `detections[i]` takes. As in the published evaluator, each character lets one
    detection in, and of those that are never let in only the first is added.
    """
    waiting = list(zip(detections, takes, strict=True))
    order = []
    for character in range(characters):
        if len(waiting) == 1:
            break
        ahead = next((entry for entry in waiting if character in entry[1]), None)
        if ahead is not None:
            order.append(ahead[0])
            waiting.remove(ahead)
    return [*order, waiting[0][0]]


def cross_out(text: str, left: list[str], order: Sequence[int]) -> int:
    """Take what `text` has in common with the texts `left` of the detections in `order` out of these; return how much.

    A character that was read once is thereby not read for a second ground truth.
    """
    read = common(text, "".join(left[i] for i in order))
    for character in read:
        for i in order:
            if character in left[i]:
                left[i] = left[i].replace(character, "", 1)
                break
    return len(read)


PRECISE = np.float32(0.3)  # of a detection inside ground truth, at which the two may match; the evaluator has float32


@dataclass(frozen=True)
class PageCharacters:
    """Characters of one page, by ground truth (N,) and by detection (M,); 0 where a polygon does not count.

    By ground truth: `truth` there are, `found` of them, `cuts` the penalty for splits. By detection: `taken` counts a
    character as often as it is taken, `right` only the first time, `false` are those of detections without a match,
    `merges` the penalty. With texts, by detection: `written` characters, `agreed` of them that were read rightly.
    """

    truth: Counts
    detected: Counts
    cuts: Counts
    taken: Counts
    right: Counts
    false: Counts
    merges: Counts
    written: Counts
    agreed: Counts
    truth_counts: Mask
    detection_counts: Mask

    @property
    def recall(self) -> float:
        """Characters found less the penalty, of those there; 1 where there are none."""
        there = int(self.truth.sum())
        return max(0, int(self.detected.sum()) - int(self.cuts.sum())) / there if there else 1.0

    @property
    def precision(self) -> float:
        """Distinct characters less the penalty, of all taken; where none is taken 1 if there is none, else 0."""
        every = int(self.taken.sum()) + int(self.false.sum())
        if every:
            return max(0, int(self.right.sum()) - int(self.merges.sum())) / every
        return 0.0 if self.truth.any() else 1.0

    @property
    def hmean(self) -> float:
        """Harmonic mean of precision and recall."""
        return harmonic_mean(self.precision, self.recall)


def judge(
    truth: Polygons,
    ignored: npt.ArrayLike,
    texts: Sequence[str] | None,
    detections: Polygons,
    detected_texts: Sequence[str] | None = None,
) -> PageCharacters:
    """Return the characters of one page that were and were not found; polygons (P, 2) in the same pixels.

    `ignored` is (N,), true where a ground truth does not count; an empty text has no characters, but with None for all
    `texts` the shapes say how many there are. Raises ShapeError if flags or texts have another length; no detection,
    however broken, raises.
    """
    return judge_shapes(shapes(truth), flags(ignored, len(truth)), texts, shapes(detections), detected_texts)


def judge_shapes(
    truth: Shapes,
    skip: Mask,
    texts: Sequence[str] | None,
    detections: Shapes,
    detected_texts: Sequence[str] | None = None,
) -> PageCharacters:
    """Do the same as `judge` with polygons that are prepared."""
    ratio = cleval_characters.ratios(truth)
    count = np.where(truth.valid, cleval_characters.lengths(truth, ratio, skip, texts), 0)
    overlaps = measured(
        whole_pixels(truth), whole_pixels(detections), margin=1.0
    )  # a centre may be beyond the cut corner
    grid = cleval_characters.taken(truth, ratio, count, overlaps.detections, (overlaps.rows, overlaps.columns))
    share = shares(overlaps, skip)
    truth_counts = truth.valid & ~skip
    detection_counts = ~covered(overlaps, share, grid.count, skip)
    matched = matches(overlaps, share, grid.count, truth_counts, detection_counts)
    page = score(overlaps, grid, matched, np.where(truth_counts, count, 0), truth_counts, detection_counts)
    false = detection_counts & (np.bincount(overlaps.columns[matched], minlength=len(detections)) == 0)
    upright = 1 / (1e-5 + cleval_characters.ratios(detections))
    page.false[false] = np.minimum(np.rint(0.5 + upright), cleval_characters.MOST)[false]
    if detected_texts is not None:
        read(page, overlaps, grid, matched, texts or [""] * len(truth), detected_texts)
    return page


def whole_pixels(boxes: Shapes) -> Shapes:
    """Return the polygons with the corners of quads cut to whole pixels, towards 0."""
    cut = np.trunc(boxes.corners)
    if np.array_equal(cut, boxes.corners):
        return boxes
    if boxes.four.all():
        return shapes(cut)
    return shapes([corners if four else p for corners, four, p in zip(cut, boxes.four, boxes.points, strict=True)])


def shares(overlaps: Overlaps, skip: Mask) -> npt.NDArray[np.float32]:
    """Return which share of the detection lies in the ground truth, for each pair (L,).

    Of ignored ground truth only the part counts that no counted ground truth covers.
    """
    area = overlaps.detections.area[overlaps.columns]
    shared = overlaps.shared.copy()
    truth = overlaps.truth
    ignored, counted = np.flatnonzero(skip & truth.valid), np.flatnonzero(~skip & truth.valid)
    rows, columns = meeting(truth.bounds[ignored], truth.bounds[counted])
    over = shared_areas(truth, truth, ignored[rows], counted[columns]) > 0
    for row in np.unique(rows[over]):
        rest = truth.objects[ignored[row]]
        for column in columns[over & (rows == row)]:
            rest = shapely.difference(rest, truth.objects[counted[column]])
        pairs = np.flatnonzero(overlaps.rows == ignored[row])
        shared[pairs] = shapely.area(shapely.intersection(rest, overlaps.detections.objects[overlaps.columns[pairs]]))
    return (shared / area).astype(np.float32)


def covered(overlaps: Overlaps, share: npt.NDArray[np.float32], taken: Counts, skip: Mask) -> Mask:
    """Return which detections (M,) lie in ignored ground truth: 0.3 in one, or in several with characters there."""
    ignored = skip[overlaps.rows]
    gone = np.zeros(len(overlaps.detections), dtype=bool)
    gone[overlaps.columns[ignored & (share >= PRECISE)]] = True
    several = ignored & (taken > 0)
    total = np.bincount(overlaps.columns[several], share[several], minlength=len(gone))
    return gone | (total.astype(np.float32) >= PRECISE)


def matches(
    overlaps: Overlaps, share: npt.NDArray[np.float32], taken: Counts, truth_counts: Mask, detection_counts: Mask
) -> Mask:
    """Return which pairs (L,) match: one to one, one ground truth to many detections, or the other way round."""
    rows, columns = overlaps.rows, overlaps.columns
    n, m = len(truth_counts), len(detection_counts)
    both = truth_counts[rows] & detection_counts[columns]
    hit = (share >= PRECISE) & (taken > 0)
    alone = (np.bincount(rows[hit], minlength=n)[rows] == 1) & (np.bincount(columns[hit], minlength=m)[columns] == 1)
    split = hit & both & (np.bincount(rows[hit & both], minlength=n)[rows] >= 2)
    part = both & (taken > 0)
    together = np.bincount(columns[part], share[part], minlength=m) >= 0.3  # not in float32, so in the evaluator too
    merged = part & together[columns] & (np.bincount(columns[part], minlength=m)[columns] >= 2)
    return (hit & both & alone) | split | merged


def score(
    overlaps: Overlaps,
    grid: cleval_characters.Taken,
    matched: Mask,
    truth: Counts,
    truth_counts: Mask,
    detection_counts: Mask,
) -> PageCharacters:
    """Count characters by ground truth and by detection; those that the shape of false ones stands for come later."""
    n, m = len(truth_counts), len(detection_counts)
    valid = matched[grid.pair]
    char, column = grid.char[valid], overlaps.columns[grid.pair[valid]]
    first = np.full(len(grid.owner), -1, dtype=np.intp)
    first[char[::-1]] = column[::-1]  # the last one written stays: the first detection that takes a character has it
    here = first >= 0
    zeros = np.zeros(m, dtype=np.int64)
    return PageCharacters(
        truth=truth,
        detected=np.bincount(grid.owner[here], minlength=n),
        cuts=np.maximum(np.bincount(overlaps.rows[matched], minlength=n) - 1, 0),
        taken=np.bincount(column, minlength=m),
        right=np.bincount(first[here], minlength=m),
        false=zeros,
        merges=np.maximum(np.bincount(overlaps.columns[matched], minlength=m) - 1, 0),
        written=zeros.copy(),
        agreed=zeros.copy(),
        truth_counts=truth_counts,
        detection_counts=detection_counts,
    )


def read(
    page: PageCharacters,
    overlaps: Overlaps,
    grid: cleval_characters.Taken,
    matched: Mask,
    texts: Sequence[str],
    detected_texts: Sequence[str],
) -> None:
    """Compare the texts of what matched, and write into `page` how many characters were `written` and `agreed`."""
    if len(detected_texts) != len(overlaps.detections):
        what = "The detected texts do not fit the detections"
        raise ShapeError(what, got=f"{len(detected_texts)} texts", need=f"{len(overlaps.detections)}, one a polygon")
    first = np.searchsorted(grid.owner, np.arange(len(texts)))  # the position of each ground truth's first character
    left = list(detected_texts)
    for row in np.unique(overlaps.rows[matched]).tolist():
        pairs = np.flatnonzero(matched & (overlaps.rows == row))
        takes = [set((grid.char[grid.pair == pair] - first[row]).tolist()) for pair in pairs]
        order = reading_order(overlaps.columns[pairs].tolist(), takes, int(page.truth[row]))
        cross_out(texts[row], left, order)
    for i, (whole, rest) in enumerate(zip(detected_texts, left, strict=True)):
        page.written[i] = len(whole) if page.detection_counts[i] else 0
        page.agreed[i] = len(whole) - len(rest)
