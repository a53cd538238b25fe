"""Rectangles: the offset is Clipper's, corners run clockwise, and the inverse of the shrink is exact on paper."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pyclipper
import pytest
import shapely
from numpy.typing import ArrayLike, NDArray

from ocrlab.evaluation.postprocess import box_scores, quads

LOOPS = pytest.mark.parametrize("loops", [box_scores.kernels(), None], ids=["compiled", "numpy"])


def boxes(count: int) -> NDArray[np.float32]:
    """Return rectangles (N, 4, 2), a third of them upright."""
    rng = np.random.default_rng(1)
    place, size, turn = rng.uniform(-50, 600, (count, 2)), rng.uniform(1, 300, (count, 2)), rng.uniform(0, 90, count)
    turn[::3] = 0
    rectangles = zip(place.tolist(), size.tolist(), turn.tolist(), strict=True)
    return quads.corners_of([((x, y), (w, h), degrees) for (x, y), (w, h), degrees in rectangles])


def clipper(quad: NDArray[np.float32], ratio: float) -> list[list[int]]:
    """Return the points that Clipper makes of a quad, as the published method calls it."""
    whole = shapely.Polygon(quad)
    distance = whole.area * ratio / whole.length if whole.length else 0
    offset = pyclipper.PyclipperOffset()
    offset.AddPath(quad.astype(int).tolist(), pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
    return [point for path in offset.Execute(distance) for point in path]


def hull(points: ArrayLike) -> set[tuple[int, ...]]:
    """Return the corners of the hull of some points."""
    return {tuple(point) for point in cv2.convexHull(np.array(points, np.int32))[:, 0].tolist()}


@LOOPS
@pytest.mark.parametrize("ratio", [0.5, 1.5, 3.0])
def test_unclipped_boxes_span_what_clipper_spans(loops: Any, ratio: float) -> None:
    ordered = quads.ordered(boxes(400))
    for quad, points in zip(ordered, quads.unclipped(ordered, ratio, loops), strict=True):
        wanted = clipper(quad, ratio)
        assert not wanted or hull(points) == hull(wanted), quad


@LOOPS
@pytest.mark.parametrize("quad", [
    [[0, 0], [0, 10], [40, 10], [40, 0]],  # the other way round
    [[0, 0], [40, 0], [20, 3], [0, 10]],  # a dent
    [[0, 0], [0, 0], [40, 0], [40, 10]],  # a point twice
    [[0, 0], [9000, 0], [9000, 9000], [0, 9000]],  # more points than there is room for
])  # fmt: skip
def test_what_is_no_clockwise_convex_quad_goes_to_clipper(loops: Any, quad: list[list[int]]) -> None:
    odd = np.array([quad], np.float32)
    [points] = quads.unclipped(odd, 1.5, loops)
    assert hull(points) == hull(clipper(odd[0], 1.5))


@LOOPS
def test_nothing_is_unclipped_to_nothing(loops: Any) -> None:
    none = np.zeros((0, 4, 2), np.float32)
    assert quads.unclipped(none, 1.5, loops) == []
    assert quads.ordered(none).shape == (0, 4, 2)
    rectangles, indices = quads.smallest([], 3)
    assert quads.corners_of(rectangles).shape == (0, 4, 2) and indices == []
    [point] = quads.unclipped(np.full((1, 4, 2), 7, np.float32), 1.5, loops)
    assert np.unique(point, axis=0).tolist() == [[7, 7]]


@pytest.mark.parametrize("start", range(4))
@pytest.mark.parametrize("step", [1, -1])
def test_corners_are_put_in_order(start: int, step: int) -> None:
    wanted = np.array([[2, 1], [40, 5], [39, 15], [1, 11]], np.float32)
    mixed = np.roll(wanted, start, axis=0)[::step]
    np.testing.assert_array_equal(quads.ordered(mixed[None])[0], wanted)


@LOOPS
@pytest.mark.parametrize("ratio", [0.4, 0.5, 0.6])
def test_an_outline_grows_to_the_rectangle_that_shrinks_to_it(ratio: float, loops: Any) -> None:
    distance = 12.0
    width, height = 300.0, 2 * distance * 300 / ((1 - ratio**2) * 300 - 2 * distance)  # shrunk by the distance, by rule
    assert width * height * (1 - ratio**2) / (2 * (width + height)) == pytest.approx(distance)
    inner = np.array([[distance, distance], [width - distance, distance]], np.float64)
    inner = np.concatenate([inner, (inner + np.array([0, height - 2 * distance]))[::-1]]) + 20
    outline = np.rint(inner * 16).astype(np.int32)[:, None]  # sixteen steps a pixel
    probability = np.ones((int(height * 16) + 640, int(width * 16) + 640), np.float32)
    quads_, scores = quads.exact(probability, [outline], ratio, 0, 0.5, loops)
    wanted = np.array([[0, 0], [width, 0], [width, height], [0, height]]) + 20
    np.testing.assert_allclose(quads_[0] / 16, wanted, atol=0.5)
    assert scores.tolist() == [1]
