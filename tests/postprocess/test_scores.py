"""Masks and scores: the compiled loops and OpenCV read the same pixels."""

from __future__ import annotations

import importlib
import sys

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from ocrlab.postprocess import kernels, scores

Boxes = NDArray[np.float32]


@pytest.fixture(params=["compiled", "numpy"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Take one of the two paths."""
    monkeypatch.setattr(scores, "compiled", lambda: kernels if request.param == "compiled" else None)
    return str(request.param)


def rectangles(count: int, width: int, height: int, margin: float) -> Boxes:
    rng = np.random.default_rng(3)
    centre = rng.uniform(-margin, 1 + margin, (count, 2)) * (width, height)
    size = rng.uniform(0, 0.4, (count, 2)) * (width, height)
    turn = np.where(rng.random(count) < 0.5, 0, rng.uniform(0, 90, count))
    made = [cv2.boxPoints((c.tolist(), s.tolist(), float(t))) for c, s, t in zip(centre, size, turn, strict=True)]
    return np.array(made, np.float32)


def published(probability: NDArray[np.float32], box: Boxes) -> float:
    """Return the score of one box as the published method finds it: its corners cut to whole pixels of a window."""
    last = np.array(probability.shape[::-1]) - 1
    x0, y0 = np.clip(np.floor(box.min(axis=0)), 0, last).astype(int)
    x1, y1 = np.clip(np.ceil(box.max(axis=0)), 0, last).astype(int)
    mask = np.zeros((y1 - y0 + 1, x1 - x0 + 1), np.uint8)
    cv2.fillPoly(mask, [(box - np.float32((x0, y0))).astype(np.int32)], 1)
    return float(cv2.mean(probability[y0 : y1 + 1, x0 : x1 + 1], mask)[0])


@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_box_scores_are_the_published_ones(path: str, margin: float) -> None:
    probability = np.random.default_rng(0).random((90, 130), dtype=np.float32)
    boxes = rectangles(2000, 130, 90, margin)
    wanted = [published(probability, box) for box in boxes]
    np.testing.assert_allclose(scores.box_scores(probability, boxes), wanted, atol=1e-6)


def test_no_box_has_no_score(path: str) -> None:
    assert scores.box_scores(np.ones((4, 4), np.float32), np.zeros((0, 4, 2), np.float32)).shape == (0,)


def test_a_mask_is_what_lies_above_the_threshold_in_float32(path: str) -> None:
    probability = np.array([[0.3, 0.30001], [0, 1]], np.float32)
    assert scores.binarise(probability, 0.3).tolist() == [[0, 1], [0, 1]]


def test_a_polygon_off_the_map_scores_nothing() -> None:
    probability = np.ones((10, 10), np.float32)
    for place in ([[20, 20], [30, 20], [30, 30]], [[-30, -30], [-20, -30], [-20, -20]]):
        assert scores.polygon_score(probability, np.array(place, np.int32)) == 0


def test_without_numba_the_other_path_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    scores.compiled.cache_clear()
    monkeypatch.setitem(sys.modules, "ocrlab.postprocess.kernels", None)
    monkeypatch.delattr(importlib.import_module("ocrlab.postprocess"), "kernels", raising=False)
    assert scores.compiled() is None
    scores.compiled.cache_clear()
    monkeypatch.undo()
    assert scores.compiled() is kernels


def test_a_cache_that_cannot_be_written_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def njit(signature: str, cache: bool = False, nogil: bool = False) -> object:
        asked.append(cache)
        if cache:
            raise RuntimeError("no locator available")
        return lambda function: function

    monkeypatch.setattr(kernels, "njit", njit)
    assert kernels.compiled("void()")(len) is len
    assert asked == [True, False]
