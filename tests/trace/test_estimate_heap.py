"""A heap that never gives memory back, asked of glibc's own malloc."""

from __future__ import annotations

import re
import subprocess

import pytest

from ocrlab.trace import estimate_heap
from ocrlab.trace.estimate_heap import MALLOC, Node, height
from ocrlab.trace.memory_record import Block
from ocrlab.train import machine

MIB = 1 << 20


def block(size: int, born: int, died: int | None = None) -> Block:
    return Block(size, "cpu", "m", "op", "forward", born, died)


def test_the_height_is_the_sum_of_what_is_alive_where_nothing_dies() -> None:
    assert MIB * 10 <= height([block(MIB, event) for event in range(10)]) < MIB * 10.1


def test_the_same_storages_give_the_same_height() -> None:
    blocks = [block(MIB + 64 * n, 2 * n, 2 * n + 31) for n in range(200)]
    assert height(blocks) == height(blocks) > 15 * MIB


def test_what_is_free_is_used_again_but_for_the_cuttings_that_are_kept_apart() -> None:
    assert 4 * MIB <= height([block(4 * MIB, 2 * n, 2 * n + 1) for n in range(40)]) < 10 * 4 * MIB


def test_what_an_operator_takes_inside_itself_counts_while_it_runs() -> None:
    assert 5 * MIB <= height([block(MIB, 0)], [(1, 4 * MIB), (2, 4 * MIB)]) < 5.1 * MIB


def test_nodes_that_outlive_tensors_hold_their_places_apart() -> None:
    tensors = [block(MIB - 64 * n, 2 * n, 200 + n) for n in range(40)]
    larger = [block(2 * MIB, 300 + n) for n in range(15)]
    nodes = [Node(2 * n + 1) for n in range(40)]
    assert height([*tensors, *larger], (), nodes) > height([*tensors, *larger]) + 10 * MIB


def test_the_last_step_but_one_is_repeated_with_what_dies_in_the_next() -> None:
    lives = [(0, None, (1,)), (12, 15, (2,)), (21, 32, (3,)), (22, None, (4,)), (31, 42, (5,))]
    again = list(estimate_heap._repeated(lives, 20, 30, 2))
    assert again == [*lives[:3], (31, 42, (3,)), (41, 52, (3,)), lives[3]]


def test_where_it_cannot_be_asked_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "run", gone)
    assert height([block(MIB, 0)]) == 0


def test_the_heap_is_kept_as_a_training_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Library:
        def __init__(self, _name: str) -> None:
            self.mallopt = lambda option, value: asked.append(f"{option}={value}")

    monkeypatch.setattr(machine.ctypes, "CDLL", Library)
    machine.keep_freed_memory()
    assert tuple(asked) == MALLOC
    assert re.search(r"estimate_malloc\.py$", str(estimate_heap.CHILD))
