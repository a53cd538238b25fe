"""The compiled loops draw what pyclipper and OpenCV draw, and leave over what they cannot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from ocrlab import geometry
from ocrlab.data import target_maps_numba as kernels

SIZE = (160, 200)


def draw(polygons: list[NDArray[Any]], ignored: list[bool], smallest: float = 0.0) -> tuple[Any, ...]:
    """Return the four maps, the flags, and which polygons are left over."""
    maps = [np.full(SIZE, value, np.float32) for value in (0, 1, 0.3, 0)]
    flags, left = np.array(ignored, bool), np.zeros(len(polygons), bool)
    starts = np.cumsum([0, *map(len, polygons)])
    points = np.concatenate(polygons).astype(np.float64)
    kernels.draw(points, starts, flags, 0.4, 0.3, 0.7, smallest, 1e6, *maps, left)
    return (*maps, flags, left)


def boxes(rng: np.random.Generator, number: int) -> Iterator[NDArray[np.float64]]:
    """Yield boxes of text sizes in random places and turns, a third of them upright, some a little out of shape."""
    for index in range(number):
        h = rng.uniform(1, 30) * rng.choice([0.5, 1])
        w = h * rng.uniform(0.5, 6)
        turn = (0, rng.uniform(-0.1, 0.1), rng.uniform(-4, 4))[index % 3]
        corners = np.array([[-w, -h], [w, -h], [w, h], [-w, h]]) / 2
        if index % 5 == 0:
            corners += rng.normal(0, 0.04 * h, (4, 2))
        c, s = np.cos(turn), np.sin(turn)
        quad = corners @ np.array([[c, s], [-s, c]]) + rng.uniform((30, 30), (170, 130))
        yield (quad.round() if index % 4 == 0 else quad)[:: rng.choice([-1, 1])]


def painted(polygon: geometry.Polygon) -> NDArray[np.float32]:
    """Return a map with a filled polygon, drawn by OpenCV."""
    canvas = np.zeros(SIZE, np.float32)
    cv2.fillPoly(canvas, [polygon.astype(np.int32)], 1)
    return canvas


def test_boxes_are_shrunk_grown_and_filled_as_by_clipper_and_opencv() -> None:
    count = 0
    for quad in boxes(np.random.default_rng(0), 3000):
        text, mask, _, border_mask, flags, left = draw([quad], [False])
        if left[0]:
            assert not text.any() and mask.all() and not border_mask.any() and not flags[0]
            continue
        count += 1
        distance = geometry.shrink_distance(quad, 0.4)
        (inner,), (outer,) = geometry.offset(quad, -distance), geometry.offset(quad, distance)
        np.testing.assert_array_equal(text, painted(inner), err_msg=str(quad.tolist()))
        np.testing.assert_array_equal(border_mask, painted(outer), err_msg=str(quad.tolist()))
    assert count > 1500  # of 3000: half of them are tiny


@pytest.mark.parametrize(
    "polygon",
    [
        [[10, 10], [60, 10], [60, 40]],
        [[10, 10], [60, 10], [70, 25], [60, 40], [10, 40]],
        [[-3, 10], [60, 10], [60, 40], [-3, 40]],
        [[150, 10], [196, 10], [196, 40], [150, 40]],  # inside, but its grown outline is not
        [[10, 10], [60, 40], [60, 10], [10, 40]],
        [[10, 10], [60, 10], [95, 40], [10, 40]],
        [[10, 10], [60, 10], [60, np.nan], [10, 40]],
        [[np.nan, 10], [60, 10], [60, 40], [10, 40]],
        [[10, 10], [60, 10], [60, np.inf], [10, 40]],
        [[10, 10], [1e300, 10], [1e300, 40], [10, 40]],
        [[10, 10]] * 4,
        [[10, 10], [60, 10], [60, 10], [10, 10]],
    ],
)
def test_what_is_no_box_inside_the_page_is_left_over_untouched(polygon: list[list[float]]) -> None:
    good = np.array([[100, 100], [150, 100], [150, 120], [100, 120]], float)
    text, mask, threshold, border_mask, flags, left = draw([np.array(polygon, float), good], [False, False])
    alone = draw([good], [False])
    assert left.tolist() == [True, False] and not flags.any()
    for first, other in zip((text, mask, threshold, border_mask), alone[:4], strict=True):
        np.testing.assert_array_equal(first, other)
