"""Rectangles: the offset is Clipper's, corners run clockwise, and the inverse of the shrink is exact on paper."""

from __future__ import annotations

import cv2
import numpy as np
import pyclipper
import pytest
from numpy.typing import NDArray

from ocrlab.postprocess import quads


def whole_rectangles(count: int) -> NDArray[np.int64]:
    rng = np.random.default_rng(1)
    made = []
    while len(made) < count:
        centre, size = rng.uniform(-50, 600, 2).tolist(), rng.uniform(3, 200, 2).tolist()
        turn = float(rng.uniform(0, 90)) if len(made) % 3 else 0.0
        made.append(cv2.boxPoints((centre, size, turn)))
    return quads.ordered(np.array(made, np.float32)).astype(np.int64)


def clipper(quad: NDArray[np.int64], distance: float) -> NDArray[np.int32]:
    offset = pyclipper.PyclipperOffset()
    offset.AddPath(quad.tolist(), pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
    return np.concatenate([np.array(path, np.int32) for path in offset.Execute(distance)])


def corners_of_hull(points: NDArray[np.int32]) -> set[tuple[int, ...]]:
    return {tuple(point) for point in cv2.convexHull(points)[:, 0].tolist()}


def test_the_direct_offset_spans_what_clipper_spans() -> None:
    made = whole_rectangles(600)
    distance = np.random.default_rng(2).uniform(0.3, 60, len(made))
    for quad, reach, points in zip(made, distance, quads.offset(made, distance), strict=True):
        assert corners_of_hull(points) == corners_of_hull(clipper(quad, reach)), (quad, reach)


@pytest.mark.parametrize("quad", [
    [[0, 0], [0, 10], [40, 10], [40, 0]],  # the other way round
    [[0, 0], [40, 0], [20, 3], [0, 10]],  # a dent
    [[0, 0], [0, 0], [40, 0], [40, 10]],  # a point twice
])  # fmt: skip
def test_what_is_no_clockwise_convex_quad_goes_to_clipper(quad: list[list[int]]) -> None:
    made = np.array([quad], np.int64)
    [points] = quads.offset(made, np.array([5.0]))
    assert corners_of_hull(points) == corners_of_hull(clipper(made[0], 5.0))


def test_nothing_to_offset() -> None:
    assert quads.offset(np.zeros((0, 4, 2), np.int64), np.zeros(0)) == []
    boxes, kept = quads.smallest_boxes([], 3)
    assert boxes.shape == (0, 4, 2) and kept.shape == (0,)


@pytest.mark.parametrize("start", range(4))
@pytest.mark.parametrize("step", [1, -1])
def test_corners_are_put_in_order(start: int, step: int) -> None:
    wanted = np.array([[2, 1], [40, 5], [39, 15], [1, 11]], np.float32)
    mixed = np.roll(wanted, start, axis=0)[::step]
    np.testing.assert_array_equal(quads.ordered(mixed[None])[0], wanted)


def test_area_of_quads() -> None:
    boxes = np.array([[[0, 0], [10, 0], [10, 5], [0, 5]], [[5, 0], [10, 5], [5, 10], [0, 5]]], np.float32)
    assert quads.area(boxes).tolist() == [50, 50]


@pytest.mark.parametrize("ratio", [0.4, 0.5, 0.6])
def test_an_outline_grows_to_the_rectangle_that_shrinks_to_it(ratio: float) -> None:
    distance = 12.0
    width, height = 300.0, 2 * distance * 300 / ((1 - ratio**2) * 300 - 2 * distance)  # shrunk by the distance, by rule
    assert width * height * (1 - ratio**2) / (2 * (width + height)) == pytest.approx(distance)
    inner = np.array([[distance, distance], [width - distance, distance]], np.float64)
    inner = np.concatenate([inner, (inner + np.array([0, height - 2 * distance]))[::-1]]) + 20
    outline = np.rint(inner * 16).astype(np.int32)[:, None]  # sixteen steps a pixel
    probability = np.ones((int(height * 16) + 640, int(width * 16) + 640), np.float32)
    boxes, scores = quads.exact(probability, [outline], ratio, 0, 0.5)
    wanted = np.array([[0, 0], [width, 0], [width, height], [0, height]]) + 20
    np.testing.assert_allclose(boxes[0] / 16, wanted, atol=0.5)
    assert scores.tolist() == [1]
