"""Does a box lie on its ink? The box is moved over the ink that no other box has, to see where it would hold most.

Shapes: h w of a patch, the box upright with a margin around it; M margin, in patch pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrlab import geometry
from ocrlab.data.audit.page_image import Mask, Sheet, filled
from ocrlab.geometry import Polygon

REACH = 1.25  # of the height of the box: how far it is moved
FOREIGN = 0.1  # of the ink in a box, below which it has none of its own
HIGHEST = 20  # typical heights; what is higher is not a line
LINK = 0.7  # of the height of the box: letters of one line are closer than this


@dataclass(frozen=True, slots=True)
class Place:
    """How a box lies on its ink; lengths in heights of the box, shares of what the best place would hold."""

    inside: float  # ink inside the box, share of its area, whoever's it is
    own: float  # how much of that no other box has, share of it
    ink_share: float  # of the ink that the best place would hold, what the box holds now
    dx: float  # the best place, to the right
    dy: float  # and down
    out: tuple[float, float, float, float]  # ink of the line beyond the left, top, right, bottom: how far
    blank: tuple[float, float, float, float]  # paper inside at the left, top, right, bottom: how deep


def look(sheet: Sheet, polygon: Polygon) -> Place | None:
    """Measure one box (P, 2) of a sheet; None if it is not a line: below 3 pixels, too high, or wider than the page."""
    quad, width, height = upright(polygon)
    if min(width, height) < 3 or height > HIGHEST * sheet.text or width > 2 * max(sheet.ink.shape):
        return None
    w, h = round(width), round(height)
    margin = round(REACH * h)
    ink, own = patches(sheet, polygon, quad, (w, h), margin)
    inner = (slice(margin, margin + h), slice(margin, margin + w))
    share = float(own[inner].sum() / max(ink[inner].sum(), 1))
    linked = (
        own if share >= FOREIGN else ink
    )  # if others have it all: then it is at least no edge that cuts through ink
    if linked[inner].sum() >= 0.02 * w * h:  # the ink that is one line with what lies in the box
        kernel = np.ones((1, 2 * round(LINK * h / 2) + 1), np.uint8)
        joined = cv2.morphologyEx(linked.astype(np.uint8), cv2.MORPH_CLOSE, kernel)
        _, labels = cv2.connectedComponents(joined, connectivity=8)
        linked = linked & np.isin(labels, np.unique(labels[inner][linked[inner]]))
    ink_share, dx, dy = _best(linked, (w, h), margin)
    out, blank = [], []
    columns: Mask = np.asarray(linked[inner[0]].any(axis=0))
    rows: Mask = np.asarray(linked[:, inner[1]].any(axis=1))
    for profile in (columns, rows, columns[::-1], rows[::-1]):
        out.append(_extent(profile[:margin][::-1], margin) / h)
        within = profile[margin : len(profile) - margin]
        blank.append((int(within.argmax()) if within.any() else len(within)) / h)
    inside = float(ink[inner].mean())
    return Place(inside, share, ink_share, dx / h, dy / h, tuple(out), tuple(blank))  # type: ignore[arg-type]


def lies_well(place: Place | None) -> bool:
    """Return whether a box lies on a line of ink: enough of it, and little of it cut by the edges."""
    if place is None:
        return False
    cut = max(min(place.out[1], 1.0), min(place.out[3], 1.0))
    return place.inside >= 0.04 and place.ink_share >= 0.75 and cut < 0.25


def settled(place: Place | None) -> bool:
    """Return whether a box lies on ink and no place beside it has more: loose or slanted perhaps, not shifted."""
    return place is not None and place.inside >= 0.04 and max(abs(place.dx), abs(place.dy)) <= 0.3


def upright(polygon: Polygon) -> tuple[Polygon, float, float]:
    """Return a polygon (P, 2) as a quad (4, 2), clockwise from the top left, and the quad's width and height."""
    quad = geometry.order(polygon if len(polygon) == 4 else cv2.boxPoints(cv2.minAreaRect(polygon.astype(np.float32))))
    return quad, float(np.hypot(*(quad[1] - quad[0]))), float(np.hypot(*(quad[3] - quad[0])))


def patches(sheet: Sheet, polygon: Polygon, quad: Polygon, size: tuple[int, int], margin: int) -> tuple[Mask, Mask]:
    """Return the ink around a box (h, w), turned upright, and that part of it which no other box covers."""
    w, h = size
    corners = quad[[0, 1, 3]].astype(np.float64)
    right, down = (corners[1] - corners[0]) / w, (corners[2] - corners[0]) / h
    reach = np.array([[-1, -1], [1, -1], [-1, 1], [1, 1]]) * margin
    outer = np.concatenate([quad + step @ np.array([right, down]) for step in reach])
    low = np.maximum(np.floor(outer.min(axis=0)).astype(int) - 1, 0)
    high = np.ceil(outer.max(axis=0)).astype(int) + 2
    region = (slice(low[1], high[1]), slice(low[0], high[0]))
    ink, covered = sheet.ink[region], sheet.covered[region].copy()
    window, inside = filled(covered.shape, polygon - low.astype(np.float32))
    covered[window] -= inside
    shape = (w + 2 * margin, h + 2 * margin)
    if ink.size == 0:
        return np.zeros(shape[::-1], bool), np.zeros(shape[::-1], bool)
    both = ink.astype(np.uint8) + 2 * (ink & (covered == 0)).astype(np.uint8)
    matrix = np.column_stack([right, down, corners[0] - low - margin * (right + down)])
    flags = cv2.INTER_NEAREST | cv2.WARP_INVERSE_MAP
    patch = cv2.warpAffine(both, matrix, shape, flags=flags, borderMode=cv2.BORDER_CONSTANT, borderValue=0)
    return patch > 0, patch >= 2


def _best(ink: Mask, size: tuple[int, int], margin: int) -> tuple[float, int, int]:
    """Return which share the box holds of what the best place holds, and the way there in pixels, the shortest one."""
    w, h = size
    sums = cv2.integral(ink.astype(np.uint8))
    span = 2 * margin + 1
    low, high = sums[:span], sums[h : h + span]
    counts = high[:, w : w + span] - low[:, w : w + span] - high[:, :span] + low[:, :span]
    most = int(counts.max())
    if most == 0:
        return 1.0, 0, 0
    steps = np.abs(np.arange(span) - margin)
    far = steps[:, None] + steps[None, :]
    y, x = divmod(int(np.where(counts >= 0.98 * most, far, far.max() + 1).argmin()), span)
    return float(counts[margin, margin] / most), x - margin, y - margin


def _extent(beyond: NDArray[np.bool_], margin: int) -> int:
    """Return how far a run of ink goes from the side outwards; a gap of a letter's width ends it."""
    at = np.flatnonzero(beyond)
    if not len(at) or at[0] > margin * 0.4:
        return 0
    gaps = np.flatnonzero(np.diff(at) > margin * 0.56)
    return int(at[gaps[0]] if len(gaps) else at[-1]) + 1
