"""The rules for single boxes of one page: by their numbers, by their texts, by the ink under them.

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
from ocrlab.data.audit import missing_boxes
from ocrlab.data.audit.box_alignment import Place, lies_well, look
from ocrlab.data.audit.box_alignment import upright as turned
from ocrlab.data.audit.finding import ERROR, NOTE, WARN, Finding
from ocrlab.data.audit.page_image import Sheet
from ocrlab.data.audit.raw_annotations import Box, Raw
from ocrlab.geometry import Polygon

Problem = tuple[str, str, str]  # kind, severity, why

OUT_SHARE = 0.1  # of a box's area outside the image, above which it is more than a sloppy edge
SAME_BOX, SAME_WORD = 0.5, 0.25  # IoU of two boxes, from which they box the same line; with the same text
SAME_EXACTLY = 0.95
NESTED = 0.9  # of the smaller box inside the larger one, with the same text
LARGEST = 2**24  # pixels; float32 holds no whole numbers beyond, and no image is as large
SWALLOWED = 3  # boxes with text whose centres lie in another one, from which that is no line
MOST_QUADS = 0.9  # of the quads of a page start at the top left, from which another corner is a mistake
SLANT = 0.5  # |vertical| / |horizontal| part of the first edge, below which it has a direction


def shape_problem(box: Box) -> Problem | None:
    """Say why a box is no region at all, or crosses itself; None if it is a simple polygon with an area."""
    p = box.polygon
    if p is None:
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
        return "self_crossing", ERROR, f"the outline crosses itself near {_where(points)}"
    if points.area < 1.0:
        return "zero_area", ERROR, f"{points.area:.1f} square pixels"
    return None


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


def start_at_top_left(boxes: list[Box], good: list[int]) -> bool:
    """Tell whether the quads of a page start at the top left with an edge to the right, nearly all of them."""
    quads = [p for i in good if (p := boxes[i].polygon) is not None and len(p) == 4]
    if len(quads) < 10:
        return False
    first = np.array([quad[1] - quad[0] for quad in quads])
    return bool(((first[:, 0] > 0) & (np.abs(first[:, 1]) < SLANT * first[:, 0])).mean() >= MOST_QUADS)


def order_problem(polygon: Polygon, text: str = "", *, upright: bool = False) -> Problem | None:
    """Say whether a quad's points run counter-clockwise or start elsewhere than at the top left.

    Text that runs down or up the page starts at its own top left, so a quarter turn counts only where the first edge is
    the short one; on a page whose other boxes are `upright` (see habits) also where no line of `text` can run that way.
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


def swallowing_boxes(boxes: list[Box], good: list[int]) -> Iterator[tuple[int, str, str, str]]:
    """Yield boxes (index) with text that lie over several others with text: kind, severity, why."""
    counted = [i for i in good if not boxes[i].ignored and boxes[i].text.strip()]
    if len(counted) <= SWALLOWED:
        return
    shapes = np.array([shapely.convex_hull(shapely.Polygon(boxes[i].polygon)) for i in counted], object)
    tree = shapely.STRtree(shapely.centroid(shapes))
    outer, inner = tree.query(shapes, predicate="contains")
    areas = shapely.area(shapes)
    smaller = (outer != inner) & (areas[inner] < 0.5 * areas[outer])
    for at, number in enumerate(np.bincount(outer[smaller], minlength=len(counted))):
        if number >= SWALLOWED:
            letters = len(boxes[counted[at]].text.strip())
            yield counted[at], "wide", WARN, f"it lies over {number} other boxes and has {letters} characters"


def doubled_boxes(boxes: list[Box], good: list[int]) -> Iterator[tuple[int, int, str, str]]:
    """Yield pairs of boxes (indices, the later one first) that box one line, with severity and why."""
    shapes = np.array([shapely.convex_hull(shapely.Polygon(boxes[i].polygon)) for i in good], object)
    if len(good) < 2:
        return
    tree = shapely.STRtree(shapes)
    left, right = tree.query(shapes, predicate="intersects")
    pairs = left < right
    left, right = left[pairs], right[pairs]
    both = shapely.area(shapely.intersection(shapes[left], shapes[right]))
    areas = shapely.area(shapes)
    ious = both / (areas[left] + areas[right] - both)
    nested = both / np.minimum(areas[left], areas[right])
    for a, b, iou, share in zip(left, right, ious, nested, strict=True):
        later, earlier = boxes[good[a]], boxes[good[b]]
        if later.ignored and earlier.ignored and iou < SAME_EXACTLY:
            continue
        same = later.text.strip() == earlier.text.strip()
        if iou >= SAME_BOX or (same and later.text.strip() and (iou >= SAME_WORD or share >= NESTED)):
            severity = ERROR if iou >= SAME_EXACTLY or (same and iou >= 0.7) else WARN
            texts = "the same text" if same else f"texts {later.text[:20]!r} and {earlier.text[:20]!r}"
            yield good[b], good[a], severity, f"IoU {iou:.2f} with the box of line {later.line}, {texts}"


def _where(points: shapely.Polygon) -> str:
    return str(shapely.is_valid_reason(points)).partition("[")[2].rstrip("]") or "a point"


Floats = NDArray[np.float64]

SLIM, BROAD = frozenset("iIl.,:;'|!jt()[]` "), frozenset("MWmw@%")
MARGIN = 0.3  # of the height, left and right together
FEW = 8  # boxes with text, below which a page has no median of its own
NARROW, SURE = -0.55, -1.0  # of the logarithm of the deviation: 58 % and 37 % of what is usual
WIDE = 1.0  # 2.7 times what is usual, after the doubled width is allowed for
ODD, FITS, GAIN = 1.6, 1.8, 9.0  # in spreads: each of a pair is odd, both fit when exchanged, and it is worth that much
PAIRS = 60  # boxes of each kind that are tried on each other
SPREAD = ((3, 0.24), (8, 0.15), (10**9, 0.12))  # of the logarithm, by the number of characters


def units(text: str) -> float:
    """Return the width of a text in characters of mean width: a compromise of fixed and proportional fonts."""
    return sum(0.8 if c in SLIM else 1.1 if c in BROAD else 2.0 if ord(c) >= 0x2E80 else 1.0 for c in text)


class Fit:
    """How wide each of N texts is against the median of its page; NaN where there is no text or no polygon."""

    def __init__(self, texts: Sequence[str], widths: Floats, heights: Floats) -> None:
        self.units = np.array([units(text.strip()) for text in texts], np.float64)
        self.letters = np.array([len(text.strip()) for text in texts])
        self.widths, self.heights = widths, heights
        usable = (self.units > 0) & (heights > 0) & (widths > 0)
        self.pitch = self.typical = np.nan
        if usable.sum() >= FEW:
            self.typical = float(np.median(heights[usable]))
            pitches = self._net()[usable] / self.units[usable]
            weights = np.minimum(self.units[usable], 12)
            self.pitch = _median(pitches, weights)

    def deviation(self, units: Floats | None = None, at: slice | list[int] = slice(None)) -> Floats:
        """Return log(width / usual width) (N,), with the box's height as far as it brings it nearer to 0.

        With `units` it is that of the boxes `at`, if their texts were as wide as these.
        """
        count = self.units[at] if units is None else units
        with np.errstate(all="ignore"):
            plain = np.log(self._net()[at] / (count * self.pitch))
            tall = np.clip(np.log(self.heights[at] / self.typical), -0.7, 1.2)  # a larger font is wider
            scaled = plain - tall
        nearer = np.where(np.abs(plain) < np.abs(scaled), plain, scaled)
        return np.where((count > 0) & np.isfinite(plain), np.where(plain * scaled > 0, nearer, 0.0), np.nan)

    def _net(self) -> Floats:
        return np.maximum(self.widths - MARGIN * np.minimum(self.heights, self.widths), 0.3 * self.widths)


def _median(values: Floats, weights: Floats) -> float:
    """Return the weighted median: long texts know the pitch better."""
    rank = values.argsort()
    total = weights[rank].cumsum()
    return float(values[rank][np.searchsorted(total, total[-1] / 2)])


def judge(fit: Fit) -> Iterator[tuple[int, str, str, str]]:
    """Yield boxes (index) with too few or too many pixels for their characters: kind, severity, why."""
    deviation = fit.deviation()
    spread = spreads(fit.letters)
    for index in np.flatnonzero(np.isfinite(deviation)):
        value = float(deviation[index])
        why = (
            f"{fit.letters[index]} characters in {fit.widths[index]:.0f} px: "
            f"{fit.widths[index] / fit.letters[index]:.1f} px a character, page median {fit.pitch:.1f}"
        )
        if value < min(NARROW, -3.5 * spread[index]):
            yield int(index), "narrow", ERROR if value < SURE else WARN, why
        elif value > max(WIDE, 4.5 * spread[index]):
            yield int(index), "wide", WARN, why


def exchanged(fit: Fit) -> Iterator[tuple[int, int, str]]:
    """Yield pairs of boxes (indices) whose texts fit when they change places, and do not as they are; with why."""
    deviation, spread = fit.deviation(), spreads(fit.letters)
    score = np.nan_to_num(deviation / spread)
    rank = score.argsort()  # the oddest first: thousands of odd boxes are no exchanged pairs
    low = [int(i) for i in rank[:PAIRS] if score[i] < -ODD]
    high = [int(i) for i in rank[::-1][:PAIRS] if score[i] > ODD]
    gains: list[tuple[float, int, int]] = []
    for i in low:
        for j in high:
            after = fit.deviation(fit.units[[j, i]], [i, j]) / spread[[j, i]]
            gain = score[i] ** 2 + score[j] ** 2 - float(np.square(after).sum())
            if np.abs(after).max() < FITS and gain > GAIN:
                gains.append((float(gain), i, j))
    used: set[int] = set()
    for _, i, j in sorted(gains, reverse=True):
        if not used & {i, j}:
            used |= {i, j}
            first, second = (f"{fit.letters[at]} characters in {fit.widths[at]:.0f} px" for at in (i, j))
            why = f"{first} and {second}, page median {fit.pitch:.1f} px a character: exchanged, both fit"
            yield i, j, why


def spreads(letters: NDArray[np.int64]) -> Floats:
    """Return the usual spread of the deviation for numbers of characters (N,)."""
    return np.select([letters <= most for most, _ in SPREAD], [value for _, value in SPREAD])


Wrong = tuple[Polygon, Place | None]  # a box that is misplaced, and its place where that is known

BLANK = 0.02  # of a box is ink, below which it lies on nothing; 1,049 honest boxes have at least 0.05
WELL_PLACED = 0.92  # of the ink that the best place holds, above which a box does not lie too high or too low
FOREIGN_INK, AWAY, SIMILAR = (
    0.4,
    3.0,
    0.5,
)  # share of own ink; heights to the line that fits; its width against the box's
REPEATED_LINES = 4  # like lines below each other without a box, from which it is a habit and no oversight
DOWN, ALONG = 0.2, 0.4  # heights: ink out at one side and paper at the other, up or down; left or right
# Less of the ink at the best place is in the box; heights that are blank at a side. None of 9,074 honest boxes more is
# told by it, and 9 of 65 shifted ones with up to 3 characters that were not told.
LOST, PAPER = 0.6, 0.25
LITTLE = 2.0  # pixels: annotators are sloppy by that much


def finding(raw: Raw, box: Box, kind: str, severity: str, why: str, other: str | None = None) -> Finding:
    """Make the finding of one box."""
    points = None if box.polygon is None else [[float(x), float(y)] for x, y in np.nan_to_num(box.polygon)]
    return Finding(kind, raw.name, raw.split, box.line, points, severity, why, other)


def split_usable(raw: Raw) -> tuple[list[Finding], list[int]]:
    """Return the findings about boxes that are no regions, and the indices of the others; crossed quads are usable."""
    findings, good = [], []
    for index, box in enumerate(raw.boxes):
        problem = shape_problem(box)
        if problem:
            findings.append(finding(raw, box, *problem))
        else:
            good.append(index)
    return findings, good


def number_findings(raw: Raw, good: list[int], size: tuple[int, int] | None) -> Iterator[Finding]:
    """Yield what is wrong with the positions of boxes: outside of `size` (width, height), backwards, boxed twice."""
    upright = start_at_top_left(raw.boxes, good)
    for index in good:
        box = raw.boxes[index]
        assert box.polygon is not None, "usable boxes have a polygon"
        order = order_problem(box.polygon, box.text, upright=upright)
        for problem in (outside_problem(box.polygon, *size) if size else None, order):
            if problem:
                yield finding(raw, box, *problem)
    for index, kind, severity, why in swallowing_boxes(raw.boxes, good):
        yield finding(raw, raw.boxes[index], kind, severity, why)
    for later, earlier, severity, why in doubled_boxes(raw.boxes, good):
        other = f"{raw.name}:{raw.boxes[earlier].line}"
        yield finding(raw, raw.boxes[later], "duplicate_box", severity, why, other)


def text_findings(raw: Raw, good: list[int]) -> Iterator[Finding]:
    """Yield boxes whose characters do not fit their width, and pairs whose texts would fit each other's boxes."""
    judged = [index for index in good if not raw.boxes[index].ignored]
    quads = [turned(polygon) for index in judged if (polygon := raw.boxes[index].polygon) is not None]
    if not quads:
        return
    sides = np.array([[np.hypot(*(quad[1] - quad[0])), np.hypot(*(quad[3] - quad[0]))] for quad in quads])
    across, down = sides.T.astype(np.float64)
    lines = [raw.boxes[index].text for index in judged]
    letters = np.array([len(line.strip()) for line in lines])
    tall = (
        (down > 1.5 * across) & (letters > 1) & (across > 0.6 * np.median(np.minimum(across, down)))
    )  # runs downwards
    fit = Fit(lines, np.where(tall, down, across), np.where(tall, across, down))
    taken: set[int] = set()
    for i, j, why in exchanged(fit):
        first, second = raw.boxes[judged[i]], raw.boxes[judged[j]]
        taken |= {i, j}
        yield finding(raw, first, "swapped", WARN, why, f"{raw.name}:{second.line}")
    for i, kind, severity, why in judge(fit):
        if i not in taken:
            yield finding(raw, raw.boxes[judged[i]], kind, severity, why)


def placement_findings(raw: Raw, places: dict[int, Place | None], text: float) -> Iterator[Finding]:
    """Yield the boxes that lie beside their ink, or on none; `places` by index, `text` a box's height in pixels."""
    for index, place in places.items():
        box = raw.boxes[index]
        if place is None or box.ignored:
            continue
        problem = _verdict(place, LITTLE / text)
        if problem:
            yield finding(raw, box, problem[0], problem[1], problem[2])


def _verdict(place: Place, little: float) -> Problem | None:
    """Say how a box lies beside its ink; `little` is what a sloppy edge is, in heights."""
    if place.inside < BLANK:
        return "no_ink", ERROR if place.inside == 0 else WARN, f"{place.inside:.1%} of its area is ink"
    left, top, right, bottom = place.out
    free_left, free_top, free_right, free_bottom = place.blank
    if place.ink_share > WELL_PLACED:
        top = bottom = 0.0
    up, down = _cut(top, free_bottom, little), _cut(bottom, free_top, little)
    sides = (
        ("top", "bottom", min(up, -2 * place.dy), max(DOWN, little)),
        ("bottom", "top", min(down, 2 * place.dy), max(DOWN, little)),
        ("left", "right", min(left, free_right, -2 * place.dx), ALONG),
        ("right", "left", min(right, free_left, 2 * place.dx), ALONG),
    )
    edge, opposite, shift, least = max(sides, key=lambda side: side[2] / side[3])
    if shift < least:
        return _loss(place)
    why = (
        f"ink goes on beyond its {edge} and the {opposite} is blank for {shift:.0%} of its height: "
        f"it holds {place.ink_share:.0%} of what it would hold {_way(place)}"
    )
    return "misplaced", WARN, why


def _loss(place: Place) -> Problem | None:
    """Say that a box has lost most of its ink and is blank at a side: signs so few that no edge is far from them."""
    lost = place.ink_share < LOST and place.own > FOREIGN_INK and max(abs(place.dx), abs(place.dy)) >= DOWN
    if not lost or max(place.blank) < PAPER:
        return None
    why = f"a side of it is blank for {max(place.blank):.0%} of its height: it holds {place.ink_share:.0%} "
    return "misplaced", WARN, why + f"of what it would hold {_way(place)}"


def _cut(out: float, free: float, little: float) -> float:
    """Return by how much a line sticks out where the other side is free, in heights.

    Where much is free the box is higher than its text, and a shift by half of that cuts less of it.
    """
    return max(min(out, free), min(2 * out, free - DOWN) if out > little / 2 else 0.0)


def _way(place: Place) -> str:
    steps = [
        f"{abs(step):.1f} heights {words[step > 0]}"
        for step, words in ((place.dx, ("to the left", "to the right")), (place.dy, ("higher", "lower")))
        if abs(step) > 0.05
    ]
    return " and ".join(steps) or "at its best"


def displaced_findings(
    raw: Raw, places: dict[int, Place | None], lines: list[missing_boxes.Line], sheet: Sheet
) -> Iterator[Finding]:
    """Yield boxes that lie on the ink of other boxes, or on none, and near by is an unboxed line of their width."""
    for index, place in places.items():
        box = raw.boxes[index]
        if place is None or box.polygon is None or box.ignored or not _is_displaced(place):
            continue
        low, high = box.polygon.min(axis=0) * sheet.scale, box.polygon.max(axis=0) * sheet.scale
        wide, tall = high - low
        for line in lines:
            x, y, w, h = line.box
            right, down = x + w / 2 - (low[0] + high[0]) / 2, y + h / 2 - (low[1] + high[1]) / 2
            if max(abs(right), abs(down)) < AWAY * tall and SIMILAR < w / wide < 1.1 and 0.4 < h / tall < 1.2:
                px, py = right / sheet.scale, down / sheet.scale
                why = (
                    f"{place.own:.0%} of the ink in it is in no other box, and a line as wide without box, "
                    f"{w / sheet.scale:.0f} px, is {abs(px):.0f} px to the {'right' if px > 0 else 'left'} and "
                    f"{abs(py):.0f} px {'lower' if py > 0 else 'higher'}"
                )
                yield finding(raw, box, "misplaced", WARN, why)
                break


def _is_displaced(place: Place) -> bool:
    """Tell whether a box lies on the ink of other boxes, or on none."""
    return place.own <= FOREIGN_INK or place.inside <= 2 * BLANK


def margin(places: dict[int, Place | None]) -> tuple[float, float]:
    """Return the paper between ink and the sides of the boxes of a page, across and down: medians, in their heights."""
    blank = np.array([place.blank for place in places.values() if place is not None and lies_well(place)])
    return (float(np.median(blank[:, ::2])), float(np.median(blank[:, 1::2]))) if len(blank) else (0.0, 0.0)


def unboxed_findings(
    raw: Raw, lines: list[missing_boxes.Line], sheet: Sheet, wrong: list[Wrong], paper: tuple[float, float]
) -> Iterator[Finding]:
    """Yield lines of text without a box; those that boxes in a `wrong` place were meant for are explained.

    A finding has as much `paper` around its ink as the boxes of the page have around theirs (see margin). Of HABIT
    signs that come again and again below each other (stamped, or written in) only the first is a warning.
    """
    meant = explained_lines(lines, wrong, sheet)
    unexplained = [
        line
        for line in lines
        if missing_boxes.likeness(line) >= missing_boxes.TEXT_LIKE and missing_boxes.is_print(line)
    ]
    unexplained = [line for line in unexplained if not any(line is explained_line for explained_line in meant)]
    around, limit = np.array(paper) * sheet.text / sheet.scale, np.array(sheet.ink.shape[::-1]) / sheet.scale
    for number, line in enumerate(unexplained):
        x, y, w, h = (value / sheet.scale for value in line.box)
        why = (
            f"{line.letters} piece{'s' * (line.letters > 1)} of ink {h:.0f} px high in {w:.0f} px "
            f"look{'s' * (line.letters == 1)} as the text in the boxes of this page "
            f"and ha{'ve' if line.letters > 1 else 's'} no box (log odds {missing_boxes.likeness(line):.1f})"
        )
        low, high = np.maximum(np.array([x, y]) - around, 0), np.minimum(np.array([x + w, y + h]) + around, limit)
        (left, top), (right, bottom) = low.tolist(), high.tolist()
        points = [[left, top], [right, top], [right, bottom], [left, bottom]]
        like = [at for at, other in enumerate(unexplained) if _alike(line.box, other.box)]
        severity = NOTE if len(like) >= REPEATED_LINES and number > min(like) else WARN
        yield Finding("missing_box", raw.name, raw.split, None, points, severity, why)


def explained_lines(lines: list[missing_boxes.Line], wrong: list[Wrong], sheet: Sheet) -> list[missing_boxes.Line]:
    """Return the lines that misplaced boxes were meant for: what is at their best place, or the nearest like them.

    The nearest is that of a box without ink of its own; one that cuts its line has claimed it, and it is no free line.
    """
    meant: list[missing_boxes.Line] = []
    for polygon, place in wrong:
        low, high = polygon.min(axis=0) * sheet.scale, polygon.max(axis=0) * sheet.scale
        (wide, tall), way = high - low, np.zeros(2)
        if place is not None:
            way = np.array([place.dx, place.dy]) * min(wide, tall)
        all_bounds = [_bounds(line) for line in lines]
        goal = (*(low + way).tolist(), *(high + way).tolist())
        there = [line for line, bounds in zip(lines, all_bounds, strict=True) if _covered(bounds, goal) > 0.5]
        if not there and (place is None or _is_displaced(place)):
            apart = [float(np.abs(np.add(bounds[:2], bounds[2:]) - low - high).max() / 2) for bounds in all_bounds]
            near = [
                (far, at)
                for at, far in enumerate(apart)
                if far < AWAY * tall and SIMILAR < lines[at].box[2] / wide < 1.1
            ]
            there = [lines[min(near)[1]]] if near else []
        meant += there
    return meant


def _bounds(line: missing_boxes.Line) -> tuple[int, int, int, int]:
    x, y, w, h = line.box
    return x, y, x + w, y + h


def _covered(first: tuple[float, ...], second: tuple[float, ...]) -> float:
    """Return which part of the rectangle `first` (left, top, right, bottom) lies in the rectangle `second`."""
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    return max(width, 0.0) * max(height, 0.0) / ((first[2] - first[0]) * (first[3] - first[1]))


def _alike(first: tuple[int, int, int, int], second: tuple[int, int, int, int]) -> bool:
    """Tell whether two lines stand below each other and have one size."""
    return (
        abs(first[0] - second[0]) < 1.5 * first[3]
        and 0.7 < first[2] / second[2] < 1.4
        and 0.7 < first[3] / second[3] < 1.4
    )


def mirrored_findings(raw: Raw, places: dict[int, Place | None], sheet: Sheet) -> Iterator[Finding]:
    """Yield boxes that lie well only when x and y change places, which also turns the way their points run."""
    for index, place in places.items():
        box = raw.boxes[index]
        if box.polygon is None or geometry.area(box.polygon) >= 0:
            continue
        wide, tall = np.ptp(box.polygon, axis=0)
        many = len(box.text.strip()) > 1
        if (many and wide > 1.2 * tall) or (
            place is not None and lies_well(place) and not (many and tall > 1.5 * wide)
        ):
            continue  # exchanged, a line would run down the page; or it lies well as it is
        flipped = look(sheet, np.ascontiguousarray(box.polygon[:, ::-1] * sheet.scale))
        if flipped is not None and lies_well(flipped):
            why = f"it fits when x and y change places: {flipped.inside:.0%} of its area is ink then, "
            why += f"{0 if place is None else place.inside:.0%} as it is"
            yield finding(raw, box, "swapped", ERROR, why)
