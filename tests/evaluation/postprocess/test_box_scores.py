"""Masks and scores: the pixels that the published method reads, and values that are not probabilities."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from ocrlab.errors import ShapeError
from ocrlab.evaluation.postprocess import box_scores

Boxes = NDArray[np.float32]


def rectangles(count: int, width: int, height: int, margin: float) -> Boxes:
    rng = np.random.default_rng(3)
    centre = rng.uniform(-margin, 1 + margin, (count, 2)) * (width, height)
    size = rng.uniform(0, 0.4, (count, 2)) * (width, height)
    turn = np.where(rng.random(count) < 0.5, 0, rng.uniform(0, 90, count))
    quads = [cv2.boxPoints((c.tolist(), s.tolist(), float(t))) for c, s, t in zip(centre, size, turn, strict=True)]
    return np.array(quads, np.float32)


def published(probability: NDArray[np.float32], box: Boxes) -> float:
    """Return the score of one box as the published method finds it: its corners cut to whole pixels of a window."""
    last = np.array(probability.shape[::-1]) - 1
    x0, y0 = np.clip(np.floor(box.min(axis=0)), 0, last).astype(int)
    x1, y1 = np.clip(np.ceil(box.max(axis=0)), 0, last).astype(int)
    mask = np.zeros((y1 - y0 + 1, x1 - x0 + 1), np.uint8)
    cv2.fillPoly(mask, [(box - np.array((x0, y0), np.float32)).astype(np.int32)], 1)
    return float(cv2.mean(probability[y0 : y1 + 1, x0 : x1 + 1], mask)[0])


@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_box_scores_are_the_published_ones(margin: float) -> None:
    probability = np.random.default_rng(0).random((90, 130), dtype=np.float32)
    boxes = rectangles(2000, 130, 90, margin)
    wanted = [published(probability, box) for box in boxes]
    np.testing.assert_allclose(box_scores.HeatMap(probability).box_scores(boxes), wanted, atol=1e-6)


def test_a_polygon_score_is_the_mean_of_its_pixels_and_its_border() -> None:
    probability = np.arange(100, dtype=np.float32).reshape(10, 10) / np.float32(100)
    points = np.array([[2, 3], [5, 3], [5, 6], [2, 6]], np.int32)
    score, line = box_scores.HeatMap(probability).polygon_scores([points, points[:2]])
    assert score == pytest.approx(probability[3:7, 2:6].mean()) and line == pytest.approx(probability[3, 2:6].mean())


def test_a_mask_ends_where_the_text_does() -> None:
    probability = np.zeros((300, 400), np.float32)
    assert box_scores.HeatMap(probability).binarise(0.3)[0].size == 0
    probability[20:31, 100] = probability[25, 90:250] = 1
    mask, first = box_scores.HeatMap(probability).binarise(0.3)
    assert mask.shape == (11, 160) and first == (90, 20) and mask.sum() == 170


@pytest.mark.parametrize(
    "value", [np.nan, -np.nan, np.inf, -np.inf, -1e-30, np.nextafter(np.float32(1), np.float32(2))]
)
def test_a_single_value_that_is_not_finite_is_detected(value: float) -> None:
    probability = np.zeros((30, 40), np.float32)
    probability[29, 39] = value
    with pytest.raises(ShapeError, match="Given: .*1 (NaN|below|above).*Needed: float32 in"):
        box_scores.HeatMap(probability).binarise(0.5)
