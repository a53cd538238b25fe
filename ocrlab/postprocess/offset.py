"""Polygons moved outwards, to the point as Clipper 6.4 moves them, compiled by numba when this is imported, late.

N polygons, P points; polygons of different lengths are rows of one array of points, as in `kernels`. The edges are
moved and joined with arcs or mitres, and `sweep` finds the outline of what the path then winds around. What needs more
than that is left to Clipper: outlines of several pieces or with holes, edges that lie on each other, too many points.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from ocrlab.postprocess import edges, kernels, sweep
from ocrlab.postprocess.edges import NONE, ROOM, START, chained
from ocrlab.postprocess.kernels import ARC_TOLERANCE, compiled, part, rounded
from ocrlab.postprocess.sweep import swept

SMALLEST_MITRE = 0.5  # 1 + the cosine of the turn below which a corner is cut off: Clipper's mitre limit of 2
LARGEST = 1 << 26  # a coordinate, and a distance, with which no product of two differences leaves 64 bits

# numba's cache notices a change of no other file than this one, but it keeps what was compiled by its types.
SOURCES = [Path(module.__file__ or "").read_bytes() for module in (kernels, edges, sweep)]
WORK = np.dtype([(f"of_{hashlib.sha256(b''.join(SOURCES)).hexdigest()[:16]}", "i8"), *edges.FIELDS])
SIGNATURE = numba.void(
    numba.int32[:, ::1],
    numba.int64[::1],
    numba.float64[::1],
    numba.boolean,
    numba.int32[:, ::1],
    numba.int64[::1],
    numba.from_dtype(WORK)[::1],
)


@part
def put(point: Any, x: int, y: int) -> None:
    """Set a point."""
    point.x, point.y = x, y


@part
def same(a: Any, b: Any) -> bool:
    """Tell whether two points are one."""
    return a.x == b.x and a.y == b.y


@part
def straight(a: Any, b: Any, c: Any) -> bool:
    """Tell whether three points are on one line."""
    return (a.y - b.y) * (b.x - c.x) == (a.x - b.x) * (b.y - c.y)


@part
def cornered(work: Any, polygon: NDArray[np.int32]) -> int:
    """Put a polygon, clockwise and without repeated points, and its outward normals into `work`; return the number."""
    corners, count, last, twice = work.corners, 0, len(polygon) - 1, 0.0
    while last > 0 and polygon[last, 0] == polygon[0, 0] and polygon[last, 1] == polygon[0, 1]:
        last -= 1
    for i in range(last + 1):
        corner = corners[count]
        corner.x, corner.y = polygon[i, 0], polygon[i, 1]
        if abs(corner.x) > LARGEST or abs(corner.y) > LARGEST:
            return 0
        if count == 0 or not same(corner, corners[count - 1]):
            count += 1
    if count < 3:
        return 0
    for i in range(count):
        a, b = corners[i - 1 if i else count - 1], corners[i]
        twice += float(a.x + b.x) * float(a.y - b.y)
    for i in range(count // 2 if twice > 0 else 0):
        a, b = corners[i], corners[count - 1 - i]
        a.x, a.y, b.x, b.y = b.x, b.y, a.x, a.y
    for i in range(count):
        a, b = corners[i], corners[i + 1 if i + 1 < count else 0]
        dx, dy = float(b.x - a.x), float(b.y - a.y)
        shorter = 1.0 / math.sqrt(dx * dx + dy * dy)
        work.normals[i].x, work.normals[i].y = dy * shorter, -(dx * shorter)
    return count


@part
def moved(work: Any, count: int, distance: float, mitre: bool) -> int:
    """Put the polygon of this many corners into `path` with its edges moved; return the number of points, or 0."""
    tolerance = min(ARC_TOLERANCE, ARC_TOLERANCE * distance)
    per_turn = min(math.pi / math.acos(1 - tolerance / distance), distance * math.pi)
    cosine, sine = math.cos(2 * math.pi / per_turn), math.sin(2 * math.pi / per_turn)
    path, n, before = work.path, 0, work.normals[count - 1]
    for i in range(count):
        if n + 4 + per_turn > 2 * ROOM:
            return 0
        x, y, after = float(work.corners[i].x), float(work.corners[i].y), work.normals[i]
        bend, along = before.x * after.y - after.x * before.y, before.x * after.x + before.y * after.y
        put(path[n], rounded(x + before.x * distance), rounded(y + before.y * distance))
        if abs(bend * distance) >= 1:
            bend = min(max(bend, -1.0), 1.0)
        elif along > 0:
            n += 1
            continue  # Clipper compares the next corner with the same edge again
        if bend < 0:
            put(path[n + 1], work.corners[i].x, work.corners[i].y)
            n += 2
        elif mitre and 1 + along >= SMALLEST_MITRE:
            long = distance / (1 + along)
            put(path[n], rounded(x + (before.x + after.x) * long), rounded(y + (before.y + after.y) * long))
            n += 1
        elif mitre:
            cut = math.tan(math.atan2(bend, along) / 4)
            put(
                path[n],
                rounded(x + distance * (before.x - before.y * cut)),
                rounded(y + distance * (before.y + before.x * cut)),
            )
            put(
                path[n + 1],
                rounded(x + distance * (after.x + after.y * cut)),
                rounded(y + distance * (after.y - after.x * cut)),
            )
            n += 2
        else:
            ray_x, ray_y = before.x, before.y
            for _ in range(max(rounded(per_turn / (2 * math.pi) * abs(math.atan2(bend, along))), 1)):
                put(path[n], rounded(x + ray_x * distance), rounded(y + ray_y * distance))
                ray_x, ray_y = ray_x * cosine - sine * ray_y, ray_x * sine + ray_y * cosine
                n += 1
        if bend < 0 or not mitre:
            put(path[n], rounded(x + after.x * distance), rounded(y + after.y * distance))
            n += 1
        before = after
    return n


@part
def closed(work: Any, count: int) -> None:
    """Connect the first points of `path` to a ring."""
    for i in range(count):
        work.after[i], work.before[i] = i + 1, i - 1
    work.after[count - 1], work.before[0] = 0, count - 1


@part
def unlinked(work: Any, i: int) -> None:
    """Take a point out of the ring."""
    before, after = work.before[i], work.after[i]
    work.after[before], work.before[after] = after, before


@part
def cleaned(work: Any, count: int) -> tuple[int, int]:
    """Make a ring of `path` without repeated points and such between two others; return its first and the number."""
    path, after, before = work.path, work.after, work.before
    while count > 1 and same(path[count - 1], path[0]):
        count -= 1
    while count > 1 and same(path[count - 1], path[count - 2]):
        count -= 1
    if count < 3:
        return 0, 0
    closed(work, count)
    first, stop, i = START, START, START
    while before[i] != after[i]:
        twice = same(path[i], path[after[i]])
        if twice or straight(path[before[i]], path[i], path[after[i]]):
            first = after[i] if i == first else first
            unlinked(work, i)
            stop = after[i] if twice else before[i]
            i, count = stop, count - 1
        else:
            i = after[i]
            if i == stop:
                return first, count
    return 0, 0


@part
def tidied(work: Any, count: int) -> tuple[int, int]:
    """Take points out of the ring in `path` that repeat one or lie between two; return its first and the number."""
    path, after, before = work.path, work.after, work.before
    i, kept = START, NONE
    while before[i] != after[i]:
        a, b, c = path[before[i]], path[i], path[after[i]]
        if same(a, b) or same(b, c) or straight(a, b, c):
            unlinked(work, i)
            i, kept, count = before[i], NONE, count - 1
        elif i == kept:
            return i, count
        else:
            kept = i if kept == NONE else kept
            i = after[i]
    return 0, 0


@part
def outline(work: Any) -> int:
    """Put the one piece of the outline into `path`, as a ring in Clipper's direction; return the number of points."""
    first, last = work.ends[0].dot, work.ends[1].dot
    i, before, count, twice = first, last, 0, 0.0
    while count < 2 * ROOM:
        a, b = work.dots[before], work.dots[i]
        twice += float(a.x + b.x) * float(a.y - b.y)
        b.spot = count
        put(work.path[count], b.x, b.y)
        count += 1
        i, before = (b.one if b.one != before else b.other), i
        if i in (first, NONE):
            break
    closed(work, count)
    if not twice > 0:
        for i in range(count):
            work.after[i], work.before[i] = work.before[i], work.after[i]
    return count


@part
def farthest(work: Any, one: int, other: int, way: Any) -> int:
    """Return the point farthest from one, by a level way along the ring, but no farther than another one."""
    i = one
    while i != other and work.path[way[i]].y == work.path[one].y and way[i] != one:
        i = way[i]
    return i


@part
def cancel(work: Any, one: int, other: int) -> bool:
    """Tell whether Clipper would join two level ways that lie on each other: those of these dots, if they are two."""
    a, b = work.dots[one].spot, work.dots[other].spot
    a_end, a_start = farthest(work, a, b, work.after), farthest(work, a, b, work.before)
    if a_end == b or a_start == b:
        return False
    b_end, b_start = farthest(work, b, a, work.after), farthest(work, b, a, work.before)
    a_x, a_top, b_x, b_top = work.path[a_start].x, work.path[a_end].x, work.path[b_start].x, work.path[b_end].x
    return max(min(a_x, a_top), min(b_x, b_top)) < min(max(a_x, a_top), max(b_x, b_top))


@part
def grown(work: Any, polygon: NDArray[np.int32], distance: float, mitre: bool) -> tuple[int, int]:
    """Put the outline of a polygon whose edges are moved into the ring in `path`; return its first point and how many.

    The number is 0 if Clipper must be asked.
    """
    if len(polygon) > ROOM or not distance > 0 or not distance < LARGEST:
        return 0, 0
    count = cornered(work, polygon)
    count = moved(work, count, distance, mitre) if count else 0
    first, count = cleaned(work, count)
    if count < 3 or count > ROOM:
        return 0, 0
    chained(work, first, count)
    if not swept(work) or work.open_count != 1:
        return 0, 0
    count = outline(work)
    for i in range(work.touch_count):
        if cancel(work, work.touches[i].first, work.touches[i].second):
            return 0, 0
    return tidied(work, count)


@compiled(SIGNATURE)
def offset(
    points: NDArray[np.int32],
    starts: NDArray[np.int64],
    distances: NDArray[np.float64],
    mitre: bool,
    out: NDArray[np.int32],
    counts: NDArray[np.int64],
    space: NDArray[np.void],
) -> None:
    """Put polygons whose edges are moved outwards by `distances` (N,) into `out`, one after the other.

    `counts` (N,) is how many points each has, 0 if Clipper must be asked or `out` is full. Corners are round, or mitres
    if `mitre`. `space` is one `WORK`.
    """
    work, n = space[0], 0
    for k in range(len(counts)):
        i, counts[k] = grown(work, points[starts[k] : starts[k + 1]], distances[k], mitre)
        if n + counts[k] > len(out):
            counts[k] = 0
        for _ in range(counts[k]):
            i = work.before[i]
            out[n, 0], out[n, 1] = work.path[i].x, work.path[i].y
            n += 1
