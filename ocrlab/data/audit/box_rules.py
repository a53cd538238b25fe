"""The rules for single boxes of one page that need no pixels: by their numbers, and by their texts.

The width of a line is about pitch x characters + a margin, in a font of this page: boxes deviate from the page's
median by 13 % (more than 8 characters), 14 % (4 to 8) or 21 % (fewer); measured on 167 receipts. Letters printed at
double width are the one honest exception.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import shapely
from numpy.typing import NDArray

from ocrlab import geometry
from ocrlab.data.audit.box_alignment import upright
from ocrlab.data.audit.finding import ERROR, NOTE, WARN, Finding
from ocrlab.data.audit.raw_annotations import Box, Raw
from ocrlab.geometry import Polygon

Problem = tuple[str, str, str]  # kind, severity, why
Floats = NDArray[np.float64]

OUT_SHARE = 0.1  # of a box's area outside the image, above which it is more than a sloppy edge
SAME_BOX, SAME_WORD = 0.5, 0.25  # IoU of two boxes, from which they box the same line; with the same text
SAME_EXACTLY = 0.95
NESTED = 0.9  # of the smaller box inside the larger one, with the same text
LARGEST = 2**24  # pixels; float32 holds no whole numbers beyond, and no image is as large
SWALLOWED = 3  # boxes with text whose centres lie in another one, from which on it is not a line
MOST_QUADS = 0.9  # of the quads of a page start at the top left, from which another corner is a mistake
SLANT = 0.5  # |vertical| / |horizontal| part of the first edge, below which it has a direction


def shape_problem(box: Box) -> Problem | None:
    """Say why a box is not a region at all, or crosses itself; None if it is a simple polygon with an area."""
    p = box.polygon
    if not len(p):
        return "invalid", WARN, "the box has no points"
    if not np.isfinite(p).all():
        return "invalid", ERROR, f"{int((~np.isfinite(p)).any(axis=1).sum())} of {len(p)} points are not numbers"
    if len(p) < 3:
        return "invalid", ERROR, f"{len(p)} points; a region has at least 3"
    if np.abs(p).max() > LARGEST:
        return "invalid", ERROR, f"the coordinate {float(p.flat[np.abs(p).argmax()]):.3g} is in no image"
    points = shapely.Polygon(p.astype(np.float64))
    hull = points.convex_hull.area
    if hull < 1.0:
        return "zero_area", ERROR, f"{hull:.1f} square pixels between its {len(p)} points"
    if not shapely.is_valid(points) and points.exterior.is_simple is False:
        where = str(shapely.is_valid_reason(points)).partition("[")[2].rstrip("]") or "a point"
        return "self_crossing", ERROR, f"the outline crosses itself near {where}"
    if points.area < 1.0:
        return "zero_area", ERROR, f"{points.area:.1f} square pixels"
    return None


def number_findings(raw: Raw, good: list[Box], size: tuple[int, int] | None) -> Iterator[Finding]:
    """Yield what is wrong with the positions of boxes: outside of `size` (width, height), backwards, boxed twice."""
    first = np.array([box.polygon[1] - box.polygon[0] for box in good if len(box.polygon) == 4])
    habit = False  # nearly all quads of the page start at the top left with an edge to the right
    if len(first) >= 10:
        habit = bool(((first[:, 0] > 0) & (np.abs(first[:, 1]) < SLANT * first[:, 0])).mean() >= MOST_QUADS)
    for box in good:
        order = order_problem(box.polygon, box.text, upright=habit)
        for problem in (outside_problem(box.polygon, *size) if size else None, order):
            if problem:
                yield raw.finding(*problem, box)
    if len(good) > COMPARED:
        why = f"of its {len(good):,} boxes only the first {COMPARED:,} are compared with each other"
        yield raw.finding("unreadable_annotation", NOTE, why)
        good = good[:COMPARED]
    shapes = np.array([shapely.convex_hull(shapely.Polygon(box.polygon)) for box in good], object)
    yield from _swallowing(raw, good, shapes)
    yield from _doubled(raw, good, shapes)


COMPARED = 5000  # boxes of a page that are compared with each other; real pages have fewer
NEIGHBOURS = 32  # of the earlier boxes that lie on one, so many are compared with it
PART = 64  # boxes whose neighbours are looked for at a time


def outside_problem(polygon: Polygon, width: int, height: int) -> Problem | None:
    """Say how far a box (P, 2) leaves an image of width x height pixels; a pixel is a sloppy edge and nothing."""
    low, high = polygon.min(axis=0), polygon.max(axis=0)
    beyond = float(max(-low[0], -low[1], high[0] - width, high[1] - height))
    if beyond <= 1:
        return None
    shape = shapely.Polygon(polygon.astype(np.float64))
    share = 1 - shapely.intersection(shape, shapely.box(0, 0, width, height)).area / shape.area
    why = f"{beyond:.0f} px and {share:.0%} of its area are outside the {width} x {height} image"
    return "outside", ERROR if share > 0.5 else WARN if share > OUT_SHARE else NOTE, why


def order_problem(polygon: Polygon, text: str = "", *, upright: bool = False) -> Problem | None:
    """Say whether a quad's points run counter-clockwise or start elsewhere than at the top left.

    Text that runs down or up the page starts at its own top left, so a quarter turn counts only where the first edge is
    the short one; on a page whose other boxes are `upright` also where no line of `text` can run that way.
    """
    if geometry.area(polygon) < 0:
        return "reversed", ERROR, "its points run counter-clockwise"
    if len(polygon) != 4:
        return None
    first, second = polygon[1] - polygon[0], polygon[2] - polygon[1]
    along, across = float(np.hypot(*first)), float(np.hypot(*second))
    if first[0] < 0 and abs(first[1]) < SLANT * abs(first[0]):
        return "reversed", WARN, f"it starts at the bottom right: its first edge runs {-first[0]:.0f} px to the left"
    if abs(first[0]) >= SLANT * abs(first[1]):
        return None
    corner = "top right" if first[1] > 0 else "bottom left"
    if along < 0.6 * across:
        why = f"it starts at the {corner}: its first edge is the short one, {along:.0f} px against {across:.0f}"
        return "reversed", WARN, why
    if upright and (len(text.strip()) <= 1 or along < 1.2 * across):
        return "reversed", WARN, f"it starts at the {corner}; the other boxes of the page start at the top left"
    return None


def _swallowing(raw: Raw, good: list[Box], shapes: NDArray[np.object_]) -> Iterator[Finding]:
    """Yield boxes with text that lie over several others with text."""
    counted = [i for i, box in enumerate(good) if not box.ignored and box.text.strip()]
    if len(counted) <= SWALLOWED:
        return
    tree = shapely.STRtree(shapely.centroid(shapes[counted]))
    areas = shapely.area(shapes[counted])
    numbers = np.zeros(len(counted), np.intp)
    for outer, inner in _pairs(tree, shapes[counted], "contains"):
        smaller = (outer != inner) & (areas[inner] < 0.5 * areas[outer])
        numbers += np.bincount(outer[smaller], minlength=len(counted))
    for at, number in enumerate(numbers):
        if number >= SWALLOWED:
            box = good[counted[at]]
            why = f"it lies over {number} other boxes and has {len(box.text.strip())} characters"
            yield raw.finding("wide", WARN, why, box)


def _pairs(
    tree: shapely.STRtree, shapes: NDArray[np.object_], predicate: str
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Yield the pairs of shapes and of what is in a tree, part by part: where all lie on each other, they are many."""
    for start in range(0, len(shapes), PART):
        which, others = tree.query(shapes[start : start + PART], predicate=predicate)
        yield which + start, others


def _doubled(raw: Raw, good: list[Box], shapes: NDArray[np.object_]) -> Iterator[Finding]:
    """Yield the later ones of pairs of boxes that box one line, each once."""
    if len(good) < 2:
        return
    rows: list[NDArray[np.intp]] = []
    for later, other in _pairs(shapely.STRtree(shapes), shapes, "intersects"):
        later, other = later[other < later], other[other < later]
        rank = np.lexsort((other, later))
        later, other = later[rank], other[rank]
        first = np.searchsorted(later, later)  # where the neighbours of the same box begin
        few = np.arange(len(later)) - first < NEIGHBOURS
        rows.append(np.stack((other[few], later[few])))
    left, right = np.concatenate(rows, axis=1)
    rank = np.lexsort((right, left))
    left, right = left[rank], right[rank]
    reported: set[int] = set()
    both = shapely.area(shapely.intersection(shapes[left], shapes[right]))
    areas = shapely.area(shapes)
    ious = both / (areas[left] + areas[right] - both)
    nested = both / np.minimum(areas[left], areas[right])
    for a, b, iou, share in zip(left.tolist(), right.tolist(), ious, nested, strict=True):
        first, second = good[a], good[b]
        if b in reported:
            continue
        if first.ignored and second.ignored and iou < SAME_EXACTLY:
            continue
        same = first.text.strip() == second.text.strip()
        if iou >= SAME_BOX or (same and first.text.strip() and (iou >= SAME_WORD or share >= NESTED)):
            severity = ERROR if iou >= SAME_EXACTLY or (same and iou >= 0.7) else WARN
            texts = "the same text" if same else f"texts {first.text[:20]!r} and {second.text[:20]!r}"
            why = f"IoU {iou:.2f} with the box of line {first.line}, {texts}"
            reported.add(b)
            yield raw.finding("duplicate_box", severity, why, second, other=f"{raw.name}:{first.line}")


SLIM, BROAD = frozenset("iIl.,:;'|!jt()[]` "), frozenset("MWmw@%")
MARGIN = 0.3  # of the height, left and right together
FEW = 8  # boxes with text, below which a page has no median of its own
NARROW, SURE = -0.55, -1.0  # of the logarithm of the deviation: 58 % and 37 % of what is typical
WIDE = 1.0  # 2.7 times what is typical, after the doubled width is allowed for
ODD, FITS, GAIN = 1.6, 1.8, 9.0  # in spreads: each of a pair is odd, both fit when exchanged, and it is worth that much
PAIRS = 60  # boxes of each kind that are tried on each other


def units(text: str) -> float:
    """Return the width of a text in characters of mean width: a compromise of fixed and proportional fonts."""
    return sum(0.8 if c in SLIM else 1.1 if c in BROAD else 2.0 if ord(c) >= 0x2E80 else 1.0 for c in text)


class Fit:
    """How wide each of N texts is against the median of its page; NaN where there is no text."""

    def __init__(self, texts: Sequence[str], widths: Floats, heights: Floats) -> None:
        self.units = np.array([units(text.strip()) for text in texts], np.float64)
        self.letters = np.array([len(text.strip()) for text in texts])
        self.spread = np.select([self.letters <= 3, self.letters <= 8], [0.24, 0.15], 0.12)  # of the logarithm
        self.widths, self.heights = widths, heights
        self.net = np.maximum(widths - MARGIN * np.minimum(heights, widths), 0.3 * widths)
        usable = (self.units > 0) & (heights > 0) & (widths > 0)
        self.pitch = self.typical = np.nan
        if usable.sum() >= FEW:
            self.typical = float(np.median(heights[usable]))
            pitches = self.net[usable] / self.units[usable]
            rank = pitches.argsort()
            total = np.minimum(self.units[usable], 12)[rank].cumsum()  # long texts know the pitch better
            self.pitch = float(pitches[rank][np.searchsorted(total, total[-1] / 2)])

    def deviation(self, units: Floats | None = None, at: slice | list[int] = slice(None)) -> Floats:
        """Return log(width / typical width) (N,), with the box's height as far as it brings it nearer to 0.

        With `units` it is that of the boxes `at`, if their texts were as wide as these.
        """
        count = self.units[at] if units is None else units
        with np.errstate(all="ignore"):
            plain = np.log(self.net[at] / (count * self.pitch))
            scaled = plain - np.clip(np.log(self.heights[at] / self.typical), -0.7, 1.2)  # a larger font is wider
        nearer = np.where(np.abs(plain) < np.abs(scaled), plain, scaled)
        return np.where((count > 0) & np.isfinite(plain), np.where(plain * scaled > 0, nearer, 0.0), np.nan)


def text_findings(raw: Raw, good: list[Box]) -> Iterator[Finding]:
    """Yield boxes whose characters do not fit their width, and pairs whose texts would fit each other's boxes."""
    judged = [box for box in good if not box.ignored]
    if not judged:
        return
    across, down = np.array([upright(box.polygon)[1:] for box in judged], np.float64).T
    letters = np.array([len(box.text.strip()) for box in judged])
    narrow = across <= 0.6 * np.median(np.minimum(across, down))
    tall = (down > 1.5 * across) & (letters > 1) & ~narrow  # runs downwards
    fit = Fit([box.text for box in judged], np.where(tall, down, across), np.where(tall, across, down))
    taken: set[int] = set()
    for i, j, why in exchanged(fit):
        taken |= {i, j}
        yield raw.finding("swapped", WARN, why, judged[i], other=f"{raw.name}:{judged[j].line}")
    for i, problem in misfits(fit):
        if i not in taken:
            yield raw.finding(*problem, judged[i])


def misfits(fit: Fit) -> Iterator[tuple[int, Problem]]:
    """Yield boxes (index) with too few or too many pixels for their characters, and what is wrong."""
    deviation = fit.deviation()
    for index in np.flatnonzero(np.isfinite(deviation)).tolist():
        value, spread, letters, width = deviation[index], fit.spread[index], fit.letters[index], fit.widths[index]
        why = f"{letters} characters in {width:.0f} px: {width / letters:.1f} px a character"
        why += f", page median {fit.pitch:.1f}"
        if value < min(NARROW, -3.5 * spread):
            yield index, ("narrow", ERROR if value < SURE else WARN, why)
        elif value > max(WIDE, 4.5 * spread):
            yield index, ("wide", WARN, why)


def exchanged(fit: Fit) -> Iterator[tuple[int, int, str]]:
    """Yield pairs of boxes (indices) whose texts fit when they change places, and do not as they are; with why."""
    score = np.nan_to_num(fit.deviation() / fit.spread)
    rank = score.argsort().tolist()  # the oddest first: thousands of odd boxes are not exchanged pairs
    gains: list[tuple[float, int, int]] = []
    for i in (i for i in rank[:PAIRS] if score[i] < -ODD):
        for j in (j for j in rank[::-1][:PAIRS] if score[j] > ODD):
            after = fit.deviation(fit.units[[j, i]], [i, j]) / fit.spread[[j, i]]
            gain = float(score[i] ** 2 + score[j] ** 2 - np.square(after).sum())
            if np.abs(after).max() < FITS and gain > GAIN:
                gains.append((gain, i, j))
    used: set[int] = set()
    for _, i, j in sorted(gains, reverse=True):
        if not used & {i, j}:
            used |= {i, j}
            first, second = (f"{fit.letters[at]} characters in {fit.widths[at]:.0f} px" for at in (i, j))
            yield i, j, f"{first} and {second}, page median {fit.pitch:.1f} px a character: exchanged, both fit"
