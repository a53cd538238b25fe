"""Loops over boxes and their pixels, compiled by numba when this is imported, which only `quads` and `scores` do, late.

N boxes. All arrays are contiguous; results are written into the last arguments. Without numba the same code runs as it
stands here, some hundred times slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

numba: Any
try:
    import numba
except ImportError:
    numba = None

F = TypeVar("F", bound=Callable[..., object])

ARC_TOLERANCE = 0.25  # pixels, Clipper's default


def compiled(signature: str) -> Callable[[F], F]:
    """Return a decorator that compiles at once, with a cache on disk, or without one where that fails."""

    def compile_now(function: F) -> F:
        if numba is None:
            return function
        try:
            return cast(F, numba.njit(signature, cache=True, nogil=True)(function))
        except Exception:  # the cache has no writable folder, the disk is full, or what lies there is broken
            return cast(F, numba.njit(signature, nogil=True)(function))

    return compile_now


@compiled("void(float32[:, :, ::1])")
def order(boxes: NDArray[np.float32]) -> None:
    """Let each of `boxes` (N, 4, 2) run clockwise from the top left: the upper of the two leftmost corners is first."""
    sorted_x, sorted_y = np.empty(4, np.float32), np.empty(4, np.float32)
    for n in range(len(boxes)):
        for i in range(4):
            k = i
            while k > 0 and sorted_x[k - 1] > boxes[n, i, 0]:
                sorted_x[k], sorted_y[k] = sorted_x[k - 1], sorted_y[k - 1]
                k -= 1
            sorted_x[k], sorted_y[k] = boxes[n, i, 0], boxes[n, i, 1]
        left = 0 if sorted_y[1] > sorted_y[0] else 1
        right = 2 if sorted_y[3] > sorted_y[2] else 3
        for i, k in enumerate((left, right, 5 - right, 1 - left)):
            boxes[n, i, 0], boxes[n, i, 1] = sorted_x[k], sorted_y[k]


@compiled("void(float32[:, ::1], int32[:, :, ::1], float64[::1])")
def box_means(values: NDArray[np.float32], boxes: NDArray[np.int32], means: NDArray[np.float64]) -> None:
    """Put the mean of `values` inside each convex quad of `boxes` (N, 4, 2), borders included, into `means` (N,).

    The pixels are those of `cv2.fillPoly`: from the first to the last pixel in each row that OpenCV's lines between the
    corners touch. Where a box is not inside the map, the mean is NaN.
    """
    left = np.empty(values.shape[0], np.int64)
    right = np.empty(values.shape[0], np.int64)
    for n in range(len(boxes)):
        means[n] = np.nan
        box = boxes[n]
        top, bottom = box[:, 1].min(), box[:, 1].max()
        if top < 0 or bottom >= values.shape[0] or box[:, 0].min() < 0 or box[:, 0].max() >= values.shape[1]:
            continue
        left[top : bottom + 1] = values.shape[1]
        right[top : bottom + 1] = -1
        for i in range(4):
            k = (i + 1) % 4
            if box[i, 0] > box[k, 0]:  # lines are drawn from left to right
                i, k = k, i
            x, y, dx, dy = box[i, 0], box[i, 1], box[k, 0] - box[i, 0], abs(box[k, 1] - box[i, 1])
            down = 1 if box[k, 1] > y else -1
            long, short, steep = max(dx, dy), min(dx, dy), dy > dx
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
                total += float(values[y, x])
            count += right[y] - left[y] + 1
        means[n] = total / count


@compiled("void(int32[:, :, ::1], float64[::1], int32[:, :, ::1], int64[::1])")
def unclip(
    boxes: NDArray[np.int32], distances: NDArray[np.float64], points: NDArray[np.int32], counts: NDArray[np.int64]
) -> None:
    """Put convex clockwise quads (N, 4, 2), moved outwards, into `points` (N, K, 2), and how many points into `counts`.

    The points are those that Clipper 6 makes with round joins, before it leaves out those between two others. Where a
    quad is another one, has no room in K points, or would lose corners because it moves about a pixel, the count is 0.
    """
    normal = np.empty((4, 2))
    for n in range(len(boxes)):
        counts[n], distance = 0, distances[n]
        for i in range(4):
            dx, dy = boxes[n, (i + 1) % 4, 0] - boxes[n, i, 0], boxes[n, (i + 1) % 4, 1] - boxes[n, i, 1]
            length = math.sqrt(dx * dx + dy * dy)
            normal[i, 0], normal[i, 1] = (dy / length, -dx / length) if length > 0 else (0.0, 0.0)
        if distance <= 0:
            continue
        tolerance = min(ARC_TOLERANCE, ARC_TOLERANCE * distance)
        per_turn = min(math.pi / math.acos(1 - tolerance / distance), distance * math.pi)
        cosine, sine = math.cos(2 * math.pi / per_turn), math.sin(2 * math.pi / per_turn)
        count = 0
        for i in range(4):
            x, y = normal[i - 1]
            end_x, end_y = normal[i]
            bend = x * end_y - end_x * y
            angle = math.atan2(bend, x * end_x + y * end_y)
            steps = max(int(per_turn / (2 * math.pi) * angle + 0.5), 1)
            if bend * distance < 1 or count + steps + 1 > points.shape[1]:
                count = 0
                break
            for step in range(steps + 1):
                if step == steps:
                    x, y = end_x, end_y
                moved_x, moved_y = boxes[n, i, 0] + x * distance, boxes[n, i, 1] + y * distance
                points[n, count, 0] = int(moved_x - 0.5) if moved_x < 0 else int(moved_x + 0.5)
                points[n, count, 1] = int(moved_y - 0.5) if moved_y < 0 else int(moved_y + 0.5)
                x, y = x * cosine - sine * y, x * sine + y * cosine
                count += 1
        counts[n] = count
