"""What a box's own numbers say: no polygon, no area, crossing itself, outside, wrong order, twice, over others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import shapely

from ocrlab import geometry
from ocrlab.data.audit.finding import ERROR, NOTE, WARN
from ocrlab.data.audit.raw_annotations import Box
from ocrlab.geometry import Polygon

Problem = tuple[str, str, str]  # kind, severity, why

OUT_SHARE = 0.1  # of a box's area outside the image, above which it is more than a sloppy edge
SAME_BOX, SAME_WORD = 0.5, 0.25  # IoU of two boxes, from which they box the same line; with the same text
SAME_EXACTLY = 0.95
NESTED = 0.9  # of the smaller box inside the larger one, with the same text
LARGEST = 2**24  # pixels; float32 holds no whole numbers beyond, and no image is as large
SWALLOWED = 3  # boxes with text whose centres lie in another one, from which that is no line
HABIT = 0.9  # of the quads of a page start at the top left, from which another corner is a mistake
SLANT = 0.5  # |vertical| / |horizontal| part of the first edge, below which it has a direction


def broken(box: Box) -> Problem | None:
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


def outside(polygon: Polygon, width: int, height: int) -> Problem | None:
    """Say how far a box (P, 2) leaves an image of width x height pixels; a pixel is a sloppy edge and nothing."""
    low, high = polygon.min(axis=0), polygon.max(axis=0)
    beyond = float(max(-low[0], -low[1], high[0] - width, high[1] - height))
    if beyond <= 1:
        return None
    shape = shapely.Polygon(polygon.astype(np.float64))
    share = 1 - shapely.intersection(shape, shapely.box(0, 0, width, height)).area / shape.area
    why = f"{beyond:.0f} px and {share:.0%} of its area are outside the {width} x {height} image"
    return "outside", ERROR if share > 0.5 else WARN if share > OUT_SHARE else NOTE, why


def habits(boxes: list[Box], good: list[int]) -> bool:
    """Tell whether the quads of a page start at the top left with an edge to the right, nearly all of them."""
    quads = [p for i in good if (p := boxes[i].polygon) is not None and len(p) == 4]
    if len(quads) < 10:
        return False
    first = np.array([quad[1] - quad[0] for quad in quads])
    return bool(((first[:, 0] > 0) & (np.abs(first[:, 1]) < SLANT * first[:, 0])).mean() >= HABIT)


def backwards(polygon: Polygon, text: str = "", *, upright: bool = False) -> Problem | None:
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


def swallowing(boxes: list[Box], good: list[int]) -> Iterator[tuple[int, str, str, str]]:
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


def twice(boxes: list[Box], good: list[int]) -> Iterator[tuple[int, int, str, str]]:
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
