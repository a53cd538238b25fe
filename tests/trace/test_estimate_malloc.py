"""The child that takes and frees as it is told, run as it is run."""

from __future__ import annotations

import subprocess
import sys
from array import array

from ocrlab.trace import estimate_malloc
from ocrlab.trace.estimate_heap import MALLOC

MIB = 1 << 20


def grown(*told: int) -> int:
    command = [sys.executable, "-I", "-S", estimate_malloc.__file__, *MALLOC]
    done = subprocess.run(command, input=array("q", told).tobytes(), capture_output=True, check=True, timeout=60)
    return int(done.stdout)


def test_a_place_that_was_freed_is_taken_again() -> None:
    assert 2 * MIB <= grown(0, 2 * MIB, 0, 0, 1, 2 * MIB) < 2.1 * MIB
    assert 4 * MIB <= grown(0, 2 * MIB, 1, 2 * MIB) < 4.1 * MIB


def test_an_aligned_piece_leaves_a_hole_that_is_too_small_for_the_next_one() -> None:
    between = MIB // 2  # more than Python itself has left free below, or it would lie there and part nothing
    assert grown(0, -MIB, 1, between, 0, 0, 2, -MIB) > 2.4 * MIB


def test_nothing_is_touched() -> None:
    assert grown(*(word for slot in range(64) for word in (slot, 1 << 30))) >= 1 << 34  # 64 GiB, or as far as it comes


def test_nothing_told_is_nothing_grown() -> None:
    assert grown() == 0
