"""Loops over boxes, polygons and their pixels, compiled by numba when this is imported, which only `scores` does, late.

N boxes or polygons, P points. All arrays are contiguous; results are written into the last arguments. Polygons of
different lengths are rows of one array of points, where starts[n] : starts[n + 1] are those of polygon n.
It is one file because numba's cache notices a change of no other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., object])
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Map = NDArray[np.float32]

ARC_TOLERANCE = 0.25  # pixels, Clipper's default
OUTLINE, FLIP = 1, 2  # of a pixel: it is on the outline; from it on, inside and outside change places
STEPS = 1 << 16  # a pixel in OpenCV's fixed-point numbers
ONE = np.uint32(0x3F800000)  # the bits of 1 as float32; those of -0 and NaN are larger
SUMS: set[str] = {"reassoc", "nsz"}  # sums may be taken in any order, several numbers at once


def compiled(signature: str, fastmath: Any = False) -> Callable[[F], F]:
    """Return a decorator that compiles at once, with a cache on disk, or without one where that fails."""

    def compile_now(function: F) -> F:
        try:
            return cast(F, njit(signature, cache=True, nogil=True, fastmath=fastmath)(function))
        except Exception:  # the cache has no writable folder, the disk is full, or what lies there is broken
            return cast(F, njit(signature, nogil=True, fastmath=fastmath)(function))

    return compile_now


def part(function: F) -> F:
    """Mark a function that is compiled into the loops which call it."""
    return cast(F, njit(nogil=True)(function))


@part
def rounded(value: float) -> int:
    """Round half away from zero to an integer, as Clipper does."""
    return int(value - 0.5) if value < 0 else int(value + 0.5)


@part
def turn(a: Ints, b: Ints, c: Ints) -> int:
    """Return the cross product of the ways from a to b and from b to c: 0 on a line, positive for a clockwise turn."""
    return (b[0] - a[0]) * (c[1] - b[1]) - (b[1] - a[1]) * (c[0] - b[0])


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


@part
def measure(polygon: NDArray[np.int32]) -> tuple[int, float]:
    """Return twice the signed area of a polygon (P, 2), positive if it runs clockwise on the screen, and its length."""
    twice, length = 0, 0.0
    for i in range(len(polygon)):
        k = i + 1 if i + 1 < len(polygon) else 0
        x, y, dx, dy = polygon[i, 0], polygon[i, 1], polygon[k, 0] - polygon[i, 0], polygon[k, 1] - polygon[i, 1]
        twice += x * dy - y * dx
        length += math.sqrt(dx * dx + dy * dy)
    return twice, length


@part
def normal(polygon: NDArray[np.int32], i: int) -> tuple[float, float]:
    """Return the outward unit normal of the edge from point i of a clockwise polygon; 0 for a repeated point."""
    k = i + 1 if i + 1 < len(polygon) else 0
    dx, dy = float(polygon[k, 0] - polygon[i, 0]), float(polygon[k, 1] - polygon[i, 1])
    if dx == 0 and dy == 0:
        return 0.0, 0.0
    shorter = 1.0 / math.sqrt(dx * dx + dy * dy)
    return dy * shorter, -(dx * shorter)


@part
def joined(polygon: NDArray[np.int32], distance: float, out: Ints) -> int:
    """Put a clockwise polygon with its edges moved outwards and round joins into `out`; return the number of points.

    It is 0 where a corner turns in so much that the moved edges cross there, and where there is no room.
    """
    size, n = len(polygon), 0
    tolerance = min(ARC_TOLERANCE, ARC_TOLERANCE * distance)
    per_turn = min(math.pi / math.acos(1 - tolerance / distance), distance * math.pi)
    cosine, sine = math.cos(2 * math.pi / per_turn), math.sin(2 * math.pi / per_turn)
    before_x, before_y = normal(polygon, size - 1)
    for i in range(size):
        after_x, after_y = normal(polygon, i)
        bend, along = before_x * after_y - after_x * before_y, before_x * after_x + before_y * after_y
        straight = abs(bend * distance) < 1
        steps = 0 if straight else max(rounded(per_turn / (2 * math.pi) * abs(math.atan2(bend, along))), 1)
        if (straight and along <= 0) or (bend < 0 and not straight) or n + steps + 1 > len(out):
            return 0
        x, y = before_x, before_y
        for step in range(steps + 1):
            if step == steps and not straight:
                x, y = after_x, after_y
            out[n, 0], out[n, 1] = rounded(polygon[i, 0] + x * distance), rounded(polygon[i, 1] + y * distance)
            x, y = x * cosine - sine * y, x * sine + y * cosine
            n += 1
        if not straight:  # Clipper compares the next corner with the same edge again
            before_x, before_y = after_x, after_y
    return n


@part
def cleaned(polygon: Ints, out: Ints) -> int:
    """Put a polygon without the points that lie on one line with their neighbours into `out`; return the number."""
    n = 0
    for i in range(len(polygon)):
        while n > 1 and turn(out[n - 2], out[n - 1], polygon[i]) == 0:
            n -= 1
        if n == 0 or out[n - 1, 0] != polygon[i, 0] or out[n - 1, 1] != polygon[i, 1]:
            out[n, 0], out[n, 1] = polygon[i, 0], polygon[i, 1]
            n += 1
    while n > 2 and turn(out[n - 2], out[n - 1], out[0]) == 0:
        n -= 1
    first = 0
    while n - first > 2 and turn(out[n - 1], out[first], out[first + 1]) == 0:
        first += 1
    for i in range(first, n):
        out[i - first, 0], out[i - first, 1] = out[i, 0], out[i, 1]
    return n - first


@part
def simple(polygon: Ints) -> bool:
    """Tell whether the outline of a polygon (P, 2) of whole pixels nowhere touches itself."""
    n = len(polygon)
    for i in range(n):
        k = i + 1 if i + 1 < n else 0
        a, b = polygon[i], polygon[k]
        if turn(a, b, polygon[k + 1 if k + 1 < n else 0]) == 0:
            return False  # a spike
        x0, y0, x1, y1 = min(a[0], b[0]), min(a[1], b[1]), max(a[0], b[0]), max(a[1], b[1])
        for j in range(i + 2, n if i else n - 1):
            c, d = polygon[j], polygon[j + 1 if j + 1 < n else 0]
            if min(c[0], d[0]) > x1 or max(c[0], d[0]) < x0 or min(c[1], d[1]) > y1 or max(c[1], d[1]) < y0:
                continue
            first, second, third, fourth = turn(a, b, c), turn(a, b, d), turn(c, d, a), turn(c, d, b)
            apart = (first > 0 and second > 0) or (first < 0 and second < 0)
            if not (apart or (third > 0 and fourth > 0) or (third < 0 and fourth < 0)):
                return False
    return True


@part
def after_peak(polygon: Ints) -> int:
    """Return the point that Clipper begins with: the one after the right end of the peak that its sweep closes last.

    The sweep runs upwards. Of peaks of the same height it closes the pointed ones from left to right, then the flat
    ones from right to left.
    """
    n, top = len(polygon), polygon[:, 1].min()
    flat = pointed = -1
    for i in range(n):
        if polygon[i, 1] != top or polygon[(i + 1) % n, 1] == top:
            continue
        if polygon[i - 1, 1] == top:
            flat = i if flat < 0 or polygon[i, 0] < polygon[flat, 0] else flat
        else:
            pointed = i if pointed < 0 or polygon[i, 0] > polygon[pointed, 0] else pointed
    return ((flat if flat >= 0 else pointed) + 1) % n


@compiled("boolean(float32[:, ::1], float32, uint8[:, ::1], boolean[::1], uint8[::1])", SUMS)
def above(
    values: Map, limit: np.float32, mask: NDArray[np.uint8], rows: NDArray[np.bool_], columns: NDArray[np.uint8]
) -> bool:
    """Set `mask` (h, w) to 1 where `values` are above `limit`, `rows` (h,) and `columns` (w,) where any of theirs is.

    `columns` must be 0 before. Returns whether all values are for certain in 0..1: the bits of those are no larger than
    the bits of 1, nor are those of anything else. One short loop for each purpose, since the processor then takes 64
    bytes at once, and a row stays in its nearest cache.
    """
    largest = np.uint32(0)
    for y in range(values.shape[0]):
        value, bits, row = values[y], values[y].view(np.uint32), mask[y]
        for x in range(len(row)):
            row[x] = np.uint8(value[x] > limit)
        for x in range(len(row)):
            largest = max(largest, bits[x])
        hit = np.uint8(0)
        for x in range(len(row)):
            hit |= row[x]
        rows[y] = hit != 0
        if hit:
            for x in range(len(row)):
                columns[x] |= row[x]
    return bool(largest <= ONE)


@compiled("void(float32[:, ::1], int32[:, :, ::1], float64[::1])", SUMS)
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


@compiled("void(int32[:, :, ::1], float64[::1], int32[:, :, ::1], int64[::1])")
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


@compiled("void(float32[:, ::1], int32[:, ::1], int64[::1], float64[::1])", SUMS)
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


@compiled("void(int32[:, ::1], int64[::1], float64, int32[:, :, ::1], int64[::1], float64[::1])")
def grow(
    points: NDArray[np.int32], starts: Ints, ratio: float, out: NDArray[np.int32], counts: Ints, distances: Floats
) -> None:
    """Put polygons moved outwards by area * ratio / perimeter, `distances` (N,), with round joins into `out` (N, K, 2).

    `counts` (N,) is how many points they have: those of Clipper 6, in its order. It is 0 where the new outline touches
    itself, which takes Clipper's sweep to untangle, or does not fit into K points.
    """
    room = out.shape[1]
    raw, kept = np.empty((room, 2), np.int64), np.empty((room, 2), np.int64)
    for n in range(len(counts)):
        polygon = points[starts[n] : starts[n + 1]]
        twice, length = measure(polygon)
        counts[n], distances[n] = 0, abs(twice) / 2 * ratio / length if length > 0 else 0.0
        if distances[n] <= 0:
            continue
        count = joined(polygon if twice > 0 else polygon[::-1], distances[n], raw)
        count = cleaned(raw[:count], kept)
        if count < 3 or not simple(kept[:count]):
            continue
        first = after_peak(kept[:count])
        for i in range(count):
            out[n, i, 0], out[n, i, 1] = kept[(first + i) % count, 0], kept[(first + i) % count, 1]
        counts[n] = count
