"""A heap that never gives memory back."""

from __future__ import annotations

from ocrlab.trace.estimate_heap import ALIGNED, UNIT, Heap, height
from ocrlab.trace.memory_record import Block

MIB = 1 << 20


def block(size: int, born: int, died: int | None = None) -> Block:
    return Block(size, "cpu", "m", "op", "forward", born, died)


def test_a_tensor_is_aligned_and_has_room() -> None:
    heap = Heap()
    for size in (1, 63, 64, 1000, MIB):
        start, length = heap.aligned(size)
        assert (start + UNIT) % ALIGNED == 0
        assert length >= size + 8


def test_pieces_never_overlap() -> None:
    heap, alive = Heap(), {}
    for step in range(400):
        alive[step] = heap.aligned(1000 + 7919 * step % 50_000) if step % 3 else heap.take(24 + step % 90)
        if step % 2:
            heap.free(*alive.pop(min(alive)))
    ends = 0
    for start, size in sorted(alive.values()):
        assert start >= ends
        ends = start + size
    assert ends <= heap.top <= heap.high


def test_neighbours_that_are_free_become_one_piece() -> None:
    heap = Heap()
    first, second, _last = heap.take(2 * MIB), heap.take(2 * MIB), heap.take(2 * MIB)
    high = heap.high
    heap.free(*first)
    heap.free(*second)
    heap.take(4 * MIB)
    assert heap.high == high


def test_the_hole_of_a_tensor_is_too_small_for_the_next_one() -> None:
    heap = Heap()
    first = heap.aligned(MIB)
    heap.take(2000)
    high = heap.high
    heap.free(*first)
    heap.aligned(MIB)
    assert heap.high > high + MIB / 2


def test_the_height_is_the_sum_of_what_is_alive_where_nothing_dies() -> None:
    assert MIB * 10 <= height([block(MIB, event) for event in range(10)]) < MIB * 10.1


def test_the_same_storages_give_the_same_height() -> None:
    blocks = [block(MIB + 64 * n, 2 * n, 2 * n + 31) for n in range(200)]
    assert height(blocks) == height(blocks) > 15 * MIB
