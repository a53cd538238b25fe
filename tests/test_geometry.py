"""Polygons: area, order, judgement, offset, and the inverse of the shrink."""

import math

import numpy as np
import pyclipper
import pytest
import shapely

from ocrlab import geometry
from ocrlab.errors import ConfigError, ShapeError

SQUARE = [[10, 10], [30, 10], [30, 20], [10, 20]]  # 20 x 10, clockwise from the top left


def turned(polygon: object, degrees: float, centre: tuple[float, float] = (50, 50)) -> np.ndarray:
    """Return a polygon turned clockwise on the screen."""
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return (np.asarray(polygon, float) - centre) @ np.array([[c, s], [-s, c]]) + centre


def test_area_is_positive_clockwise_on_the_screen() -> None:
    assert geometry.area(SQUARE) == 200
    assert geometry.area(SQUARE[::-1]) == -200
    assert geometry.area(np.array(SQUARE) + 1e7) == 200  # far from the origin nothing cancels
    assert geometry.area([]) == geometry.area([[1, 2], [3, 4]]) == 0


def test_area_and_perimeter_are_those_of_shapely() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        p = rng.uniform(0, 100, (rng.integers(3, 9), 2))
        shape = shapely.Polygon(p)
        assert abs(geometry.area(p)) == pytest.approx(shape.area)
        assert geometry.perimeter(p) == pytest.approx(shape.length)


@pytest.mark.parametrize("bad", [[1, 2, 3], [[1, 2, 3]], [[[1, 2]]]])
def test_what_is_no_polygon_is_refused(bad: list[object]) -> None:
    with pytest.raises(ShapeError, match=r"\(P, 2\)"):
        geometry.area(bad)


@pytest.mark.parametrize("degrees", [-44, -30, -5, 0, 5, 30, 44])
def test_a_quad_is_ordered_from_its_top_left_whatever_its_start_and_direction(degrees: float) -> None:
    quad = turned(SQUARE, degrees)
    for start in range(4):
        for other in (np.roll(quad, start, axis=0), np.roll(quad[::-1], start, axis=0)):
            np.testing.assert_array_equal(geometry.order(other), quad.astype(np.float32))


@pytest.mark.parametrize(("polygon", "reason"), [
    (None, "none"),
    ([], "empty"),
    ([[np.nan, 0], [9, 0], [9, 9], [0, 9]], "empty"),
    ([[0, 0], [np.inf, 0], [9, 9], [0, 9]], "empty"),
    ([[-30, 0], [-10, 0], [-10, 9], [-30, 9]], "empty"),
    ([[100, 10], [120, 10], [120, 20], [100, 20]], "empty"),  # touches the border from outside
    ([[1, 1]], "too_few_points"),
    ([[1, 1], [9, 9]], "too_few_points"),
    ([[5, 5]] * 4, "zero_span"),
    ([[5, 5], [9, 5], [9, 5], [5, 5]], "zero_span"),
    ([[5, 5], [9, 9], [7, 7], [6, 6]], "zero_span"),
    ([[5, 5], [5.5, 5], [5.5, 40], [5, 40]], "too_small"),
    ([[99.5, 5], [130, 5], [130, 40], [99.5, 40]], "too_small"),  # only half a pixel is inside
])  # fmt: skip
def test_a_degenerate_polygon_is_dropped_with_its_reason(polygon: object, reason: str) -> None:
    assert geometry.judge(polygon, 100, 80) == (None, reason)  # type: ignore[arg-type]
    assert reason in geometry.REASONS


def test_a_good_polygon_comes_back_in_order() -> None:
    polygon, reason = geometry.judge(SQUARE[::-1], 100, 80)
    assert reason == "none" and polygon is not None and polygon.dtype == np.float32
    np.testing.assert_array_equal(polygon, SQUARE)
    closed, _ = geometry.judge([*SQUARE, SQUARE[0]], 100, 80)  # a ring that repeats its first point
    np.testing.assert_array_equal(closed, SQUARE)
    six = [[10, 10], [20, 8], [30, 10], [30, 20], [20, 18], [10, 20]]
    np.testing.assert_array_equal(geometry.judge([*six, six[0]], 100, 80)[0], six)


def test_a_bow_tie_is_repaired() -> None:
    for tied in ([SQUARE[i] for i in (0, 2, 1, 3)], [SQUARE[i] for i in (0, 1, 3, 2)]):
        polygon, reason = geometry.judge(tied, 100, 80)
        np.testing.assert_array_equal(polygon, SQUARE)
        assert reason == "none"


def test_of_a_longer_crossing_outline_the_largest_part_stays() -> None:
    eight = [[10, 10], [50, 10], [50, 40], [8, 38], [10, 42], [12, 10]]
    polygon, reason = geometry.judge(eight, 100, 80)
    assert reason == "none" and polygon is not None
    shape = shapely.Polygon(polygon)
    assert shape.is_valid and 1100 < shape.area < 1300 and geometry.area(polygon) > 0


def test_a_turned_box_over_the_border_is_cut_exactly() -> None:
    quad = turned([[60, 40], [120, 40], [120, 60], [60, 60]], 30)
    polygon, reason = geometry.judge(quad, 100, 80)
    assert reason == "none" and polygon is not None and len(polygon) > 4
    assert geometry.area(polygon) == pytest.approx(shapely.Polygon(quad).intersection(shapely.box(0, 0, 100, 80)).area)
    np.testing.assert_allclose(polygon[0], geometry.order(quad)[0])  # still starts at the top left


def test_judged_polygons_are_always_sound() -> None:
    rng = np.random.default_rng(1)
    reasons = set()
    for _ in range(600):
        p = rng.uniform(-40, 140, (rng.integers(3, 8), 2)).round(int(rng.integers(0, 3)))
        polygon, reason = geometry.judge(p, 100, 80)
        reasons.add(reason)
        assert reason in geometry.REASONS and (polygon is None) == (reason != "none")
        if polygon is None:
            continue
        assert polygon.dtype == np.float32 and np.isfinite(polygon).all() and geometry.area(polygon) >= 1 - 1e-3
        assert polygon.min() >= 0 and polygon[:, 0].max() <= 100 and polygon[:, 1].max() <= 80
        again, reason = geometry.judge(polygon, 100, 80, min_size=0.5)
        assert reason == "none" and again is not None
        np.testing.assert_array_equal(again, polygon)
    assert {"none", "empty"} <= reasons


def test_offset_is_that_of_clipper() -> None:
    rng = np.random.default_rng(2)
    for _ in range(100):
        p = rng.uniform(-50, 200, (int(rng.integers(3, 7)), 2))
        distance = float(rng.uniform(-20, 20))
        clipper = pyclipper.PyclipperOffset()
        clipper.AddPath([tuple(xy) for xy in p], pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
        assert [polygon.tolist() for polygon in geometry.offset(p, distance)] == clipper.Execute(distance)


BAD_OFFSETS = [(math.nan, 1.0), (math.inf, 1.0), (0.0, math.nan), (1e12, 1.0), (0.0, 1e12)]


@pytest.mark.parametrize(("corner", "distance"), BAD_OFFSETS)
def test_offset_refuses_what_clipper_cannot_count(corner: float, distance: float) -> None:
    with pytest.raises(ShapeError, match="cannot be offset"):
        geometry.offset([[corner, 0], [10, 0], [10, 10]], distance)


@pytest.mark.parametrize("ratio", [0.1, 0.4, 0.5, 0.6, 0.9])
@pytest.mark.parametrize("sides", [3, 4, 6, 400])
def test_unshrink_undoes_the_shrink_of_a_regular_polygon(sides: int, ratio: float) -> None:
    corners = sides * math.tan(math.pi / sides)  # area is corners * r^2, perimeter twice that over r, inner radius r
    radius = 37.0
    d = radius / 2 * (1 - ratio**2)
    inner = radius - d
    distance = geometry.unshrink_distance(corners * inner**2, 2 * corners * inner, ratio, corners=corners)
    assert float(distance) == pytest.approx(d, rel=1e-9)


def test_unshrink_takes_any_shape_and_the_degenerate() -> None:
    distances = geometry.unshrink_distance(np.full((3, 1), 8.0), np.full((1, 2), 12.0), 0.5)
    assert distances.shape == (3, 2) and np.ptp(distances) == 0
    assert geometry.unshrink_distance(0.0, 0.0, 0.5) == 0 == geometry.unshrink_distance(0.0, 12.0, 0.5)
    assert geometry.unshrink_distance([], [], 0.5).shape == (0,)
    assert geometry.unshrink_distance(-8.0, 12.0, 0.5) == distances[0, 0]  # a signed area, either way round
    for ratio in (0, 1, math.nan):
        with pytest.raises(ConfigError, match="shrink ratio"):
            geometry.unshrink_distance(1, 1, ratio)
