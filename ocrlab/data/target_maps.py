"""Polygons to the target maps of the DB head: shrink map, threshold map, and a mask for each.

Equal to the published method (Liao et al. 2020, Real-time Scene Text Detection with Differentiable Binarization), but
that rounding never leaves holes in the threshold map, and that polygons may lie outside the page.
Boxes inside the image take compiled loops, all else pyclipper and OpenCV.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrlab import geometry
from ocrlab.errors import ShapeError

Map = NDArray[np.float32]
Maps = tuple[Map, Map, Map, Map]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

FAR = 1e6  # pixels; points farther out are moved here, where OpenCV's fixed-point numbers still work
MOST = 300  # points of a polygon that are drawn; Clipper and the border take the square of their number
FINE = (0.25, 0.5, 1.0, 2.0)  # pixels that a polygon may move, so that it needs fewer points


@dataclass
class Targets:
    """The maps (h, w) float32 of a page, and which of its N polygons are not learned, (N,) bool."""

    shrink_map: Map  # 1 inside the shrunk polygons, else 0
    shrink_mask: Map  # 0 inside ignored polygons, else 1
    threshold_map: Map  # highest on the outline of a polygon, lowest from one shrink distance on
    threshold_mask: Map  # 1 where the threshold map is learned, else 0
    ignored: Flags

    @property
    def maps(self) -> Maps:
        """The four maps, in the order of the fields."""
        return self.shrink_map, self.shrink_mask, self.threshold_map, self.threshold_mask


def make(
    polygons: Sequence[NDArray[Any]],
    ignored: Flags,
    size: tuple[int, int],
    *,
    shrink_ratio: float,
    threshold_range: tuple[float, float],
    min_text_size: float = 3,
) -> Targets:
    """Return the target maps of N polygons, each (P, 2) xy in pixels, on a page of size (h, w).

    A polygon is also ignored if its width or height is below `min_text_size` pixels, or if nothing is left of it when
    shrunk; one of less than three points or with a coordinate that is not finite is ignored and not drawn. Polygons may
    leave the page; one of more than `MOST` points is drawn without those that it can do without. Raises
    ShapeError for arrays of a wrong shape.
    """
    if len(size) != 2 or min(size) < 1:
        raise ShapeError("This is not a page size", got=size, need="(height, width) in pixels, both at least 1")
    flags = np.array(ignored, bool)  # a copy, written to below
    if flags.shape != (len(polygons),):
        raise ShapeError("Each polygon needs one flag", got=f"ignored {flags.shape}", need=f"({len(polygons)},)")
    starts = np.cumsum([0, *map(len, polygons)], dtype=np.int64)  # of each polygon in all points; (N + 1,)
    filled = [p for p in polygons if len(p)]
    try:
        points = np.concatenate(filled, dtype=np.float64, casting="unsafe") if filled else np.zeros((0, 2))
    except ValueError:
        points = np.zeros(0)
    if points.ndim != 2 or points.shape[1] != 2:
        shapes = sorted({np.shape(p) for p in filled})
        raise ShapeError("These are not polygons", got=f"arrays of shape {shapes}", need="(P, 2), x and y in pixels")
    low, high = threshold_range
    zeros, ones = np.zeros(size, np.float32), np.ones(size, np.float32)  # zeros cost nothing before they are drawn on
    maps = Targets(zeros, ones, np.full(size, low, np.float32), np.zeros(size, np.float32), flags)
    left_over = np.ones(len(polygons), bool)
    from ocrlab.data import target_maps_numba as loops  # compiled now, which takes longer than all other imports

    figures = float(shrink_ratio), float(low), float(high), float(min_text_size), FAR
    loops.draw(points, starts, flags, *figures, *maps.maps, left_over)
    for i in np.flatnonzero(left_over):
        polygon = points[starts[i] : starts[i + 1]]
        flags[i] = True
        if len(polygon) < 3 or not np.isfinite(polygon).all():
            continue
        polygon = thinned(np.clip(polygon, -FAR, FAR))
        distance = geometry.shrink_distance(polygon, shrink_ratio)
        inner: list[geometry.Polygon] = []
        if distance > 0 and not ignored[i] and np.ptp(polygon, axis=0).min() >= min_text_size:
            inner = geometry.offset(polygon, -distance)
        if not inner:
            cv2.fillPoly(maps.shrink_mask, [polygon.astype(np.int32)], 0)
            continue
        flags[i] = False
        cv2.fillPoly(maps.shrink_map, [inner[0].astype(np.int32)], 1)
        for outer in geometry.offset(polygon, distance)[:1]:
            cv2.fillPoly(maps.threshold_mask, [outer.astype(np.int32)], 1)
            last = np.array(size[::-1]) - 1
            box = np.concatenate((np.maximum(outer.min(axis=0), 0), np.minimum(outer.max(axis=0), last)))
            box = box.astype(np.int64)
            if (box[:2] <= box[2:]).all():
                loops.border(polygon, distance, box, low, high, maps.threshold_map)
    return maps


def thinned(polygon: Floats) -> Floats:
    """Return a polygon (P, 2) of at most `MOST` points: itself, or what is left without those that it needs least.

    Source: Douglas and Peucker 1973, with the first of the distances `FINE` that suffices; after that every nth point.
    """
    for far in FINE:
        if len(polygon) > MOST:
            polygon = cv2.approxPolyDP(polygon.astype(np.float32)[:, None], far, True)[:, 0].astype(np.float64)
    return polygon[:: -(-len(polygon) // MOST)].copy() if len(polygon) > MOST else polygon
