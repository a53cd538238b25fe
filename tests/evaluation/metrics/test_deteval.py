"""DetEval by hand, rule by rule; benchmarks/metrics.py runs the published evaluator beside ours."""

from typing import Any

import numpy as np
import pytest

from ocrlab.evaluation.metrics import deteval


def box(left: float, top: float, right: float, bottom: float) -> np.ndarray[Any, Any]:
    """Return a box of whole pixels, its edges included as the protocol has it."""
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]], np.float32)


LINE = box(0, 0, 99, 19)  # 100 x 20 pixels


def earned(page: deteval.PageAreas) -> tuple[list[float], list[float]]:
    return page.truth.tolist(), page.detections.tolist()


def test_a_single_match_needs_four_fifths_of_the_truth_and_two_fifths_of_the_detection() -> None:
    assert earned(deteval.judge([LINE], [False], [box(0, 0, 79, 19)])) == ([1], [1])
    assert earned(deteval.judge([LINE], [False], [box(0, 0, 78, 19)])) == ([0], [0])
    assert earned(deteval.judge([LINE], [False], [box(0, 0, 99, 49)])) == ([1], [1])
    assert earned(deteval.judge([LINE], [False], [box(0, 0, 99, 50)])) == ([0], [0])


def test_a_truth_in_pieces_earns_less_and_so_does_each_piece() -> None:
    page = deteval.judge([LINE], [False], [box(0, 0, 49, 19), box(50, 0, 99, 19)])
    assert earned(page) == ([0.8], [0.8, 0.8])
    assert (page.recall, page.precision) == pytest.approx((0.8, 0.8))


def test_a_detection_over_several_truths_earns_all() -> None:
    page = deteval.judge([LINE, box(0, 30, 99, 49)], [False, False], [box(0, 0, 99, 49)])
    assert earned(page) == ([1, 1], [1])


def test_a_neighbour_that_touches_sends_a_pair_to_the_second_rule_where_it_earns_all() -> None:
    page = deteval.judge([LINE], [False], [LINE, box(99, 0, 140, 19)])
    assert earned(page) == ([1], [1, 0]), "one pixel in common is not a single overlap, but one piece is as good"
    assert earned(deteval.judge([LINE], [False], [LINE, box(100, 0, 140, 19)])) == ([1], [1, 0])


def test_a_detection_two_fifths_inside_ignored_text_does_not_count() -> None:
    half_in, just_not = box(200, 0, 440, 19), box(200, 0, 449, 19)  # of 241 and 250 pixels 100 are ignored
    page = deteval.judge([LINE, box(200, 0, 299, 19)], [False, True], [LINE, half_in, just_not])
    assert page.detection_counts.tolist() == [True, False, True]
    assert (page.recall, page.precision) == (1, 0.5)


def test_broken_polygons_are_misses_and_no_truth() -> None:
    crossing = [[0, 0], [99, 19], [99, 0], [0, 19]]
    assert earned(deteval.judge([LINE], [False], [crossing])) == ([0], [0]), "its bounding box would fit"
    assert deteval.judge([crossing, LINE], [False, False], [LINE]).truth_counts.tolist() == [False, True]
    assert deteval.judge([LINE], [False], [np.full((4, 2), np.nan), None]).precision == 0  # type: ignore[list-item]
