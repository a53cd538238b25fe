"""Polygons as arrays: area, order, validity, offset, and the exact inverse of the shrink.

A polygon is (P, 2), x and y in pixels, y pointing down; a quad is a polygon of 4 points. All arithmetic is float64,
polygons are given back as float32. Nothing here knows maps or the network.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyclipper
import shapely
from numpy.typing import ArrayLike, NDArray

from ocrlab.errors import ConfigError, ShapeError

Polygon = NDArray[np.float32]
Floats = NDArray[np.float64]

REASONS = ("too_few_points", "too_small", "zero_span", "empty", "none")
FAR = 2.0**30  # pixels; farther out, Clipper's whole numbers overflow
SAME = 0.95  # overlap at which a quad with clamped corners stands for a cut quad


def area(polygon: ArrayLike) -> float:
    """Return the signed area of a polygon (P, 2) in square pixels, positive if it runs clockwise on the screen."""
    p = _points(polygon)
    if len(p) < 3:
        return 0.0
    x, y = (p - p[0]).T  # the first point is the origin, so the closing edge adds nothing
    return float(x[:-1] @ y[1:] - y[:-1] @ x[1:]) / 2


def perimeter(polygon: ArrayLike) -> float:
    """Return the length of the closed outline of a polygon (P, 2) in pixels."""
    p = _points(polygon)
    if len(p) < 2:
        return 0.0
    steps, (x, y) = p[1:] - p[:-1], p[0] - p[-1]
    return float(np.hypot(steps[:, 0], steps[:, 1]).sum()) + math.hypot(x, y)


def order(polygon: ArrayLike) -> Polygon:
    """Return a polygon (P, 2) with its points clockwise on the screen.

    A quad is untangled if its outline crosses itself, and starts at the top left: at the edge that points most to the
    right, which is stable up to a turn of 45 degrees. A polygon of more points keeps its first point.
    """
    p = _points(polygon)
    if len(p) != 4:
        return (p if area(p) >= 0 else np.roll(p[::-1], 1, axis=0)).astype(np.float32)
    p = _untangled(p)
    if area(p) < 0:
        p = p[::-1]
    edges = np.roll(p, -1, axis=0) - p
    rightward = edges[:, 0] - np.roll(edges[:, 0], 2)  # with the opposite edge: a slanted end does not matter
    best = np.flatnonzero(rightward >= rightward.max() - 1e-6 * np.abs(edges).sum())
    first = best[p[best, 1].argmin()]  # the upper one, should a diamond have two
    return np.roll(p, -first, axis=0).astype(np.float32)


def judge(polygon: ArrayLike | None, width: float, height: float, min_size: float = 1.0) -> tuple[Polygon | None, str]:
    """Return a polygon (P, 2) clipped to an image of width x height pixels, repaired, ordered; or None; and a reason.

    `too_few_points`: less than three. `zero_span`: all points on one line. `empty`: no points, a coordinate that is not
    finite, or nothing of it inside the image. `too_small`: inside the image its width or height is below `min_size`
    pixels, or its area below the square of that. `none`: nothing is wrong; or there was no polygon, None was given.
    An outline that crosses itself is repaired: the corners of a quad are sorted, of others the largest part is kept.
    """
    if polygon is None:
        return None, "none"
    p = _points(polygon)
    if len(p) == 0 or not np.isfinite(p).all():
        return None, "empty"
    if len(p) < 3:
        return None, "too_few_points"
    p = p[(p != np.roll(p, -1, axis=0)).any(axis=1)]  # no repeated points, nor a last one that closes the ring
    if len(p) < 3 or _flat(p):
        return None, "zero_span"
    if len(p) == 4:
        p = _untangled(p)
    elif not shapely.is_valid(shape := shapely.Polygon(p)):
        part = _largest(shapely.make_valid(shape), p[0])
        p = p if part is None else part
    inside = _clipped(p, width, height)
    if inside is None:
        return None, "empty"
    if np.ptp(inside, axis=0).min() < min_size or abs(area(inside)) < min_size**2:
        return None, "too_small"
    return order(inside), "none"


def offset(polygon: ArrayLike, distance: float) -> list[Polygon]:
    """Return the polygons (P, 2), in whole pixels, that a polygon is when its edges have moved outwards by `distance`.

    Corners are rounded; a negative distance moves inwards, which can give several polygons or none. The coordinates are
    cut to whole numbers first, as in the published method. Raises ShapeError for what is not finite or too far out.
    Source: Clipper 6 by A. Johnson, JT_ROUND and ET_CLOSEDPOLYGON, arc tolerance 0.25.
    """
    p = _points(polygon)
    if not np.isfinite(distance) or not np.isfinite(p).all() or (np.abs(p) + abs(distance) > FAR).any():
        got = f"distance {distance}, points {p.tolist()}"
        raise ShapeError("This polygon cannot be offset", got=got, need=f"finite numbers, at most {FAR:.0f} in size")
    if len(p) < 3:
        return []
    clipper = pyclipper.PyclipperOffset()
    clipper.AddPath(p.astype(np.int64).tolist(), pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
    return [np.array(path, np.float32) for path in clipper.Execute(distance)]


def shrink_distance(polygon: ArrayLike, ratio: float) -> float:
    """Return by how many pixels the edges of a polygon (P, 2) move inwards: area (1 - ratio^2) / perimeter.

    Source: Liao et al. 2020, Real-time Scene Text Detection with Differentiable Binarization, equation 10.
    """
    length = perimeter(polygon)
    return abs(area(polygon)) * (1 - ratio * ratio) / length if length > 0 else 0.0


def unshrink_distance(area: ArrayLike, perimeter: ArrayLike, shrink_ratio: float, corners: float = 4.0) -> Floats:
    """Return by how many pixels the edges of shrunk polygons have to move outwards to undo the shrink exactly.

    `area` and `perimeter` (any shape, together broadcast) are those of the shrunk polygons; the answer has their shape.
    `corners` is the sum of the tangents of the half turning angles of the outline: 4 for a rectangle, pi for a circle.
    Raises ConfigError for a ratio outside 0..1.

    Moving the edges of a convex outline by d turns area a and perimeter l into A = a + l d + c d^2, L = l + 2 c d, and
    the shrink chose d = A (1 - r^2) / L; together they are c (1 + r^2) d^2 + r^2 l d - (1 - r^2) a = 0.
    """
    if not 0 < shrink_ratio < 1:
        raise ConfigError("The shrink ratio is out of range", got=shrink_ratio, need="a number between 0 and 1")
    square = shrink_ratio * shrink_ratio
    a, b = np.abs(np.asarray(area, np.float64)), square * np.asarray(perimeter, np.float64)
    root = np.sqrt(b * b + 4 * corners * (1 + square) * (1 - square) * a)
    with np.errstate(invalid="ignore"):
        distance = 2 * (1 - square) * a / (b + root)  # this form of the root does not cancel
    return np.where(b + root > 0, distance, 0.0)


def _points(polygon: ArrayLike) -> Floats:
    """Return a polygon as (P, 2) float64; raises ShapeError for another shape."""
    p = np.asarray(polygon, np.float64)
    if p.size == 0:
        return p.reshape(0, 2)
    if p.ndim != 2 or p.shape[1] != 2:
        raise ShapeError("This is not a polygon", got=f"an array of shape {p.shape}", need="(P, 2), x and y in pixels")
    return p


def _flat(p: Floats) -> bool:
    """Return whether all points lie on one line."""
    rays = p - p[0]
    longest = rays[np.square(rays).sum(axis=1).argmax()]
    return bool(np.abs(rays[:, 0] * longest[1] - rays[:, 1] * longest[0]).max() <= 1e-9 * (longest @ longest))


def _untangled(p: Floats) -> Floats:
    """Return a quad whose outline crosses itself with its points sorted around their middle, another one as it is."""
    ahead, before = np.roll(p, -1, axis=0) - p, p - np.roll(p, 1, axis=0)
    turns = before[:, 0] * ahead[:, 1] - before[:, 1] * ahead[:, 0]
    if (turns >= 0).all() or (turns <= 0).all() or shapely.is_valid(shapely.Polygon(p)):
        return p
    away = p - p.mean(axis=0)
    return p[np.arctan2(away[:, 1], away[:, 0]).argsort()]


def _clipped(p: Floats, width: float, height: float) -> Floats | None:
    """Return what of a polygon is inside the image, still a quad where that loses next to nothing; None if nothing."""
    if p.min() >= 0 and p[:, 0].max() <= width and p[:, 1].max() <= height:
        return p
    start = order(p)[0]
    ring = _largest(shapely.intersection(shapely.Polygon(p), shapely.box(0, 0, width, height)), start)
    if ring is None or len(p) != 4 or len(ring) == 4:
        return ring
    clamped = np.clip(p, 0, (width, height))
    cut, quad = shapely.Polygon(ring), shapely.Polygon(clamped)
    same = shapely.is_valid(quad) and shapely.intersection(cut, quad).area >= SAME * shapely.union(cut, quad).area
    return clamped if same else ring


def _largest(shape: Any, start: NDArray[Any]) -> Floats | None:
    """Return the outline of the largest polygon of a shape, from its point next to `start` on; None if it has none."""
    flat = shapely.get_parts(shapely.get_parts(shape))  # twice: collections hold multi-polygons
    parts = [part for part in flat if part.geom_type == "Polygon" and part.area > 0]
    if not parts:
        return None
    ring = shapely.get_coordinates(max(parts, key=lambda part: part.area).exterior)[:-1]
    return np.roll(ring, -int(np.square(ring - start).sum(axis=1).argmin()), axis=0)
