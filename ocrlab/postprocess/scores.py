"""What the probability map says: which pixels are text, and how sure the map is of a shape.

Shapes: h w map pixels, N shapes, P points.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrlab.errors import ShapeError

Map = NDArray[np.float32]

ONE = np.float32(1).view(np.uint32)  # its bits; those of all other numbers in 0..1 are smaller, of -0 and NaN larger


def binarise(probability: Map, threshold: float) -> NDArray[np.uint8]:
    """Return a mask (h, w) of 0 and 1, 1 where a contiguous map is above `threshold`.

    Raises ShapeError if the map holds NaN or anything outside 0..1.
    """
    if probability.view(np.uint32).max() > ONE and not ((probability >= 0) & (probability <= 1)).all():
        raise ShapeError(
            "The probability map holds values that are no probabilities",
            got=f"{int(np.isnan(probability).sum())} NaN, {int((probability < 0).sum())} below 0, "
            f"{int((probability > 1).sum())} above 1",
            need="float32 in 0..1",
            do="Apply the sigmoid of the head, and look for NaN in its weights",
        )
    return (probability > np.float32(threshold)).view(np.uint8)


def box_scores(probability: Map, boxes: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the mean probability (N,) inside quads (N, 4, 2), their borders included.

    As published, corners are cut to whole pixels, and what lies outside the map does not count.
    """
    last = np.array(probability.shape[::-1]) - 1
    first = np.clip(np.floor(boxes.min(axis=1)), 0, last).astype(np.int32)
    corners = (boxes - first[:, None].astype(np.float32)).astype(np.int32)  # cut towards the first pixel, not towards 0
    ends = np.clip(np.ceil(boxes.max(axis=1)), 0, last).astype(np.int32) + 1
    places = zip(corners, first.tolist(), ends.tolist(), strict=True)
    return np.array([inside(probability[y0:y1, x0:x1], points) for points, (x0, y0), (x1, y1) in places], np.float64)


def polygon_score(probability: Map, points: NDArray[np.int32]) -> float:
    """Return the mean probability inside a polygon (P, 2) of whole pixels of the map, its border included."""
    x, y, width, height = cv2.boundingRect(points)
    return inside(probability[y : y + height, x : x + width], points - np.array((x, y), np.int32))


def inside(window: Map, points: NDArray[np.int32]) -> float:
    """Return the mean of a window of the map inside a polygon (P, 2), in pixels of the window."""
    mask = np.zeros(window.shape, np.uint8)
    cv2.fillPoly(mask, [points], 1)
    return cv2.mean(window, mask)[0]  # type: ignore[no-any-return]
