"""What the probability map says: which pixels are text, and how sure the map is of a shape.

Shapes: h w map pixels, N shapes, P points.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrlab.errors import ShapeError

Map = NDArray[np.float32]


@functools.cache
def compiled() -> ModuleType | None:
    """Return the compiled loops, or None where numba cannot be imported: then OpenCV and NumPy do the same, slower."""
    try:
        from ocrlab.postprocess import kernels
    except ImportError:
        return None
    return kernels


def binarise(probability: Map, threshold: float) -> NDArray[np.uint8]:
    """Return a mask (h, w) of 0 and 1, 1 where a contiguous map is above `threshold`.

    Raises ShapeError if the map holds NaN or anything outside 0..1.
    """
    limit = np.float32(threshold)
    loops = compiled()
    if loops is not None:
        mask = np.empty(probability.shape, np.uint8)
        fine = loops.binarise(probability.reshape(-1), limit, mask.reshape(-1)) == probability.size
    else:
        mask = (probability > limit).view(np.uint8)
        fine = probability.min() >= 0 and probability.max() <= 1  # both are NaN if one value is
    if not fine:
        raise ShapeError(
            "The probability map holds values that are no probabilities",
            got=f"{int(np.isnan(probability).sum())} NaN, {int((probability < 0).sum())} below 0, "
            f"{int((probability > 1).sum())} above 1",
            need="float32 in 0..1",
            do="Apply the sigmoid of the head, and look for NaN in its weights",
        )
    return mask


def box_scores(probability: Map, boxes: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the mean probability (N,) inside convex quads (N, 4, 2), their borders included.

    As published, corners are cut to whole pixels, and what lies outside the map does not count.
    """
    limit = np.array(probability.shape[::-1]) - 1
    first = np.clip(np.floor(boxes.min(axis=1)), 0, limit).astype(np.int64)[:, None]
    corners = (boxes - first.astype(np.float32)).astype(np.int64) + first
    means = np.empty(len(boxes))
    loops = compiled()
    inside = ((corners >= 0) & (corners <= limit)).all(axis=(1, 2)) & (loops is not None)
    if loops is not None:
        found = np.empty(np.count_nonzero(inside))
        loops.box_means(probability, np.ascontiguousarray(corners[inside]), found)
        means[inside] = found
    for i in np.flatnonzero(~inside):
        means[i] = polygon_score(probability, corners[i].astype(np.int32))
    return means


def polygon_score(probability: Map, points: NDArray[np.int32]) -> float:
    """Return the mean probability inside a polygon (P, 2) of whole pixels, border counted; 0 if it is off the map."""
    x, y, width, height = cv2.boundingRect(points)
    left, top = max(x, 0), max(y, 0)
    window: Any = probability[top : max(y + height, top), left : max(x + width, left)]
    if window.size == 0:
        return 0.0
    mask = np.zeros(window.shape, np.uint8)
    cv2.fillPoly(mask, [points], 1, offset=(-left, -top))
    return float(cv2.mean(window, mask)[0])
