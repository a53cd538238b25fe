"""The edges of a closed path in whole numbers, and where they meet: what `sweep` sweeps over.

Compiled by numba as parts of `offset`. An edge runs from its lower to its upper end; y grows downwards, and the line
that sweeps goes up. A *valley* is where two edges begin, a *peak* where two end; a *level* edge has both ends at one
height. In a valley it belongs to the way up at its right end, on a peak to the one at its left end. All roundings are
those of Clipper 6.4, and so is the order of what lies at one height.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ocrlab.postprocess.kernels import part, rounded

ROOM = 2000  # edges of a path; no power of two, or all arrays would compete for the same lines of the cache
NONE = -1  # no such edge, end or dot
START: Any = np.int64(0)  # the first place; a plain 0 has a type of its own, for which functions are compiled once more
LEVEL = -1e40  # the slope of a level edge: smaller than any other, as in Clipper

POINT = [("x", "i8"), ("y", "i8")]
PAIR = [("first", "i8"), ("second", "i8")]
DOT = [*POINT, ("one", "i8"), ("other", "i8"), ("spot", "i8")]  # its neighbours, its place in the finished ring
EDGE = [
    *POINT,  # the lower end
    *[("top_x", "i8"), ("top_y", "i8")],  # the upper end
    ("slope", "f8"),  # x per y
    ("at", "i8"),  # x on the line that sweeps
    ("above", "i8"),  # the edge that begins where this one ends, if it does not end on a peak
    ("wind", "i8"),  # 1 if the path runs up along it, -1 if down: what the winding number gains from left to right
    ("left", "i8"),  # the winding number on its left
    ("end", "i8"),  # which end of which piece of the new outline is drawn along it
]
COUNTS = ("edge", "valley", "active", "level", "flat", "dot", "piece", "open", "touch")
FIELDS = [  # of what a sweep works with, which is one record
    *[(f"{name}_count", "i8") for name in COUNTS],
    *[("next_y", "i8"), ("lost", "i8")],  # the nearest end of an active edge; whether Clipper must be asked
    *[("corners", POINT, ROOM), ("normals", [("x", "f8"), ("y", "f8")], ROOM)],  # of the polygon that is moved
    *[("path", POINT, 2 * ROOM), ("after", "i8", 2 * ROOM), ("before", "i8", 2 * ROOM)],  # a ring of points
    *[("edges", EDGE, ROOM), ("valleys", PAIR, ROOM), ("tickets", "i8", 4 * ROOM)],  # of the path; their order
    *[("active", "i8", ROOM), ("place", "i8", ROOM)],  # the edges that the line cuts, from left to right
    *[("order", "i8", ROOM), ("line", "i8", ROOM)],  # these edges, and where they are, while they are sorted
    *[("crossings", POINT + PAIR, 4 * ROOM), ("turns", "i8", 4 * ROOM)],  # of edges, and their order
    *[("levels", "i8", ROOM), ("flats", "i8", ROOM)],  # level edges on the line that wait, and that were drawn
    *[("dots", DOT, 2 * ROOM), ("ends", [("dot", "i8"), ("edge", "i8")], 2 * ROOM)],  # of the new outline
    ("touches", PAIR, ROOM),  # dots of level edges that lie on each other
    ("parts", "i8", 192),  # of a list, that are still to be sorted
]


@part
def chained(work: Any, first: int, count: int) -> None:
    """Make edges of the ring in `path` that begins with `first`, and list the valleys in their order on the path.

    No three points in a row are on one line, so that a level edge never follows a level one.
    """
    work.edge_count, work.valley_count = count, 0
    i = first
    for n in range(count):
        k = work.after[i]
        a, b, edge = work.path[i], work.path[k], work.edges[n]
        edge.left = 1 if b.y < a.y else (-1 if b.y > a.y else 0)  # for now: which way the path runs
        edge.slope = float(b.x - a.x) / float(b.y - a.y) if edge.left else LEVEL
        edge.x, edge.y, edge.top_x, edge.top_y = a.x, a.y, b.x, b.y
        if edge.left < 0:
            edge.x, edge.y, edge.top_x, edge.top_y = b.x, b.y, a.x, a.y
        i = k
    for n in range(count):
        last, edge = n - 1 if n else count - 1, work.edges[n]
        before, after = work.edges[last], work.edges[n + 1 if n + 1 < count else 0]
        edge.wind = edge.left
        if edge.left:
            valley, left, right = edge.left > 0 and before.left < 0, n, last
            if edge.slope < before.slope:
                left, right = right, left
        else:
            valley = after.left > before.left
            edge.wind = after.left
            if after.left != before.left:
                edge.wind = 1 if edge.x < edge.top_x else -1
            if edge.wind < 0:
                edge.x, edge.top_x = edge.top_x, edge.x
            left, right = beside(work, n, -edge.wind), n
        if valley:
            pair = work.valleys[work.valley_count]
            pair.first, pair.second = left, right
            work.tickets[work.valley_count] = (edge.y << 32) | work.valley_count
            work.valley_count += 1
    for n in range(count):
        above = beside(work, n, work.edges[n].wind)
        work.edges[n].above = above if work.edges[above].wind == work.edges[n].wind else NONE


@part
def beside(work: Any, edge: int, step: int) -> int:
    """Return the edge that is one step further along the path, or one back."""
    found = edge + step
    if found < 0:
        return found + work.edge_count
    return found if found < work.edge_count else found - work.edge_count


@part
def reach(edge: Any, y: int) -> int:
    """Return x of an edge at y."""
    return edge.top_x if y == edge.top_y else edge.x + rounded(edge.slope * (y - edge.y))


@part
def crossing(a: Any, b: Any, bottom: int) -> tuple[int, int]:
    """Return the point where two edges cross that do so above `bottom`, as Clipper rounds it."""
    if a.slope == b.slope:
        return reach(a, bottom), bottom
    upright = abs(a.slope) < abs(b.slope)  # the one of the two whose x is the more certain
    if a.slope == 0:
        x, y = a.x, rounded(a.x / b.slope + (b.y - b.x / b.slope))
    elif b.slope == 0:
        x, y = b.x, rounded(b.x / a.slope + (a.y - a.x / a.slope))
    else:
        at_a, at_b = a.x - a.y * a.slope, b.x - b.y * b.slope
        exact = (at_b - at_a) / (a.slope - b.slope)
        x, y = rounded(a.slope * exact + at_a if upright else b.slope * exact + at_b), rounded(exact)
    if y < max(a.top_y, b.top_y):
        y = max(a.top_y, b.top_y)
        x = reach(a, y) if upright else reach(b, y)
    if y > bottom:
        x, y = reach(b, bottom) if abs(a.slope) > abs(b.slope) else reach(a, bottom), bottom
    return x, y


@part
def along(a: Any, b: Any, x: int, y: int) -> bool:
    """Tell whether two edges through the same point go one way from there, for all that Clipper can tell."""
    here = (y - a.top_y) * (x - b.top_x) == (x - a.top_x) * (y - b.top_y)
    return here or (a.y - a.top_y) * (b.x - b.top_x) == (a.x - a.top_x) * (b.y - b.top_y)


@part
def precedes(new: Any, edge: Any) -> bool:
    """Tell whether an edge that begins on the line is left of one that is there, from the line on upwards."""
    if new.at != edge.at:
        return new.at < edge.at
    if new.top_y > edge.top_y:
        return new.top_x < reach(edge, new.top_y)
    return edge.top_x > reach(new, edge.top_y)


@part
def insert(work: Any, new: int, i: int) -> int:
    """Put an edge among the active ones, at place i or right of it; return its place."""
    edge = work.edges[new]
    while i < work.active_count and not precedes(edge, work.edges[work.active[i]]):
        i += 1
    for k in range(work.active_count, i, -1):
        work.active[k] = work.active[k - 1]
    work.active[i] = new
    work.active_count += 1
    return i


@part
def remove(work: Any, i: int) -> None:
    """Take the edges at places i and i + 1 out of the active ones."""
    work.active_count -= 2
    for k in range(i, work.active_count):
        work.active[k] = work.active[k + 2]


@part
def overlap(a: Any, b: Any) -> bool:
    """Tell whether two level edges at one height have more than a point in common."""
    return min(a.x, a.top_x) < max(b.x, b.top_x) and min(b.x, b.top_x) < max(a.x, a.top_x)


@part
def swapped(work: Any, bottom: int, top: int) -> int:
    """Sort the active edges by where they are, and list their crossings in the order in which neighbours swap."""
    count, end, order, line = 0, work.active_count - 1, work.order, work.line
    for i in range(work.active_count):
        order[i], line[i] = work.active[i], work.edges[work.active[i]].at
    while end > 0:
        last = 0
        for i in range(end):
            if line[i] > line[i + 1]:
                if count == 4 * ROOM:
                    return NONE
                x, y = crossing(work.edges[order[i]], work.edges[order[i + 1]], bottom)
                if y < top:
                    x, y = line[i], top
                here = work.crossings[count]
                here.x, here.y, here.first, here.second = x, y, order[i], order[i + 1]
                work.turns[count] = (y << 32) | count
                order[i], order[i + 1] = order[i + 1], order[i]
                line[i], line[i + 1] = line[i + 1], line[i]
                count, last = count + 1, i
        end = last
    return count


@part
def divided(tickets: Any, first: int, last: int) -> int:
    """Divide a part of a list at the median of three, those with more height to the left; return where."""
    a, b, c = first + 1, first + (last - first) // 2, last - 1
    if tickets[a] >> 32 > tickets[b] >> 32:
        a, b = b, a  # from here on the one with more height is b
    low, high, other = tickets[a] >> 32, tickets[b] >> 32, tickets[c] >> 32
    middle = a if low > other else (c if high > other else b)
    tickets[first], tickets[middle] = tickets[middle], tickets[first]
    height, i, k = tickets[first] >> 32, first + 1, last
    while True:
        while tickets[i] >> 32 > height:
            i += 1
        k -= 1
        while height > tickets[k] >> 32:
            k -= 1
        if i >= k:
            return i
        tickets[i], tickets[k] = tickets[k], tickets[i]
        i += 1


@part
def descending(work: Any, tickets: Any, count: int) -> bool:
    """Sort tickets by what is above their lowest 32 bits, the largest first; return False if that takes too long.

    Equal ones end in the order in which `std::sort` of the GNU library leaves them, since Clipper meets them in that
    order (Musser 1997, Introspective Sorting and Selection Algorithms).
    """
    depth, size = 0, count
    while size > 1:
        size, depth = size >> 1, depth + 2
    parts, waiting = work.parts, 3
    parts[0], parts[1], parts[2] = 0, count, depth
    while waiting:
        waiting -= 3
        first, last, depth = parts[waiting], parts[waiting + 1], parts[waiting + 2]
        while last - first > 16:
            if depth == 0:
                return False
            depth -= 1
            cut = divided(tickets, first, last)
            parts[waiting], parts[waiting + 1], parts[waiting + 2] = cut, last, depth
            waiting, last = waiting + 3, cut
    for i in range(1, count):
        ticket, k = tickets[i], i
        while k and ticket >> 32 > tickets[k - 1] >> 32:
            tickets[k] = tickets[k - 1]
            k -= 1
        tickets[k] = ticket
    return True
