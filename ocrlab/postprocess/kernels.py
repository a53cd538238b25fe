"""Loops over map pixels, compiled by numba when this module is imported; only `scores` imports it, and late.

Both equal the NumPy and OpenCV code beside their callers, which runs where numba cannot be imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

Loop = Callable[..., Any]


def compiled(signature: str) -> Callable[[Loop], Loop]:
    """Return a decorator that compiles at once, from the cache on disk if there is one, without one if that fails."""

    def compile_now(function: Loop) -> Loop:
        try:
            return njit(signature, cache=True, nogil=True)(function)  # type: ignore[no-any-return]
        except (RuntimeError, OSError):  # no writable folder for the cache, or a full disk
            return njit(signature, nogil=True)(function)  # type: ignore[no-any-return]

    return compile_now


@compiled("int64(float32[::1], float32, uint8[::1])")
def binarise(values, threshold, mask):
    """Put 1 where `values` are above `threshold`, else 0, into `mask`; return how many values are in 0..1 (not NaN)."""
    fine = 0
    for i in range(values.size):
        value = values[i]
        mask[i] = value > threshold
        fine += (value >= 0) & (value <= 1)
    return fine


@compiled("void(float32[:, ::1], int64[:, :, ::1], float64[::1])")
def box_means(values, boxes, means):
    """Put the mean of `values` inside each convex quad of `boxes` (N, 4, 2), borders included, into `means` (N,).

    The pixels are those of `cv2.fillPoly`: from the first to the last pixel in each row that OpenCV's lines between the
    corners touch. The boxes must lie inside the map.
    """
    left = np.empty(values.shape[0], np.int64)
    right = np.empty(values.shape[0], np.int64)
    for n in range(boxes.shape[0]):
        top, bottom = boxes[n, :, 1].min(), boxes[n, :, 1].max()
        left[top : bottom + 1] = values.shape[1]
        right[top : bottom + 1] = -1
        for i in range(4):
            x, y = boxes[n, i]
            end_x, end_y = boxes[n, (i + 1) % 4]
            if end_x < x:  # lines are drawn from left to right
                x, y, end_x, end_y = end_x, end_y, x, y
            dx, dy = end_x - x, abs(end_y - y)
            down = 1 if end_y > y else -1
            long, short = max(dx, dy), min(dx, dy)
            steep = dy > dx
            error = long - 2 * short
            for _ in range(long + 1):
                left[y], right[y] = min(left[y], x), max(right[y], x)
                aside = error < 0
                error += 2 * long * aside - 2 * short
                x += aside if steep else 1
                y += down if steep or aside else 0
        total, count = 0.0, 0
        for y in range(top, bottom + 1):
            for x in range(left[y], right[y] + 1):
                total += values[y, x]
            count += right[y] - left[y] + 1
        means[n] = total / count
