"""What the probability map says: which pixels are text, and how sure the map is of a shape.

Shapes: h w map pixels, N shapes, P points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrlab.errors import ShapeError

Map = NDArray[np.float32]


@dataclass(frozen=True)
class HeatMap:
    """A probability map (h, w), contiguous float32 in 0..1."""

    values: Map

    def binarise(self, threshold: float) -> tuple[NDArray[np.uint8], tuple[int, int]]:
        """Return a mask of 0 and 1, 1 where the map is above `threshold`, and which pixel (x, y) is its first.

        The mask ends where the text does, on all sides, since OpenCV reads each of its pixels twice; without text it
        has no pixel. Raises ShapeError if the map holds NaN or anything outside 0..1.
        """
        values, limit = self.values, np.float32(threshold)
        height, width = values.shape
        mask = np.empty((height, width), np.bool_)
        filled, columns = np.zeros(height, np.bool_), np.zeros(width, np.bool_)
        fine = kernels().above(values, limit, mask.view(np.uint8), filled, columns.view(np.uint8))
        if not fine and not ((values >= 0) & (values <= 1)).all():  # else there is a -0
            got = f"{int(np.isnan(values).sum())} NaN, {int((values < 0).sum())} below 0"
            got += f", {int((values > 1).sum())} above 1"
            what, do = "The probability map holds values that are not probabilities", "look for NaN in its weights"
            raise ShapeError(what, got=got, need="float32 in 0..1", do=f"Apply the sigmoid of the head, and {do}")
        if not filled.any():
            return np.zeros((0, 0), np.uint8), (0, 0)
        x, y = np.flatnonzero(columns), np.flatnonzero(filled)
        return mask.view(np.uint8)[y[0] : y[-1] + 1, x[0] : x[-1] + 1], (int(x[0]), int(y[0]))

    def box_scores(self, boxes: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the mean probability (N,) inside convex quads (N, 4, 2), their borders included.

        As published, corners are cut to whole pixels, and what lies outside the map does not count.
        """
        last = np.array(self.values.shape[::-1], np.int32) - 1
        first = np.clip(np.floor(boxes.min(axis=1)), 0, last).astype(np.int32)
        corners = (boxes - first[:, None].astype(np.float32)).astype(np.int32)  # cut towards the first pixel, not to 0
        means = np.full(len(boxes), np.nan)
        kernels().box_means(self.values, corners + first[:, None], means)
        for i in np.flatnonzero(np.isnan(means)):  # partly outside the map, where OpenCV draws otherwise
            x, y = first[i]
            right, bottom = np.clip(np.ceil(boxes[i].max(axis=0)), 0, last).astype(np.int32)
            means[i] = inside(self.values[y : bottom + 1, x : right + 1], corners[i])
        return means

    def polygon_scores(self, polygons: Sequence[NDArray[np.int32]]) -> NDArray[np.float64]:
        """Return the mean probability (N,) inside polygons (P, 2) of whole pixels, their borders included."""
        means = np.full(len(polygons), np.nan)
        if polygons:
            kernels().polygon_means(self.values, *flat(polygons), means)
        for i in np.flatnonzero(np.isnan(means)).tolist():
            x, y, width, height = cv2.boundingRect(polygons[i])
            means[i] = inside(self.values[y : y + height, x : x + width], polygons[i], (-x, -y))
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
