"""Rules on a box's own numbers."""

from __future__ import annotations

import numpy as np
import pytest

from ocrlab.data.audit import box_rules
from ocrlab.data.audit.raw_annotations import Box

SQUARE = np.float32([[10, 10], [50, 10], [50, 30], [10, 30]])


def box(polygon: object, line: int = 1, text: str = "a", ignored: bool = False) -> Box:
    return Box(line, None if polygon is None else np.asarray(polygon, np.float32), text, ignored)


@pytest.mark.parametrize(
    ("polygon", "kind"),
    [
        (None, "invalid"),
        ([[0, 0], [np.nan, 0], [1, 1]], "invalid"),
        ([[0, 0], [9, 9]], "invalid"),
        ([[0, 0], [9, 9], [18, 18], [3, 3]], "zero_area"),
        ([[5, 5]] * 4, "zero_area"),
        (SQUARE[[0, 2, 1, 3]], "self_crossing"),
    ],
)
def test_what_is_no_region_is_named(polygon: object, kind: str) -> None:
    problem = box_rules.broken(box(polygon))
    assert problem is not None
    assert problem[0] == kind


def test_a_region_has_no_problem() -> None:
    assert box_rules.broken(box(SQUARE)) is None
    assert box_rules.broken(box(SQUARE[::-1])) is None


def test_outside_is_reported_by_how_much() -> None:
    assert box_rules.outside(SQUARE, 60, 40) is None
    assert box_rules.outside(SQUARE, 49, 40) is None
    slight = box_rules.outside(SQUARE, 48, 40)
    half = box_rules.outside(SQUARE, 35, 40)
    gone = box_rules.outside(SQUARE, 5, 5)
    assert slight is not None
    assert half is not None
    assert gone is not None
    assert [slight[1], half[1], gone[1]] == ["note", "warn", "error"]


def test_order_is_judged_by_where_it_runs_and_starts() -> None:
    assert box_rules.backwards(SQUARE) is None
    upward = np.float32([[10, 100], [10, 20], [30, 20], [30, 100]])  # text that runs up the page
    assert box_rules.backwards(upward) is None
    for wrong, word in ((SQUARE[::-1], "counter"), (np.roll(SQUARE, 2, 0), "right"), (np.roll(SQUARE, 1, 0), "short")):
        problem = box_rules.backwards(np.asarray(wrong, np.float32))
        assert problem is not None
        assert word in problem[2]


def test_a_line_boxed_twice_is_a_pair() -> None:
    boxes = [box(SQUARE), box(SQUARE + 100, 2), box(SQUARE + 1, 3), box(SQUARE + 100, 4, ignored=True)]
    pairs = {(later, earlier) for later, earlier, _, _ in box_rules.twice(boxes, [0, 1, 2, 3])}
    assert pairs == {(2, 0), (3, 1)}
    assert list(box_rules.twice(boxes, [0])) == []


def test_small_boxes_of_a_single_text_need_less_of_each_other() -> None:
    digit = np.float32([[10, 10], [18, 10], [18, 20], [10, 20]])
    off = digit + np.float32([3, 2])  # IoU 0.33
    assert [pair[:2] for pair in box_rules.twice([box(digit), box(off, 2)], [0, 1])] == [(1, 0)]
    assert list(box_rules.twice([box(digit), box(off, 2, text="b")], [0, 1])) == []
    assert list(box_rules.twice([box(digit), box(digit + np.float32([6, 0]), 2)], [0, 1])) == []  # neighbours
