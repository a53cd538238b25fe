"""Rectangles: the offset is Clipper's, corners run clockwise, and the inverse of the shrink is exact on paper."""

from __future__ import annotations

import cv2
import numpy as np
import pyclipper
import pytest
import shapely
from numpy.typing import ArrayLike, NDArray

from ocrlab.evaluation.postprocess import box_scores, quads


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


@pytest.mark.parametrize("ratio", [0.5, 1.5, 3.0])
def test_unclipped_boxes_span_what_clipper_spans(ratio: float) -> None:
    ordered = quads.ordered(boxes(400))
    for quad, points in zip(ordered, quads.unclipped(ordered, ratio), strict=True):
        wanted = clipper(quad, ratio)
        assert not wanted or hull(points) == hull(wanted), quad


@pytest.mark.parametrize("ratio", [0.4, 0.5, 0.6])
def test_an_outline_grows_to_the_rectangle_that_shrinks_to_it(ratio: float) -> None:
    distance = 12.0
    width, height = 300.0, 2 * distance * 300 / ((1 - ratio**2) * 300 - 2 * distance)  # shrunk by the distance, by rule
    assert width * height * (1 - ratio**2) / (2 * (width + height)) == pytest.approx(distance)
    inner = np.array([[distance, distance], [width - distance, distance]], np.float64)
    inner = np.concatenate([inner, (inner + np.array([0, height - 2 * distance]))[::-1]]) + 20
    outline = np.rint(inner * 16).astype(np.int32)[:, None]  # sixteen steps a pixel
    probability = np.ones((int(height * 16) + 640, int(width * 16) + 640), np.float32)
    quads_, scores = quads.exact(box_scores.HeatMap(probability), [outline], ratio, 0, 0.5)
    wanted = np.array([[0, 0], [width, 0], [width, height], [0, height]]) + 20
    np.testing.assert_allclose(quads_[0] / 16, wanted, atol=0.5)
    assert scores.tolist() == [1]
