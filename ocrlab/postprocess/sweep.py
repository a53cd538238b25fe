"""The outline of what a closed path winds around: one sweep over its edges, up the page.

After Vatti 1992, A Generic Solution to Polygon Clipping, with the arithmetic of Clipper 6.4 (Johnson): union, filled
where the winding number is positive. Compiled by numba as parts of `offset`.

The line stops at each height at which an edge begins or ends. Between two stops edges cross that have changed places.
An edge is drawn along while the winding number is 0 on one side of it and 1 on the other. The new outline grows in
pieces, each a chain of dots with two ends, and each end follows an edge. End 2 n is the left one of piece n when it
begins, end 2 n + 1 the right one; where two ends meet on a peak, the piece that began later is added to the other.
"""

from __future__ import annotations

from typing import Any

from ocrlab.postprocess.edges import (
    LEVEL,
    NONE,
    ROOM,
    START,
    along,
    beside,
    descending,
    insert,
    overlap,
    reach,
    remove,
    swapped,
)
from ocrlab.postprocess.kernels import part

DEEP = -(1 << 40)  # a height above everything: y grows downwards


@part
def swept(work: Any) -> bool:
    """Draw the outline of the edges and valleys in `work`; return False if that is left to Clipper."""
    work.active_count, work.level_count, work.flat_count, work.dot_count, work.piece_count = 0, 0, 0, 0, 0
    work.open_count, work.touch_count, work.lost, work.next_y = 0, 0, 0, DEEP
    if not descending(work, work.tickets, work.valley_count):
        return False
    valley, y = 0, work.tickets[0] >> 32
    while work.lost == 0:
        while valley < work.valley_count and work.tickets[valley] >> 32 == y:
            pair = work.valleys[work.tickets[valley] & 0xFFFFFFFF]
            enter(work, pair.first, pair.second)
            valley += 1
        if not flatten(work):
            return False
        work.flat_count = 0
        top = work.next_y
        if valley < work.valley_count:
            top = max(top, work.tickets[valley] >> 32)
        elif work.active_count == 0:
            return work.lost == 0
        if top >= y or not (mix(work, y, top) and leave(work, top) and flatten(work)):
            return False
        rise(work, top)
        y = top
    return False


@part
def dot(work: Any, x: int, y: int) -> int:
    """Return a new dot of the outline, without neighbours."""
    new = work.dot_count
    if new + 1 < 2 * ROOM:
        work.dot_count += 1
    else:
        work.lost = 1
    here = work.dots[new]
    here.x, here.y, here.one, here.other = x, y, NONE, NONE
    return new


@part
def link(work: Any, one: int, other: int) -> None:
    """Make a dot a neighbour of another one."""
    if work.dots[one].one == NONE:
        work.dots[one].one = other
    else:
        work.dots[one].other = other


@part
def draw(work: Any, end: int, x: int, y: int) -> int:
    """Lengthen a piece at one end, if that is not there already; return the dot at this end."""
    last = work.ends[end].dot
    if work.dots[last].x == x and work.dots[last].y == y:
        return last
    new = dot(work, x, y)
    link(work, new, last)
    link(work, last, new)
    work.ends[end].dot = new
    return new


@part
def follow(work: Any, end: int, edge: int) -> None:
    """Draw this end along this edge from now on."""
    work.edges[edge].end = end
    work.ends[end].edge = edge


@part
def begin(work: Any, i: int, k: int, x: int, y: int) -> None:
    """Begin a piece whose ends follow the active edges at these two places."""
    one, other = work.edges[work.active[i]], work.edges[work.active[k]]
    if other.slope != LEVEL and one.slope <= other.slope:
        i, k = k, i  # more slope is on the left
    left, right, end, new = work.active[i], work.active[k], 2 * work.piece_count, dot(work, x, y)
    if work.piece_count + 1 < ROOM:
        work.piece_count += 1
    else:
        work.lost = 1
    work.open_count += 1
    work.ends[end].dot = new
    work.ends[end + 1].dot = new
    follow(work, end, left)
    follow(work, end + 1, right)
    i -= 1
    if i >= 0 and work.active[i] == right:
        i -= 1
    if i >= 0:
        edge, before = work.edges[left], work.edges[work.active[i]]
        if before.end >= 0 and before.top_y < y and edge.top_y < y:
            at = reach(edge, y)
            if reach(before, y) == at and along(before, edge, at, y):
                work.lost = 1


@part
def finish(work: Any, one: int, other: int, x: int, y: int) -> None:
    """Join the two ends that follow these edges."""
    keep, gone = work.edges[one].end, work.edges[other].end
    draw(work, keep, x, y)
    work.edges[one].end = NONE
    work.edges[other].end = NONE
    keep, gone = min(keep, gone), max(keep, gone)
    a, b = work.ends[keep].dot, work.ends[gone].dot
    if a != b:
        link(work, a, b)
        link(work, b, a)
    if keep >> 1 != gone >> 1:
        work.open_count -= 1
        work.ends[keep].dot = work.ends[gone ^ 1].dot
        follow(work, keep, work.ends[gone ^ 1].edge)


@part
def cross(work: Any, i: int, k: int, x: int, y: int) -> None:
    """Let the active edge at place i go to the right of the one at place k; their places are changed by the caller."""
    one, other = work.active[i], work.active[k]
    a, b = work.edges[one], work.edges[other]
    a.left += b.wind
    b.left -= a.wind
    if a.end >= 0 and b.end >= 0:
        finish(work, one, other, x, y)
    elif a.end >= 0:
        draw(work, a.end, x, y)
        follow(work, a.end, other)
        a.end = NONE
    elif b.end >= 0:
        draw(work, b.end, x, y)
        follow(work, b.end, one)
        b.end = NONE
    elif 2 * a.left + a.wind == 1:
        begin(work, i, k, x, y)


@part
def enter(work: Any, left: int, right: int) -> None:
    """Make the two edges of a valley active."""
    a, b = work.edges[left], work.edges[right]
    a.at, b.at, a.end, b.end, a.left = a.x, b.x, NONE, NONE, 0
    i = insert(work, left, START)
    k = insert(work, right, i + 1)
    if i > 0:
        before = work.edges[work.active[i - 1]]
        a.left = before.left + before.wind
    b.left = a.left + a.wind
    if 2 * a.left + a.wind == 1:
        begin(work, i, k, a.x, a.y)
    upper = b
    if b.slope == LEVEL:
        upper = work.edges[b.above]
        work.levels[work.level_count] = right
        work.level_count += 1
        for n in range(work.flat_count):
            if b.end >= 0 and overlap(work.edges[work.flats[n]], b):
                work.lost = 1  # they may cancel each other
    work.next_y = max(work.next_y, a.top_y, upper.top_y)
    if k > i + 1:
        before = work.edges[work.active[k - 1]]
        one_way = (a.y - before.top_y) * (b.x - b.top_x) == (before.at - before.top_x) * (b.y - b.top_y)
        if one_way and b.end >= 0 and before.end >= 0:
            work.lost = 1  # Clipper joins them, wherever they are
        for n in range(i + 1, k):
            cross(work, k, n, a.x, a.y)


@part
def promote(work: Any, i: int) -> None:
    """Put the edge above the one at place i into its place."""
    edge = work.edges[work.active[i]]
    new = work.edges[edge.above]
    new.left, new.at, new.end = edge.left, new.x, NONE
    if edge.end >= 0:
        follow(work, edge.end, edge.above)
    work.active[i] = edge.above


@part
def rests(work: Any, i: int) -> bool:
    """Tell whether the edge at place i, which is drawn and begins here, lies on a neighbour that is drawn as well."""
    edge = work.edges[work.active[i]]
    for k in range(max(i - 1, 0), min(i + 2, work.active_count)):
        other = work.edges[work.active[k]]
        drawn = k != i and other.end >= 0 and other.top_y < edge.y
        if drawn and other.at == edge.x and along(edge, other, edge.x, edge.y):
            return True
    return False


@part
def flatten(work: Any) -> bool:
    """Walk along all level edges that wait, the last first; return False if that is left to Clipper."""
    while work.level_count:
        work.level_count -= 1
        if not walk(work, work.levels[work.level_count]):
            return False
    return True


@part
def walk(work: Any, flat: int) -> bool:
    """Move a level edge past the active edges between its ends, and put the one above it into its place there."""
    a = work.edges[flat]
    i, step = START, 1 if a.x < a.top_x else -1
    while work.active[i] != flat:
        i += 1
    partner = beside(work, flat, a.wind) if a.above == NONE else NONE
    touched = False
    while 0 <= i + step < work.active_count:
        k = i + step
        other = work.active[k]
        b = work.edges[other]
        if (b.at - a.top_x) * step > 0:
            break
        if a.above >= 0 and b.at == a.top_x and b.slope < work.edges[a.above].slope:
            break
        if a.end >= 0:
            touch(work, flat, draw(work, a.end, b.at, a.y))
            touched = True
        if other == partner:
            if (a.end >= 0) != (b.end >= 0):
                return False
            if a.end >= 0:
                finish(work, flat, other, a.top_x, a.y)
            remove(work, min(i, k))
            return True
        cross(work, min(i, k), max(i, k), b.at, a.y)
        work.active[i], work.active[k] = other, flat
        i = k
    if a.above == NONE:
        return False
    if a.end < 0:
        promote(work, i)
        return True
    if not touched:
        touch(work, flat, work.ends[a.end].dot)
    draw(work, a.end, a.top_x, a.y)
    promote(work, i)
    return not rests(work, i)


@part
def touch(work: Any, flat: int, here: int) -> None:
    """Note that a level edge was drawn, here, and where others lie on it that are drawn and wait."""
    if work.flat_count == 0 or work.flats[work.flat_count - 1] != flat:
        work.flats[work.flat_count] = flat
        work.flat_count += 1
    for n in range(work.level_count):
        other = work.edges[work.levels[n]]
        if other.end >= 0 and overlap(work.edges[flat], other):
            pair = work.touches[work.touch_count]
            pair.first, pair.second = work.ends[other.end].dot, here
            if work.touch_count + 1 < ROOM:
                work.touch_count += 1
            else:
                work.lost = 1


@part
def mix(work: Any, bottom: int, top: int) -> bool:
    """Move the line up to `top` and let the edges cross that change places; return False if that is left to Clipper."""
    tidy, x = True, 0
    for i in range(work.active_count):
        edge = work.edges[work.active[i]]
        edge.at = reach(edge, top)
        tidy, x = tidy and (i == 0 or x <= edge.at), edge.at
    if tidy:
        return True
    count = swapped(work, bottom, top)
    if count == NONE or not descending(work, work.turns, count):
        return False
    place, turns = work.place, work.turns
    for i in range(work.active_count):
        place[work.active[i]] = i
    for i in range(count):
        k = i
        while True:  # only neighbours cross: the next crossing that is one
            if k == count:
                return False
            here = work.crossings[turns[k] & 0xFFFFFFFF]
            one, other = place[here.first], place[here.second]
            if abs(one - other) == 1:
                break
            k += 1
        turns[i], turns[k] = turns[k], turns[i]
        cross(work, one, other, here.x, here.y)
        work.active[one], work.active[other] = here.second, here.first
        place[here.first], place[here.second] = other, one
    return True


@part
def leave(work: Any, y: int) -> bool:
    """Finish the peaks at y, and let the level edges wait that begin there; return False if that is left to Clipper."""
    i = START
    while i < work.active_count:
        edge = work.edges[work.active[i]]
        if edge.top_y == y and edge.above == NONE:
            partner = beside(work, work.active[i], edge.wind)
            if work.edges[partner].slope != LEVEL:
                if not peak(work, i, partner):
                    return False
                continue  # another edge is at place i now
        elif edge.top_y == y and work.edges[edge.above].slope == LEVEL:
            promote(work, i)
            flat = work.edges[work.active[i]]
            if flat.end >= 0:
                draw(work, flat.end, flat.x, y)
            work.levels[work.level_count] = work.active[i]
            work.level_count += 1
        i += 1
    return True


@part
def peak(work: Any, i: int, partner: int) -> bool:
    """Finish the edge at place i and the one that ends at the same point; return False if that is left to Clipper."""
    one = work.active[i]
    a, b = work.edges[one], work.edges[partner]
    while i + 1 < work.active_count and work.active[i + 1] != partner:
        cross(work, i, i + 1, a.top_x, a.top_y)
        work.active[i], work.active[i + 1] = work.active[i + 1], one
        i += 1
    if i + 1 == work.active_count or (a.end >= 0) != (b.end >= 0):
        return False
    if a.end >= 0:
        finish(work, one, partner, a.top_x, a.top_y)
    remove(work, i)
    return True


@part
def rise(work: Any, y: int) -> None:
    """Go on with the edges above those that end at y, and find the next end."""
    next_y = DEEP
    for i in range(work.active_count):
        edge = work.edges[work.active[i]]
        if edge.top_y == y and edge.above >= 0:
            drawn = edge.end >= 0
            if drawn:
                draw(work, edge.end, edge.top_x, y)
            promote(work, i)
            if drawn and rests(work, i):
                work.lost = 1
        next_y = max(next_y, work.edges[work.active[i]].top_y)
    work.next_y = next_y
