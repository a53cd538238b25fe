"""Polygons to the target maps of the DB head: shrink map, threshold map, and a mask for each.

Equal to the published method (Liao et al. 2020, Real-time Scene Text Detection with Differentiable Binarization), but
that rounding never leaves holes in the threshold map, and that polygons may lie outside the page.
Boxes inside the image take compiled loops (`kernels`), all else pyclipper and OpenCV; without numba NumPy does it all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrlab import compiled_loops, geometry
from ocrlab.errors import ShapeError

Map = NDArray[np.float32]
Maps = tuple[Map, Map, Map, Map]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

FAR = 1e6  # pixels; points farther out are moved here, where OpenCV's fixed-point numbers still work
MOST = 300  # points of a polygon that are drawn; Clipper and the border take the square of their number
FINE = (0.25, 0.5, 1.0, 2.0)  # pixels by which a polygon of more points may move so that it has fewer


@dataclass
class Targets:
    """The maps (h, w) float32 of a page, and which of its N polygons are not learned: (N,) bool, given or found so."""

    shrink_map: Map  # 1 inside the shrunk polygons, else 0
    shrink_mask: Map  # 0 inside ignored polygons, else 1
    threshold_map: Map  # highest on the outline of a polygon, lowest from one shrink distance on
    threshold_mask: Map  # 1 where the threshold map is learned, else 0
    ignored: Flags

    @property
    def maps(self) -> Maps:
        """The four maps, in the order of the fields."""
        return self.shrink_map, self.shrink_mask, self.threshold_map, self.threshold_mask


@dataclass(frozen=True)
class Settings:
    """How polygons are drawn, and with which function the border is."""

    shrink_ratio: float
    low: float
    high: float
    min_text_size: float
    border: Callable[[Floats, float, Ints, float, float, Map], None]


def buffers(size: tuple[int, int]) -> Targets:
    """Return maps of size (h, w) to be drawn into again and again: new memory costs more than the drawing."""
    shrink_map, shrink_mask, threshold_map, threshold_mask = (np.ones(_checked(size), np.float32) for _ in range(4))
    return Targets(shrink_map, shrink_mask, threshold_map, threshold_mask, np.zeros(0, bool))


def make(
    polygons: Sequence[NDArray[Any]],
    ignored: Flags,
    size: tuple[int, int],
    *,
    shrink_ratio: float,
    threshold_range: tuple[float, float],
    min_text_size: float = 3,
    out: Targets | None = None,
    compiled: bool = True,
) -> Targets:
    """Return the target maps of N polygons, each (P, 2) xy in pixels, on a page of size (h, w).

    A polygon is also ignored if its width or height is below `min_text_size` pixels, or if nothing is left of it when
    shrunk; one of less than three points or with a coordinate that is not finite is ignored and not drawn. Polygons may
    leave the page; one of more than `MOST` points is drawn without those that it can do without. With `out` (see
    `buffers`) its arrays are overwritten and returned. `compiled=False` takes the NumPy path, which gives the same
    maps. Raises ShapeError for arrays of a wrong shape or dtype.
    """
    flags = np.array(ignored, bool)  # a copy, written to below
    points, starts = _flat(polygons)
    if flags.shape != (len(polygons),):
        raise ShapeError("Each polygon needs one flag", got=f"ignored {flags.shape}", need=f"({len(polygons)},)")
    low, high = threshold_range
    size = _checked(size)
    if out is None:  # pages of zeros are not touched before something is drawn there
        zeros, ones = np.zeros(size, np.float32), np.ones(size, np.float32)
        maps: Maps = (zeros, ones, np.full(size, low, np.float32), np.zeros(size, np.float32))
    else:
        maps = out.maps
        for plane, value in zip(maps, (0, 1, low, 0), strict=True):
            usable = plane.flags.c_contiguous and plane.flags.writeable
            if plane.shape != size or plane.dtype != np.float32 or not usable:
                got, need = f"{plane.dtype} {plane.shape}", f"contiguous float32 {size}"
                raise ShapeError("These maps cannot be drawn into", got=got, need=need, do="Use targets.buffers(size)")
            plane.fill(value)
    kernels = compiled_loops.load("ocrlab.data.target_maps_numba") if compiled else None
    left_over = np.ones(len(polygons), bool)
    if kernels:
        numbers = (shrink_ratio, low, high, min_text_size, FAR)
        kernels.draw(points, starts, flags, *map(float, numbers), *maps, left_over)
    settings = Settings(shrink_ratio, low, high, min_text_size, kernels.border if kernels else _border)
    for i in np.flatnonzero(left_over):
        flags[i] = not _draw(points[starts[i] : starts[i + 1]], bool(flags[i]), maps, settings)
    return Targets(*maps, ignored=flags)


def _checked(size: tuple[int, int]) -> tuple[int, int]:
    """Return a page size; raises ShapeError if it is not (h, w), both at least 1."""
    if len(size) != 2 or min(size) < 1:
        raise ShapeError("This is not a page size", got=size, need="(height, width) in pixels, both at least 1")
    return int(size[0]), int(size[1])


def _flat(polygons: Sequence[NDArray[Any]]) -> tuple[Floats, Ints]:
    """Return all points (T, 2), and where each polygon starts in them, and the last one ends: (N + 1,)."""
    starts = np.cumsum([0, *map(len, polygons)], dtype=np.int64)
    filled = [p for p in polygons if len(p)]
    try:
        points = np.concatenate(filled, dtype=np.float64, casting="unsafe") if filled else np.zeros((0, 2))
    except ValueError:
        points = np.zeros(0)
    if points.ndim != 2 or points.shape[1] != 2:
        shapes = sorted({np.shape(p) for p in filled})
        raise ShapeError("These are not polygons", got=f"arrays of shape {shapes}", need="(P, 2), x and y in pixels")
    return points, starts


def _draw(polygon: Floats, ignored: bool, maps: Maps, settings: Settings) -> bool:
    """Draw one polygon of any shape, anywhere; return whether it is to be learned."""
    shrink_map, shrink_mask, threshold_map, threshold_mask = maps
    if len(polygon) < 3 or not np.isfinite(polygon).all():
        return False
    polygon = thinned(np.clip(polygon, -FAR, FAR))
    distance = geometry.shrink_distance(polygon, settings.shrink_ratio)
    inner: list[geometry.Polygon] = []
    if distance > 0 and not ignored and np.ptp(polygon, axis=0).min() >= settings.min_text_size:
        inner = geometry.offset(polygon, -distance)
    if not inner:
        cv2.fillPoly(shrink_mask, [polygon.astype(np.int32)], 0)
        return False
    cv2.fillPoly(shrink_map, [inner[0].astype(np.int32)], 1)
    for outer in geometry.offset(polygon, distance)[:1]:
        cv2.fillPoly(threshold_mask, [outer.astype(np.int32)], 1)
        last = np.array(threshold_map.shape[::-1]) - 1
        box = np.concatenate((np.maximum(outer.min(axis=0), 0), np.minimum(outer.max(axis=0), last))).astype(np.int64)
        if (box[:2] <= box[2:]).all():
            settings.border(polygon, distance, box, settings.low, settings.high, threshold_map)
    return True


def thinned(polygon: Floats) -> Floats:
    """Return a polygon (P, 2) of at most `MOST` points: itself, or what is left without those that it needs least.

    Source: Douglas and Peucker 1973, with the first of the distances `FINE` that suffices; after that every nth point.
    """
    for far in FINE:
        if len(polygon) > MOST:
            polygon = cv2.approxPolyDP(polygon.astype(np.float32)[:, None], far, True)[:, 0].astype(np.float64)
    return polygon[:: -(-len(polygon) // MOST)].copy() if len(polygon) > MOST else polygon


def _border(polygon: Floats, distance: float, box: Ints, low: float, high: float, canvas: Map) -> None:
    """Do what `kernels.border` does, with NumPy; each edge only where it is nearer than `distance`."""
    x0, y0, x1, y1 = box
    nearest = np.full((y1 - y0 + 1, x1 - x0 + 1), distance * distance)
    for a, b in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
        first = np.maximum(np.floor(np.minimum(a, b) - distance), box[:2]).astype(np.int64)
        last = np.minimum(np.ceil(np.maximum(a, b) + distance), box[2:]).astype(np.int64)
        if (first > last).any():
            continue
        part = nearest[first[1] - y0 : last[1] - y0 + 1, first[0] - x0 : last[0] - x0 + 1]
        x, y = np.arange(first[0], last[0] + 1), np.arange(first[1], last[1] + 1)[:, None]
        edge = b - a
        square = edge @ edge
        to_a, to_b = (np.square(x - p[0]) + np.square(y - p[1]) for p in (a, b))
        if square == 0:  # a repeated point: published, a pixel right on it is not drawn
            part[to_a == 0] = np.nan
            continue
        line = np.square(edge[0] * (y - a[1]) - edge[1] * (x - a[0])) / square
        np.minimum(part, np.where(square - to_a - to_b < 0, np.minimum(to_a, to_b), line), out=part)
    scale, gain = np.float32(1 / distance), np.float32(high - low)
    value = (1 - np.sqrt(nearest.astype(np.float32)) * scale) * gain + np.float32(low)
    part = canvas[y0 : y1 + 1, x0 : x1 + 1]
    np.fmax(part, value, out=part)  # NaN is no value
