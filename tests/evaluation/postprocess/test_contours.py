"""Outlines of masks: the same as from the whole mask, also of masks that have a million."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from ocrlab.evaluation.postprocess import contours

Mask = NDArray[np.uint8]


def noise(share: float, size: tuple[int, int] = (600, 900)) -> Mask:
    return (np.random.default_rng(2).random(size) < share).astype(np.uint8)


def blobs(size: tuple[int, int] = (600, 900)) -> Mask:
    """Return a mask of blobs with holes, some of them as high as the page."""
    rough = cv2.GaussianBlur(np.random.default_rng(3).random(size, np.float32), (0, 0), 2.0)
    mask = (rough > 0.5).astype(np.uint8)
    mask[:, ::150] = 1
    return mask


def checkerboard(size: tuple[int, int] = (1024, 900)) -> Mask:
    return (np.indices(size).sum(axis=0) % 2).astype(np.uint8)


@pytest.mark.parametrize("mask", [noise(0.7), noise(0.3), noise(0.1), blobs(), checkerboard()])
@pytest.mark.parametrize("count", [1, 100, 1000, 10**7])
def test_the_lowest_outlines_are_those_of_the_whole_mask(
    mask: Mask, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contours, "BUSY", 0)
    whole = cv2.findContours(mask, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)[0][:count]
    outlines = contours.last(mask, count)
    assert len(outlines) == len(whole)
    assert all(np.array_equal(a, b) for a, b in zip(outlines, whole, strict=True))


def test_the_largest_outlines_come_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = np.zeros((60, 60), np.uint8)
    for place, side in ((0, 3), (10, 9), (25, 5), (40, 7)):
        mask[place : place + side, place : place + side] = 1
    in_order = [len(cv2.boundingRect(o)) and cv2.boundingRect(o)[2] for o in contours.largest(mask, 9)]
    assert sorted(in_order) == [3, 5, 7, 9]
    wanted = [side for side in in_order if side in (9, 7)]
    for busy in (contours.BUSY, 0):
        monkeypatch.setattr(contours, "BUSY", busy)
        assert [cv2.boundingRect(o)[2] for o in contours.largest(mask, 2)] == wanted
