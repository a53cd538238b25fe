"""Loops over boxes, polygons and their pixels, compiled by numba when this is imported.

N boxes or polygons, P points. All arrays are contiguous; results are written into the last arguments. Polygons of
different lengths are rows of one array of points, where starts[n] : starts[n + 1] are those of polygon n.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocrlab import compiled_loops

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Map = NDArray[np.float32]

ARC_TOLERANCE = 0.25  # pixels, Clipper's default
OUTLINE, FLIP = 1, 2  # of a pixel: it is on the outline; from it on, inside and outside change places
STEPS = 1 << 16  # a pixel in OpenCV's fixed-point numbers
SUMS: set[str] = {"reassoc", "nsz"}  # sums may be taken in any order, several numbers at once


part = compiled_loops.part(error_model="numpy")


@part
def bounds(polygon: NDArray[Any]) -> tuple[Any, Any, Any, Any]:
    """Return the smallest x and y and the largest x and y of a polygon (P, 2)."""
    x0 = x1 = polygon[0, 0]
    y0 = y1 = polygon[0, 1]
    for i in range(1, len(polygon)):
        x, y = polygon[i, 0], polygon[i, 1]
        x0, y0, x1, y1 = min(x0, x), min(y0, y), max(x1, x), max(y1, y)
    return x0, y0, x1, y1


@part
def mark(marks: NDArray[np.uint8], x0: int, y0: int, x1: int, y1: int) -> None:
    """Mark the pixels of one edge of a polygon, and where each row of pixels crosses it."""
    if x1 < x0:  # lines are drawn from left to right
        x0, y0, x1, y1 = x1, y1, x0, y0
    dx, dy, down = x1 - x0, abs(y1 - y0), 1 if y1 > y0 else -1
    long, short, steep = max(dx, dy), min(dx, dy), dy > dx
    x, y, error = x0, y0, long - 2 * short
    for _ in range(long + 1):
        marks[y, x] |= OUTLINE
        aside = error < 0
        error += 2 * long * aside - 2 * short
        x += aside if steep else 1
        y += down if steep or aside else 0
    if dy == 0:
        return
    slope = dx * STEPS // dy  # cut towards zero, as OpenCV does
    for i in range(dy):  # rows from the upper end to the one before the lower end
        place = x0 * STEPS + slope * i if down > 0 else x1 * STEPS - slope * i
        y, x = min(y0, y1) + i, (place + STEPS - 1) // STEPS
        marks[y, x] ^= FLIP
        if place % STEPS == 0:  # the middle of a pixel: it belongs to what is on its left as well
            marks[y, x] |= OUTLINE


@compiled_loops.entry("void(float32[:, ::1], int32[:, :, ::1], float64[::1])", error_model="numpy", fastmath=SUMS)
def box_means(values: Map, boxes: NDArray[np.int32], means: Floats) -> None:
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


@compiled_loops.entry("void(int32[:, :, ::1], float64[::1], int32[:, :, ::1], int64[::1])", error_model="numpy")
def unclip(boxes: NDArray[np.int32], distances: Floats, points: NDArray[np.int32], counts: Ints) -> None:
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


@compiled_loops.entry(
    "void(float32[:, ::1], int32[:, ::1], int64[::1], float64[::1])", error_model="numpy", fastmath=SUMS
)
def polygon_means(values: Map, points: NDArray[np.int32], starts: Ints, means: Floats) -> None:
    """Put the mean of `values` inside each polygon of whole pixels, its border included, into `means` (N,).

    The pixels are those of `cv2.fillPoly`, whose edges have 16 binary places: lines between the corners, and what is
    inside by the even-odd rule. Where a polygon is not inside the map, the mean is NaN.
    """
    for n in range(len(means)):
        polygon = points[starts[n] : starts[n + 1]]
        x0, y0, x1, y1 = bounds(polygon)
        if x0 < 0 or y0 < 0 or x1 >= values.shape[1] or y1 >= values.shape[0]:
            means[n] = np.nan
            continue
        marks = np.zeros((y1 - y0 + 1, x1 - x0 + 1), np.uint8)
        for i in range(len(polygon)):
            k = i + 1 if i + 1 < len(polygon) else 0
            mark(marks, polygon[i, 0] - x0, polygon[i, 1] - y0, polygon[k, 0] - x0, polygon[k, 1] - y0)
        total, count = 0.0, 0
        for y in range(marks.shape[0]):
            inside = 0
            for x in range(marks.shape[1]):
                inside ^= marks[y, x] & FLIP
                if inside or marks[y, x] & OUTLINE:
                    total += float(values[y0 + y, x0 + x])
                    count += 1
        means[n] = total / count


@compiled_loops.entry("void(int32[:, ::1], int64[::1], float64[::1], float64[::1])", error_model="numpy")
def measure(points: NDArray[np.int32], starts: Ints, areas: Floats, lengths: Floats) -> None:
    """Put the areas of polygons and the lengths of their outlines into `areas` and `lengths` (N,)."""
    for n in range(len(areas)):
        polygon, twice, length = points[starts[n] : starts[n + 1]], 0, 0.0
        for i in range(len(polygon)):
            k = i + 1 if i + 1 < len(polygon) else 0
            x, y, dx, dy = polygon[i, 0], polygon[i, 1], polygon[k, 0] - polygon[i, 0], polygon[k, 1] - polygon[i, 1]
            twice += x * dy - y * dx
            length += math.sqrt(dx * dx + dy * dy)
        areas[n], lengths[n] = abs(twice) / 2, length
