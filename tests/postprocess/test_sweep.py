"""The outline of what a path winds around, of paths that can be drawn on paper."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

edges = pytest.importorskip("ocrlab.postprocess.edges", reason="numba is not installed", exc_type=ImportError)
offset = pytest.importorskip("ocrlab.postprocess.offset", reason="numba is not installed", exc_type=ImportError)
sweep = pytest.importorskip("ocrlab.postprocess.sweep", reason="numba is not installed", exc_type=ImportError)

SPACE = np.zeros(1, offset.WORK)


def swept(*points: tuple[int, int]) -> Any:
    """Return the work of a sweep over a ring of points, of which no three in a row are on one line."""
    count = len(points)
    SPACE["path"]["x"][0, :count], SPACE["path"]["y"][0, :count] = np.transpose(points)
    SPACE["after"][0, :count], SPACE["before"][0, :count] = np.roll(range(count), -1), np.roll(range(count), 1)
    edges.chained(SPACE[0], 0, count)
    assert sweep.swept(SPACE[0])
    return SPACE[0]


def outline(work: Any) -> set[tuple[int, int]]:
    """Return the points of the one outline, each of which has two neighbours."""
    assert work["open_count"] == 1
    dots, seen, i = work["dots"][: work["dot_count"]], [], 0
    while i not in seen:
        seen.append(i)
        i = next((k for k in (dots[i]["one"], dots[i]["other"]) if k not in seen), 0)
    assert len(seen) == work["dot_count"] and i == 0
    return {(int(dots[i]["x"]), int(dots[i]["y"])) for i in seen}


def test_a_square_is_its_own_outline_and_the_wrong_way_round_it_is_none() -> None:
    square = [(0, 0), (10, 0), (10, 10), (0, 10)]
    assert outline(swept(*square)) == set(square)
    assert swept(*square[::-1])["dot_count"] == 0


def test_of_a_bow_tie_the_half_is_drawn_that_winds_the_right_way() -> None:
    assert outline(swept((0, 0), (20, 10), (20, 0), (0, 10))) == {(0, 0), (10, 5), (0, 10)}
    assert outline(swept((0, 10), (20, 0), (20, 10), (0, 0))) == {(20, 0), (20, 10), (10, 5)}


def test_what_is_wound_around_twice_is_not_drawn_again() -> None:
    """A path around one square, and from its corner around a second one that overlaps it."""
    found = outline(swept((0, 0), (10, 0), (10, 5), (16, 5), (16, 16), (5, 16), (5, 4), (10, 3), (10, 10), (0, 10)))
    assert found >= {(0, 0), (10, 0), (16, 5), (16, 16), (5, 16), (0, 10), (5, 10), (10, 5)}
    assert not found & {(10, 10), (5, 4)}


def test_a_crossing_between_pixels_is_rounded() -> None:
    """(16/7, 16/7) is the point where they cross."""
    assert outline(swept((0, 0), (4, 4), (4, 0), (1, 4))) == {(0, 0), (2, 2), (1, 4)}


def test_a_hole_is_a_piece_of_its_own() -> None:
    """A band around it, whose ends lie on each other."""
    band = swept((-3, 0), (30, 0), (30, 30), (0, 30), (0, 5), (8, 5), (8, 22), (22, 22), (22, 8), (-3, 8))
    assert band["open_count"] == 2
    dots = band["dots"][: band["dot_count"]]
    assert {(8, 8), (22, 8), (22, 22), (8, 22)} <= set(zip(dots["x"].tolist(), dots["y"].tolist(), strict=True))
