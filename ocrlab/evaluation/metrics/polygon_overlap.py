"""Polygons ready for measuring: which are valid, their areas, and the areas that pairs of them share.

N polygons, L pairs. A polygon is (P, 2), x and y in pixels; valid means at least 3 points, all finite, that enclose an
area and do not cross. Two convex quads, nearly all there is on a page, are intersected directly and all at once; for
everything else shapely decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import shapely

SMALLEST = 1e-9  # square pixels; less is not an area
LARGEST = 1e9  # pixels; a coordinate beyond it is not a place on a page, and its square could overflow
DOUBTFUL = 1e-9  # of the square of a pair's extent; three points that are nearer to one line are left to shapely

Polygons = Sequence[npt.ArrayLike] | npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]


NEXT = [1, 2, 3, 0]  # the corner after each; np.roll does the same in three times the time


@dataclass(frozen=True)
class Shapes:
    """N polygons: `points` as float64 (P, 2), and those of `four` points again as `corners` (N, 4, 2), else zeros.

    `quads` (N, 4, 2) are the corners of what is `convex`, clockwise, else zeros; `others` (N,) are shapely polygons of
    the other valid ones, else None. `area` is 0 and `bounds` (N, 4), left, top, right and bottom, NaN if not `valid`.
    """

    points: Sequence[Floats]
    four: Mask
    corners: Floats
    quads: Floats
    convex: Mask
    others: npt.NDArray[np.object_]
    valid: Mask
    area: Floats
    bounds: Floats

    def __len__(self) -> int:
        return len(self.points)

    @cached_property
    def objects(self) -> npt.NDArray[np.object_]:
        """Shapely polygons (N,), None where not valid."""
        polygons = self.others.copy()
        if self.convex.any():
            polygons[self.convex] = shapely.polygons(self.quads[self.convex])
        return polygons


def shapes(polygons: Polygons | Shapes) -> Shapes:
    """Prepare polygons for measuring; none raises, however broken: what is not valid has no area."""
    if isinstance(polygons, Shapes):
        return polygons
    points, four, corners = _read(polygons)
    usable: Mask = np.all(np.abs(corners) <= LARGEST, axis=(1, 2))  # NaN compares false
    corners = np.where(usable[:, None, None], corners, 0.0)
    quads = corners.copy()
    edges = quads[:, NEXT] - quads
    turns = cross(edges, edges[:, NEXT])  # (N, 4), at each corner
    size = np.square(edges).sum(axis=2).max(axis=1, initial=0)[:, None] * DOUBTFUL
    clockwise, counter = (turns > size).all(axis=1), (turns < -size).all(axis=1)
    quads[counter] = quads[counter, ::-1]
    area = cross(quads[:, 2] - quads[:, 0], quads[:, 3] - quads[:, 1]) / 2
    convex: Mask = (clockwise | counter) & (area > SMALLEST)
    others = np.full(len(points), None, dtype=object)
    if convex.all():
        bounds = np.concatenate([quads.min(axis=1), quads.max(axis=1)], axis=1)
        return Shapes(points, four, corners, quads, convex, others, convex, area, bounds)
    quads[~convex] = 0
    others[~convex] = objects([p for p, done in zip(points, convex, strict=True) if not done])
    area = np.where(convex, area, np.nan_to_num(shapely.area(others)))
    bounds = np.concatenate([quads.min(axis=1), quads.max(axis=1)], axis=1)
    bounds[~convex] = shapely.bounds(others[~convex])
    return Shapes(points, four, corners, quads, convex, others, convex | ~shapely.is_missing(others), area, bounds)


def _read(polygons: Polygons) -> tuple[Sequence[Floats], Mask, Floats]:
    """Return polygons as arrays (P, 2), which of them have four points, and these once more as (N, 4, 2)."""
    try:
        every = np.asarray(polygons, dtype=np.float64)  # 5 times as quick as one by one, where all are quads
    except (TypeError, ValueError):
        every = np.empty(0)
    if every.ndim == 3 and every.shape[1:] == (4, 2):
        return list(every), np.ones(len(every), dtype=bool), every
    points = [as_points(polygon) for polygon in polygons]
    four = np.array([len(p) == 4 for p in points], dtype=bool)
    corners = np.zeros((len(points), 4, 2))
    if four.any():
        corners[four] = [p for p in points if len(p) == 4]
    return points, four, corners


def short_sides(boxes: Shapes) -> Floats:
    """Return the short sides (N,) in pixels of the rectangles of the same area and outline; 0 where not valid."""
    outline = np.zeros(len(boxes))
    corners = boxes.quads[boxes.convex]
    outline[boxes.convex] = np.sqrt(np.square(corners[:, NEXT] - corners).sum(axis=2)).sum(axis=1)
    outline += np.nan_to_num(shapely.length(boxes.others))
    return outline / 4 - np.sqrt(np.maximum(np.square(outline / 4) - boxes.area, 0.0))


def as_points(polygon: npt.ArrayLike | None) -> Floats:
    """Return a polygon as (P, 2) float64, or (0, 2) when it is not a list of points."""
    try:
        points = np.asarray(polygon, dtype=np.float64)
    except (TypeError, ValueError):  # ragged, or not numbers
        return np.empty((0, 2))
    return points if points.ndim == 2 and points.shape[1] == 2 else np.empty((0, 2))


def objects(points: Sequence[Floats | None]) -> npt.NDArray[np.object_]:
    """Return shapely polygons (N,), None where there is none or it is not valid."""
    polygons = np.full(len(points), None, dtype=object)
    usable = np.array([p is not None and len(p) >= 3 and bool((np.abs(p) <= LARGEST).all()) for p in points], bool)
    if usable.any():
        usable_points = [p for p, good in zip(points, usable, strict=True) if p is not None and good]
        owner = np.repeat(np.arange(len(usable_points)), [len(p) for p in usable_points])
        polygons[usable] = shapely.polygons(shapely.linearrings(np.concatenate(usable_points), indices=owner))
        polygons[~(shapely.is_valid(polygons) & (shapely.area(polygons) > SMALLEST))] = None
    return polygons


def meeting(first: Floats, second: Floats, margin: float = 0.0) -> tuple[Indices, Indices]:
    """Return the pairs, as positions in both, whose bounds (N, 4) overlap by more than -`margin` pixels."""
    wide = np.minimum.outer(first[:, 2], second[:, 2]) > np.maximum.outer(first[:, 0], second[:, 0]) - margin
    high = np.minimum.outer(first[:, 3], second[:, 3]) > np.maximum.outer(first[:, 1], second[:, 1]) - margin
    rows, columns = np.nonzero(wide & high)  # NaN, of what is not valid, meets nothing
    return rows, columns


def shared_areas(first: Shapes, second: Shapes, rows: Indices, columns: Indices) -> Floats:
    """Return the area (L,) in square pixels that polygon `rows[i]` of `first` shares with polygon `columns[i]`."""
    quads = first.convex[rows] & second.convex[columns]
    area = np.zeros(len(rows))
    area[quads], sure = convex_areas(first.quads[rows[quads]], second.quads[columns[quads]])
    rest = ~quads
    rest[np.flatnonzero(quads)[~sure]] = True
    if rest.any():
        area[rest] = shapely.area(shapely.intersection(first.objects[rows[rest]], second.objects[columns[rest]]))
    return area


def convex_areas(first: Floats, second: Floats) -> tuple[Floats, Mask]:
    """Return the shared areas (L,) of convex quads (L, 4, 2), both clockwise, and which of them are to be relied on.

    The outline of what two convex polygons share is made of the parts of each outline inside the other; half the cross
    product along it is the area (Green). Each edge is cut by the four sides of the other quad (Cyrus and Beck 1978).
    Where two edges lie on one line, one of them counts if both run the same way, and none if they only touch.
    """
    count = len(first)
    origin = first[:, :1]
    both = np.concatenate([first - origin, second - origin]).transpose(2, 1, 0)  # (2, 4, 2L), the long axis last
    cutter = np.concatenate([both[..., count:], both[..., :count]], axis=2)
    (ax, ay), (bx, by) = both, cutter
    dx, dy = both[:, NEXT] - both
    ex, ey = cutter[:, NEXT] - cutter
    start = ex * (ay[:, None] - by) - ey * (ax[:, None] - bx)  # (4 edges, 4 sides, 2L); above 0 is inside
    end = start[NEXT]
    with np.errstate(divide="ignore", invalid="ignore"):
        at = start / (start - end)
    low = np.where(start < 0, np.where(end > 0, at, 1.0), 0.0)
    high = np.where(end < 0, np.where(start > 0, at, 0.0), 1.0)
    on_line = (start == 0) & (end == 0)
    if on_line.any():
        along = (dx[:, None] * ex + dy[:, None] * ey > 0) & (np.arange(2 * count) < count)
        high[on_line & ~along] = 0.0
    span = np.maximum(high.min(axis=1) - low.max(axis=1), 0.0)  # (4, 2L), the share of each edge that is inside
    area = (span * (ax * dy - ay * dx)).sum(axis=0).reshape(2, count).sum(axis=0) / 2
    tiny = DOUBTFUL * np.square(np.ptp(both, axis=1).max(axis=0).reshape(2, count).max(axis=0))
    doubtful = (np.abs(start) < np.tile(tiny, 2)) & (start != 0)
    return np.maximum(area, 0.0), ~doubtful.any(axis=(0, 1)).reshape(2, count).any(axis=0)


def cross(a: Floats, b: Floats) -> Floats:
    """Return the cross product of vectors (..., 2)."""
    product: Floats = a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
    return product
