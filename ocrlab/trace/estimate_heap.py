"""How high a heap grows that never gives memory back, as glibc's does with trimming switched off.

What is freed joins its free neighbours; a request takes the smallest piece that is large enough, else the heap grows.
Three things make holes that no tensor of the same size can use again, and a heap half as high again as what is in it:
posix_memalign looks for 96 bytes more than it then keeps; the small objects that come with each tensor settle in the
cuttings, and some outlive it; and of each small size the thread's cache keeps seven pieces apart.
Source: malloc.c of glibc 2.36 (`_int_memalign`, `_int_free`, tcache); which object lives how long is drawn by seed.
"""

from __future__ import annotations

import heapq
import random
from bisect import bisect_left, insort
from collections.abc import Sequence

from ocrlab.trace.memory_record import Block

UNIT, HEAD, LEAST = 16, 8, 32  # bytes: sizes are multiples, what a piece has of its own, the smallest piece
ALIGNED = 64  # bytes, of every tensor
CACHED, APART = 1040, 7  # bytes up to which a thread keeps pieces apart, and how many of a size
OBJECTS = (40, 72)  # bytes of the small objects that come with a tensor
OUTLIVE, LATER = 0.8, 200  # the share of them that outlives it, and by how many births and deaths at most
SEEDS = 3  # drawings that are averaged

Piece = tuple[int, int]  # start, size


def height(blocks: Sequence[Block], scratch: Sequence[tuple[int, int]] = ()) -> int:
    """Return how high a heap grows, in bytes, for storages from birth to death.

    `scratch` are (event, bytes) that an operator takes inside itself and gives back.
    """
    events = [(block.born, 1, index) for index, block in enumerate(blocks)]
    events += [(block.died, 0, index) for index, block in enumerate(blocks) if block.died is not None]
    events += [(event, 2, size) for event, size in scratch if size]
    events.sort()
    return sum(_height(blocks, events, random.Random(seed)) for seed in range(SEEDS)) // SEEDS


def _height(blocks: Sequence[Block], events: Sequence[tuple[int, int, int]], rng: random.Random) -> int:
    heap = Heap()
    places: dict[int, list[Piece]] = {}
    late: list[tuple[int, Piece]] = []
    for event, what, index in events:
        while late and late[0][0] <= event:
            heap.free(*heapq.heappop(late)[1])
        if what == 2:
            heap.free(*heap.aligned(index))
        elif what == 1:
            places[index] = [heap.aligned(blocks[index].bytes), *map(heap.take, OBJECTS)]
        else:
            whole, *small = places.pop(index)
            heap.free(*whole)
            for piece in small:
                if rng.random() < OUTLIVE:
                    heapq.heappush(late, (event + rng.randint(1, LATER), piece))
                else:
                    heap.free(*piece)
    return heap.high


class Heap:
    """Free pieces by size and by place; `top` is where the heap ends, `high` the highest that it ever did."""

    def __init__(self) -> None:
        self.top = self.high = 0
        self._sizes: list[Piece] = []  # (size, start), sorted
        self._starts: dict[int, int] = {}  # of free pieces: start -> size
        self._ends: dict[int, int] = {}  # end -> start
        self._apart: dict[int, list[int]] = {}  # size -> starts

    def take(self, size: int) -> Piece:
        """Return (start, size) of a new piece, as malloc does."""
        need = max(LEAST, -(-(size + HEAD) // UNIT) * UNIT)
        if kept := self._apart.get(need):
            return kept.pop(), need
        return self._piece(need)

    def aligned(self, size: int) -> Piece:
        """Return (start, size) of a new piece for a tensor, as posix_memalign does: what it cuts off is free again."""
        need = -(-(size + HEAD) // UNIT) * UNIT
        start, length = self._piece(need + ALIGNED + LEAST)
        lead = -(start + UNIT) % ALIGNED
        if lead and lead < LEAST:
            lead += ALIGNED
        if lead:
            self.free(start, lead)
        rest = length - lead - need
        if rest >= LEAST:
            self.free(start + lead + need, rest)
            return start + lead, need
        return start + lead, length - lead

    def free(self, start: int, size: int) -> None:
        """Give a piece back; it joins what is free beside it, or is kept apart where it is small."""
        if size <= CACHED:
            kept = self._apart.setdefault(size, [])
            if len(kept) < APART:
                kept.append(start)
                return
        before = self._ends.get(start)
        if before is not None:
            length = self._starts[before]
            self._forget(before, length)
            start, size = before, size + length
        after = self._starts.get(start + size)
        if after is not None:
            self._forget(start + size, after)
            size += after
        if start + size == self.top:
            self.top = start
        else:
            self._keep(start, size)

    def _piece(self, size: int) -> Piece:
        """Return (start, size) of the smallest free piece that is large enough, cut to size, or of new heap."""
        at = bisect_left(self._sizes, (size, -1))
        if at < len(self._sizes):
            found, start = self._sizes[at]
            self._forget(start, found)
            if found - size < LEAST:
                return start, found
            self._keep(start + size, found - size)
            return start, size
        start = self.top
        self.top += size
        self.high = max(self.high, self.top)
        return start, size

    def _keep(self, start: int, size: int) -> None:
        insort(self._sizes, (size, start))
        self._starts[start] = size
        self._ends[start + size] = start

    def _forget(self, start: int, size: int) -> None:
        del self._sizes[bisect_left(self._sizes, (size, start))]
        del self._starts[start]
        del self._ends[start + size]
