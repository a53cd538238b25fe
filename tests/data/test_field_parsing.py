"""Values out of somebody's JSON: what is meant comes back, what cannot be meant is named."""

from __future__ import annotations

import numpy as np
import pytest

from ocrlab.data import field_parsing
from ocrlab.data.annotations import PageError


def test_boxes_and_points() -> None:
    np.testing.assert_array_equal(field_parsing.box([1, 2, 3, 4.5], "bbox"), [[1, 2], [4, 2], [4, 6.5], [1, 6.5]])
    np.testing.assert_array_equal(field_parsing.flat_points([1, 2, 3, 4], "mask"), [[1, 2], [3, 4]])
    assert field_parsing.points(None, "points") is None and field_parsing.flat_points([], "mask").shape == (0, 2)


@pytest.mark.parametrize("bad", [None, 7, "1,2", [1, 2, 3], [1, 2, 3, None], [1, 2, 3, True], [1, 2, 3, 1e9], [[1, 2]]])
def test_what_is_no_box_or_polygon(bad: object) -> None:
    with pytest.raises(PageError, match="bbox is not a box"):
        field_parsing.box(bad, "bbox")
    with pytest.raises(PageError, match="mask is not a polygon"):
        field_parsing.flat_points(bad if bad != [1, 2, 3] else [1], "mask")


def test_a_name_that_is_there_twice() -> None:
    with pytest.raises(PageError, match="the key 'b' is twice in one object"):
        field_parsing.parse('{"a": {"b": 1, "c": 2, "b": 3}}')


def test_the_line_of_a_key() -> None:
    text = '{\n"é": 1,\n"b": {\n"a": 1},\n"a": 2}'
    assert field_parsing.line_of(text, "é") == 2
    assert field_parsing.line_of(text, "b", "a") == 4
    assert field_parsing.line_of(text, "none") is None


@pytest.mark.parametrize(
    "numbers", [[float("nan")], [1, float("nan"), 2], [float("inf")], [1, -1e7], [10**400, 0.5], [True], ["1"], [None]]
)
def test_what_is_no_position(numbers) -> None:
    assert not field_parsing.are_positions(numbers)
    assert field_parsing.are_positions([]) and field_parsing.are_positions([0, -3.5, 1e6])


@pytest.mark.parametrize("point", [{"x": 1, "y": 2}, "ab", [1], [1, 2, 3], None, 7])
def test_a_point_that_is_none_is_named(point) -> None:
    with pytest.raises(PageError, match=r"points\[1\] is not a point"):
        field_parsing.points([[1, 2], point], "points")
