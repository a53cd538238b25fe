"""The compiled loops: the pixels of OpenCV, areas and lengths, with and without a cache."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from ocrlab.evaluation.postprocess import box_scores
from ocrlab.evaluation.postprocess import numba_kernels as kernels

Points = NDArray[np.int32]


def painted_mean(values: NDArray[np.float32], polygon: Points) -> float:
    mask = np.zeros(values.shape, np.uint8)
    cv2.fillPoly(mask, [polygon], 1)
    return float(cv2.mean(values, mask)[0])


def test_the_means_of_polygons_are_those_of_opencv() -> None:
    """Also of outlines that cross and touch themselves, and of lines and points."""
    rng = np.random.default_rng(1)
    values = rng.random((60, 80), dtype=np.float32)
    polygons = [rng.integers(0, (80, 60), (int(rng.integers(1, 14)), 2), np.int32) for _ in range(3000)]
    polygons += [rng.integers(20, 26, (int(rng.integers(3, 8)), 2), np.int32) for _ in range(1000)]
    scores = np.empty(len(polygons))
    kernels.polygon_means(values, *box_scores.flat(polygons), scores)
    np.testing.assert_allclose(scores, [painted_mean(values, polygon) for polygon in polygons], atol=1e-9)


@pytest.mark.parametrize("shift", [(-60, 0), (60, 0), (0, -60), (0, 60)])
def test_what_leaves_the_map_is_not_read(shift: tuple[int, int]) -> None:
    boxes = np.array([[[20, 20], [40, 20], [40, 40], [20, 40]]], np.int32) + np.array(shift, np.int32)
    values, scores = np.ones((60, 60), np.float32), np.zeros((2, 1))
    kernels.box_means(values, boxes, scores[0])
    kernels.polygon_means(values, boxes[0], np.array([0, 4]), scores[1])
    assert np.isnan(scores).all()
