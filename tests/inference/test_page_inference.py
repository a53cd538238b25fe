"""Validation and prediction take the same path, and a broken network is reported."""

from __future__ import annotations

import copy
import weakref

import numpy as np
import pytest
import torch

from ocrlab.config.schema import Evaluate, Post
from ocrlab.errors import ShapeError
from ocrlab.inference import page_inference
from ocrlab.model.dbnet import Detector


@pytest.fixture(scope="module")
def model() -> Detector:
    torch.manual_seed(0)
    return Detector(width=32).eval()


@pytest.mark.parametrize("size", [(1, 1), (33, 31), (300, 100), (2000, 30)])
def test_any_page_size_works(model, size):
    image = np.zeros((size[1], size[0], 3), np.uint8)
    detections = page_inference.detect(
        model, image, post=Post(), evaluate=Evaluate(long_side=320), shrink_ratio=0.4, bf16=False
    )
    for polygon in detections.polygons:
        assert (polygon >= 0).all()
        assert (polygon <= size).all()


def test_a_map_with_nan_is_reported(model):
    broken = Detector(width=32).eval()
    with torch.no_grad():
        broken.head.probability[-1].bias.fill_(float("nan"))
    with pytest.raises(ShapeError, match=r"holds NaN.* 1 of 1 in head\.probability\.6\.bias"):
        page_inference.probability(broken, np.zeros((32, 32, 3), np.uint8), bf16=False)


def test_the_detector_is_fused_once_for_its_weights(model):
    mine, canvas = copy.deepcopy(model), np.full((32, 64, 3), 90, np.uint8)
    before = page_inference.cached_fused(mine, bf16=False)
    first = page_inference.probability(mine, canvas, bf16=False)
    assert page_inference.cached_fused(mine, bf16=False) is before
    with torch.no_grad():
        mine.head.probability[-1].bias.add_(3)
    assert page_inference.cached_fused(mine, bf16=False) is not before
    assert (page_inference.probability(mine, canvas, bf16=False) > first).all()
    assert page_inference.cached_fused(mine, bf16=True) is not page_inference.cached_fused(mine, bf16=False)
    form = weakref.ref(page_inference.cached_fused(mine, bf16=False))
    page_inference.free_fused(mine)
    assert form() is None, "what nobody uses before the next validation takes no memory"
    page_inference.free_fused(mine)


@pytest.mark.parametrize("bf16", [False, True])
def test_a_caller_s_autocast_changes_no_map(model, bf16):
    """Lightning validates inside of autocast, and the measurement at the end is made outside of it."""
    canvas = np.random.default_rng(1).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    plain = page_inference.probability(model, canvas, bf16=bf16)
    page_inference.free_fused(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert np.array_equal(page_inference.probability(model, canvas, bf16=bf16), plain)
    page_inference.free_fused(model)


def test_regions_come_back_in_page_pixels(model):
    heat = np.zeros((64, 96), np.float32)
    heat[20:30, 10:60] = 1
    half = np.array([[0.5, 0, -0.25], [0, 0.5, -0.25]])
    regions = page_inference.regions(heat, half, (192, 128), Post(unclip=1.0), 0.4)
    assert len(regions.polygons) == 1
    middle = regions.polygons[0].mean(axis=0)
    assert np.abs(middle - [69.5, 49.5]).max() < 2
