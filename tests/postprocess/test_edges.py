"""What the sweep stands on: where edges cross, how a path falls into edges and valleys, and the order of equals."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

edges = pytest.importorskip("ocrlab.postprocess.edges", reason="numba is not installed", exc_type=ImportError)
offset = pytest.importorskip("ocrlab.postprocess.offset", reason="numba is not installed", exc_type=ImportError)


def chained(*points: tuple[int, int]) -> Any:
    space = np.zeros(1, offset.WORK)
    count = len(points)
    space["path"]["x"][0, :count], space["path"]["y"][0, :count] = np.transpose(points)
    space["after"][0, :count], space["before"][0, :count] = np.roll(range(count), -1), np.roll(range(count), 1)
    edges.chained(space[0], 0, count)
    return space[0]


def test_level_edges_belong_to_the_right_way_up_in_a_valley_and_to_the_left_one_on_a_peak() -> None:
    for points in ([(0, 0), (10, 0), (10, 10), (0, 10)], [(0, 10), (10, 10), (10, 0), (0, 0)]):
        work = chained(*points)
        made = work["edges"][:4]
        assert work["valley_count"] == 1
        left, right = work["valleys"][0]
        assert (made[left]["x"], made[left]["y"], made[left]["top_y"]) == (0, 10, 0)
        assert (made[right]["slope"], made[right]["x"], made[right]["top_x"]) == (edges.LEVEL, 0, 10)
        assert made[made[right]["above"]]["x"] == 10 and made[made[right]["above"]]["above"] == edges.NONE
        top = made[made[left]["above"]]
        assert (top["y"], top["x"], top["top_x"], top["above"]) == (0, 0, 10, edges.NONE)
        assert made[left]["wind"] == -made[right]["wind"] == top["wind"]


def test_valleys_come_in_the_order_of_the_path() -> None:
    work = chained((0, 0), (5, 20), (10, 5), (14, 20), (18, 20), (30, -3))
    assert [tuple(pair) for pair in work["valleys"][: work["valley_count"]]] == [(0, 1), (2, 3)]
    assert [ticket >> 32 for ticket in work["tickets"][:2].tolist()] == [20, 20]
    assert work["edges"]["above"][:6].tolist() == [5, -1, -1, 4, -1, -1]


def test_crossings_are_rounded_points_of_both_edges() -> None:
    rng = np.random.default_rng(0)
    dtype, near = np.dtype(edges.EDGE), 0
    for _ in range(200):
        a, b = np.zeros(2, dtype)
        for edge in (a, b):
            edge["x"], edge["top_x"], edge["top_y"] = rng.integers(0, 50, 3)
            edge["y"] = rng.integers(60, 110)
            edge["slope"] = (edge["top_x"] - edge["x"]) / (edge["top_y"] - edge["y"])
        slopes = [Fraction(int(e["top_x"] - e["x"]), int(e["top_y"] - e["y"])) for e in (a, b)]
        if slopes[0] == slopes[1]:
            continue
        y = ((b["x"] - b["y"] * slopes[1]) - (a["x"] - a["y"] * slopes[0])) / (slopes[0] - slopes[1])
        bottom, top = int(min(a["y"], b["y"])), int(max(a["top_y"], b["top_y"]))
        found = edges.crossing(a, b, bottom)
        if top <= y <= bottom:
            near += 1
            assert abs(found[1] - y) <= 0.5 and abs(found[0] - (a["x"] + (y - a["y"]) * slopes[0])) <= 0.5 + 1e-9
        else:
            assert top <= found[1] <= bottom
    assert near > 50


def test_equals_come_in_the_order_of_the_gnu_library() -> None:
    """60 numbers and their order after `std::sort`, by a program that g++ 12 compiled; up to 16 the order is stable."""
    heights = [int(digit) for digit in "064126235163631031661140116415221462131515333426524042404606"]
    order = [1, 59, 57, 47, 34, 26, 19, 18, 12, 10, 5, 29, 8, 39, 41, 48, 52, 45, 27, 22, 50, 33, 54, 56, 2, 11, 42, 43,
             44, 37, 7, 16, 13, 46, 49, 53, 35, 6, 4, 31, 30, 38, 14, 17, 20, 21, 24, 3, 25, 28, 32, 40, 9, 36, 23, 51,
             55, 15, 58, 0]  # fmt: skip
    for count, wanted in ((60, order), (16, sorted(range(16), key=lambda i: -heights[i]))):
        work = np.zeros(1, offset.WORK)[0]
        tickets = np.array([(height << 32) | i for i, height in enumerate(heights[:count])])
        assert edges.descending(work, tickets, count)
        assert (tickets & 0xFFFFFFFF).tolist() == wanted
