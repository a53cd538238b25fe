"""What the probability map says: which pixels are text, and how sure the map is of a shape.

Shapes: h w map pixels, N shapes, P points. A probability map (h, w) is contiguous float32 in 0..1.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrlab.errors import ShapeError

Map = NDArray[np.float32]


def text_mask(heat: Map, threshold: float) -> NDArray[np.uint8]:
    """Return a mask (h, w) of 0 and 1, 1 where a probability map is above `threshold`.

    Raises ShapeError if the map holds NaN or anything outside 0..1.
    """
    if not (heat.min() >= 0 and heat.max() <= 1):
        got = f"{int(np.isnan(heat).sum())} NaN, {int((heat < 0).sum())} below 0, {int((heat > 1).sum())} above 1"
        what, do = "The probability map holds values that are not probabilities", "look for NaN in its weights"
        raise ShapeError(what, got=got, need="float32 in 0..1", do=f"Apply the sigmoid of the head, and {do}")
    return (heat > np.float32(threshold)).view(np.uint8)


def box_scores(heat: Map, boxes: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the mean probability (N,) inside convex quads (N, 4, 2), their borders included.

    As published, corners are cut to whole pixels, and what lies outside the map does not count.
    """
    last = np.array(heat.shape[::-1], np.int32) - 1
    first = np.clip(np.floor(boxes.min(axis=1)), 0, last).astype(np.int32)
    corners = (boxes - first[:, None].astype(np.float32)).astype(np.int32)  # cut towards the first pixel, not to 0
    means = np.full(len(boxes), np.nan)
    kernels().box_means(heat, corners + first[:, None], means)
    for i in np.flatnonzero(np.isnan(means)):  # partly outside the map, where OpenCV draws otherwise
        x, y = first[i]
        right, bottom = np.clip(np.ceil(boxes[i].max(axis=0)), 0, last).astype(np.int32)
        means[i] = inside(heat[y : bottom + 1, x : right + 1], corners[i])
    return means


def polygon_scores(heat: Map, polygons: Sequence[NDArray[np.int32]]) -> NDArray[np.float64]:
    """Return the mean probability (N,) inside polygons (P, 2) of whole pixels, their borders included."""
    means = np.full(len(polygons), np.nan)
    if polygons:
        kernels().polygon_means(heat, *flat(polygons), means)
    for i in np.flatnonzero(np.isnan(means)).tolist():
        x, y, width, height = cv2.boundingRect(polygons[i])
        means[i] = inside(heat[y : y + height, x : x + width], polygons[i], (-x, -y))
    return means


def flat(polygons: Sequence[NDArray[np.int32]]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return all points (T, 2) of at least one polygon, and where each starts in them, and the last ends: (N + 1,)."""
    return np.concatenate(polygons), np.cumsum([0, *map(len, polygons)], dtype=np.int64)


def inside(window: Map, points: NDArray[np.int32], move: tuple[int, int] = (0, 0)) -> float:
    """Return the mean of a window of the map inside a polygon (P, 2), in pixels of the window once moved by `move`."""
    mask = np.zeros(window.shape, np.uint8)
    cv2.fillPoly(mask, [points], 1, offset=move)
    return cv2.mean(window, mask)[0]  # type: ignore[no-any-return]


def kernels() -> ModuleType:
    """Return the compiled loops; the first call compiles them, which takes longer than all other imports."""
    from ocrlab.evaluation.postprocess import numba_kernels

    return numba_kernels
