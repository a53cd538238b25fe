"""Loops that draw target maps, compiled by numba when this module is imported.

For the shapes that it takes, all this equals pyclipper, `cv2.fillPoly` and the NumPy path of `target_maps`. It takes
boxes, upright or turned, inside the page: nearly all there is. Anything else is not drawn, but reported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocrlab import compiled_loops

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Map = NDArray[np.float32]
Flags = NDArray[np.bool_]

SQUARE = 0.9  # sine of the corners of a quad that is offset here; sharper ones are left to pyclipper


part = compiled_loops.part()


@part
def rounded(value: float) -> int:
    """Round half away from zero to an integer, as Clipper does."""
    return int(value - 0.5) if value < 0 else int(value + 0.5)


@part
def x_at(bottom_x: int, bottom_y: int, top_x: int, top_y: int, slope: float, y: int) -> int:
    """Return the rounded x of an edge on the scan line y."""
    return top_x if y == top_y else bottom_x + rounded(slope * (y - bottom_y))


@part
def crossing(first: Ints, second: Ints, lines: Ints, out: Ints) -> bool:
    """Put where two integer edges (x, y, x, y) meet into `out`, rounded as in Clipper's sweep; False if not plain.

    The sweep runs from large to small y over the scan lines `lines` and sees a crossing only once the rounded x of the
    edges have changed places on a scan line; until then the crossing is moved to that scan line.
    """
    ax, ay, bx, by = first[0], first[1], first[2], first[3]
    cx, cy, dx, dy = second[0], second[1], second[2], second[3]
    if ay < by:
        ax, ay, bx, by = bx, by, ax, ay
    if cy < dy:
        cx, cy, dx, dy = dx, dy, cx, cy
    if ay == by and cy == dy:
        return False
    if ay == by:
        out[0], out[1] = x_at(cx, cy, dx, dy, (dx - cx) / (dy - cy), ay), ay
        return dy <= ay <= cy
    if cy == dy:
        out[0], out[1] = x_at(ax, ay, bx, by, (bx - ax) / (by - ay), cy), cy
        return by <= cy <= ay
    m, n = (bx - ax) / (by - ay), (dx - cx) / (dy - cy)
    if m == n:
        return False
    p, q = ax - ay * m, cx - cy * n
    exact = (q - p) / (m - n)
    top = -(1 << 60)
    for line in lines:
        if top < line <= exact:
            top = line
    if top < by or top < dy:
        return False
    late = x_at(ax, ay, bx, by, m, top) == x_at(cx, cy, dx, dy, n, top)
    if late and top in (by, dy):
        return False
    if m == 0:
        x, y = ax, rounded(ax / n + (cy - cx / n))
    elif n == 0:
        x, y = cx, rounded(cx / m + (ay - ax / m))
    else:
        x, y = rounded(m * exact + p) if abs(m) < abs(n) else rounded(n * exact + q), rounded(exact)
    if late and y > top:
        x, y = x_at(ax, ay, bx, by, m, top), top
    out[0], out[1] = x, y
    return by <= y <= ay and dy <= y <= cy


@part
def normals(quad: Ints, out: Floats) -> bool:
    """Put the outward unit normals of a clockwise integer quad (4, 2) into `out`; False if it is not quite a box."""
    for i in range(4):
        j = (i + 1) % 4
        dx, dy = float(quad[j, 0] - quad[i, 0]), float(quad[j, 1] - quad[i, 1])
        if dx == 0 and dy == 0:
            return False
        f = 1.0 / math.sqrt(dx * dx + dy * dy)
        out[i, 0], out[i, 1] = dy * f, -(dx * f)
    for j in range(4):
        k = (j + 3) % 4
        if out[k, 0] * out[j, 1] - out[j, 0] * out[k, 1] < SQUARE:
            return False
    return True


@part
def blunt(normal: Floats, distance: float) -> bool:
    """Return whether Clipper would drop a corner of this quad because the offset of it is less than a pixel."""
    for j in range(4):
        k = (j + 3) % 4
        sine = normal[k, 0] * normal[j, 1] - normal[j, 0] * normal[k, 1]
        if abs(sine * distance) < 1.0 and normal[k, 0] * normal[j, 0] + normal[j, 1] * normal[k, 1] > 0:
            return True
    return False


@part
def shrunk(quad: Ints, normal: Floats, distance: float, out: Ints) -> bool:
    """Put a clockwise box with its edges moved inwards into `out` (4, 2); False if only the full sweep can tell."""
    edges = np.empty((4, 4), np.int64)
    lines = np.empty(12, np.int64)
    for i in range(4):
        j = (i + 1) % 4
        dx, dy = normal[i, 0] * -distance, normal[i, 1] * -distance
        edges[i, 0], edges[i, 1] = rounded(quad[i, 0] + dx), rounded(quad[i, 1] + dy)
        edges[i, 2], edges[i, 3] = rounded(quad[j, 0] + dx), rounded(quad[j, 1] + dy)
        lines[3 * i], lines[3 * i + 1], lines[3 * i + 2] = edges[i, 1], edges[i, 3], quad[i, 1]
    for i in range(4):
        if not crossing(edges[(i + 3) % 4], edges[i], lines, out[i]):
            return False
    upright = normal[0, 0] * normal[0, 1] == 0 and normal[1, 0] * normal[1, 1] == 0
    upright = upright and normal[2, 0] * normal[2, 1] == 0 and normal[3, 0] * normal[3, 1] == 0
    for i in range(4):
        j, k = (i + 1) % 4, (i + 2) % 4
        dx, dy = out[j, 0] - out[i, 0], out[j, 1] - out[i, 1]
        if dx * (edges[i, 2] - edges[i, 0]) + dy * (edges[i, 3] - edges[i, 1]) <= 0:
            return False  # this edge has vanished
        if dx * (out[k, 1] - out[j, 1]) - dy * (out[k, 0] - out[j, 0]) <= 0:
            return False
        if dy == 0 and abs(dx) == 1 and not upright:
            return False  # the sweep may round a level edge of one pixel away
    return True


@part
def grown(quad: Ints, normal: Floats, distance: float, out: Ints) -> int:
    """Put a clockwise box with its edges moved outwards and round corners into `out`; return the number of points."""
    reach = min(0.25, distance * 0.25)  # how far an arc may be from its chords
    steps = min(math.pi / math.acos(1 - reach / distance), distance * math.pi)
    sine, cosine, density = math.sin(2 * math.pi / steps), math.cos(2 * math.pi / steps), steps / (2 * math.pi)
    n = 0
    for j in range(4):
        k = (j + 3) % 4
        x, y = normal[k, 0], normal[k, 1]
        angle = math.atan2(x * normal[j, 1] - normal[j, 0] * y, x * normal[j, 0] + y * normal[j, 1])
        count = max(rounded(density * abs(angle)), 1)
        if n + count >= len(out):
            return 0
        for _ in range(count):
            out[n, 0], out[n, 1] = rounded(quad[j, 0] + x * distance), rounded(quad[j, 1] + y * distance)
            x, y = x * cosine - sine * y, x * sine + y * cosine
            n += 1
        out[n, 0] = rounded(quad[j, 0] + normal[j, 0] * distance)
        out[n, 1] = rounded(quad[j, 1] + normal[j, 1] * distance)
        n += 1
    return n


@part
def limits(polygon: NDArray[Any]) -> tuple[Any, Any, Any, Any]:
    """Return the smallest x and y and the largest x and y of a polygon (P, 2)."""
    x0 = x1 = polygon[0, 0]
    y0 = y1 = polygon[0, 1]
    for i in range(1, len(polygon)):
        x, y = polygon[i, 0], polygon[i, 1]
        x0, y0, x1, y1 = min(x0, x), min(y0, y), max(x1, x), max(y1, y)
    return x0, y0, x1, y1


@part
def inside(box: Sequence[int] | Ints, width: int, height: int) -> bool:
    """Return whether a box (x0, y0, x1, y1) of pixels, the last included, is on the canvas."""
    return box[0] >= 0 and box[1] >= 0 and box[2] < width and box[3] < height


@part
def widen(left: Ints, right: Ints, x0: int, y0: int, x1: int, y1: int) -> None:
    """Let the row limits `left` and `right` take in the pixels of a line, those of Bresenham from its left end."""
    if x1 < x0:
        x0, y0, x1, y1 = x1, y1, x0, y0
    dx, dy, down = x1 - x0, abs(y1 - y0), 1 if y1 >= y0 else -1
    long, short, flat = max(dx, dy), min(dx, dy), dx >= dy
    error = long - 2 * short
    for _ in range(long + 1):
        left[y0], right[y0] = min(left[y0], x0), max(right[y0], x0)
        step = error < 0
        error += 2 * long * step - 2 * short
        if flat:
            x0 += 1
            y0 += down * step
        else:
            y0 += down
            x0 += step


@part
def fill(canvas: Map, polygon: Ints, left: Ints, right: Ints, value: np.float32) -> None:
    """Set the pixels of a convex integer polygon (P, 2), outline included, to `value`; it must be inside the canvas."""
    _, top, _, bottom = limits(polygon)
    for y in range(top, bottom + 1):
        left[y], right[y] = canvas.shape[1], -1
    for i in range(len(polygon)):
        j = (i + 1) % len(polygon)
        widen(left, right, polygon[i, 0], polygon[i, 1], polygon[j, 0], polygon[j, 1])
    for y in range(top, bottom + 1):
        canvas[y, left[y] : right[y] + 1] = value


@part
def shrink_distance(polygon: Floats, ratio: float) -> float:
    """Return how far the edges of a polygon (P, 2) are moved: area (1 - ratio^2) / perimeter; 0 for a single point."""
    area = length = 0.0
    n = len(polygon)
    for i in range(n):
        j, k = (i + 1) % n, (i + n - 1) % n
        if i:
            area += (polygon[i, 0] - polygon[0, 0]) * (polygon[j, 1] - polygon[k, 1])
        length += math.sqrt((polygon[j, 0] - polygon[i, 0]) ** 2 + (polygon[j, 1] - polygon[i, 1]) ** 2)
    return abs(area / 2) * (1 - ratio * ratio) / length if length > 0 else 0.0


@compiled_loops.entry("void(f8[:, ::1], f8, i8[::1], f8, f8, f4[:, ::1])")
def border(polygon: Floats, distance: float, box: Ints, low: float, high: float, canvas: Map) -> None:
    """Raise `canvas` inside `box` (x0, y0, x1, y1, the last included) to the threshold map of one polygon (P, 2).

    The published distance to an edge: to its line inside the circle over it, to the nearer end point elsewhere.
    """
    x0, y0, x1, y1 = box[0], box[1], box[2], box[3]
    n = x1 - x0 + 1
    nearest = np.empty(n)
    base, gain, scale = np.float32(low), np.float32(high - low), np.float32(1 / distance)
    for y in range(y0, y1 + 1):
        nearest[:] = distance * distance
        for i in range(len(polygon)):
            j = (i + 1) % len(polygon)
            ax, bx, ay, by = x0 - polygon[i, 0], x0 - polygon[j, 0], y - polygon[i, 1], y - polygon[j, 1]
            if min(ay, by) > distance or max(ay, by) < -distance:
                continue  # farther than `distance` everywhere on this row
            ex, ey = ax - bx, ay - by
            square = ex * ex + ey * ey
            if square == 0:  # a repeated point: published, a pixel right on it is not drawn
                if ay == 0 and -n < ax <= 0 and ax == int(ax):
                    nearest[int(-ax)] = np.nan
                continue
            inverse, cross, ay2, by2 = 1 / square, ex * ay, ay * ay, by * by
            start, stop = max(0, int(-max(ax, bx) - distance)), min(n, int(-min(ax, bx) + distance) + 2)
            part = nearest[start:stop]
            ax, bx = ax + start, bx + start
            for k in range(len(part)):
                px, qx = ax + k, bx + k
                first, second = px * px + ay2, qx * qx + by2
                line = cross - px * ey
                line = line * line * inverse
                end = first if first < second else second
                here = end if square - first - second < 0 else line
                part[k] = here if here < part[k] else part[k]
        row = canvas[y, x0 : x1 + 1]
        for k in range(n):
            value = (np.float32(1) - np.float32(math.sqrt(np.float32(nearest[k]))) * scale) * gain + base
            row[k] = value if value > row[k] else row[k]


@compiled_loops.entry(
    "void(f8[:, ::1], i8[::1], b1[::1], f8, f8, f8, f8, f8, f4[:, ::1], f4[:, ::1], f4[:, ::1], f4[:, ::1], b1[::1])"
)
def draw(
    points: Floats,
    starts: Ints,
    ignored: Flags,
    ratio: float,
    low: float,
    high: float,
    smallest: float,
    far: float,
    text: Map,
    text_mask: Map,
    threshold: Map,
    threshold_mask: Map,
    left_over: Flags,
) -> None:
    """Draw the polygons points[starts[i] : starts[i + 1]] into four blank maps (h, w), or mark them as left over."""
    height, width = text.shape
    left, right = np.empty(height, np.int64), np.empty(height, np.int64)
    quad, inner, arc = np.empty((4, 2), np.int64), np.empty((4, 2), np.int64), np.empty((256, 2), np.int64)
    normal, box = np.empty((4, 2)), np.empty(4, np.int64)
    for i in range(len(ignored)):
        polygon = points[starts[i] : starts[i + 1]]
        left_over[i] = True
        if len(polygon) != 4:
            continue
        near, turn = True, 0
        for j in range(4):
            near = near and abs(polygon[j, 0]) < far and abs(polygon[j, 1]) < far
        if not near:  # or not a number
            continue
        for j in range(4):
            k = (j + 1) % 4
            turn += int(polygon[j, 0]) * int(polygon[k, 1]) - int(polygon[k, 0]) * int(polygon[j, 1])
        for j in range(4):
            k = j if turn >= 0 else 3 - j
            quad[j, 0], quad[j, 1] = int(polygon[k, 0]), int(polygon[k, 1])
        if not normals(quad, normal):
            continue
        x0, y0, x1, y1 = limits(polygon)
        if ignored[i] or min(x1 - x0, y1 - y0) < smallest:
            if inside(limits(quad), width, height):
                ignored[i], left_over[i] = True, False
                fill(text_mask, quad, left, right, np.float32(0))
            continue
        distance = shrink_distance(polygon, ratio)
        if blunt(normal, distance) or not shrunk(quad, normal, distance, inner):
            continue
        outer = arc[: grown(quad, normal, distance, arc)]
        if len(outer) == 0:
            continue
        box[0], box[1], box[2], box[3] = limits(outer)
        if not inside(box, width, height):
            continue
        left_over[i] = False
        fill(text, inner, left, right, np.float32(1))
        fill(threshold_mask, outer, left, right, np.float32(1))
        border(polygon, distance, box, low, high, threshold)
