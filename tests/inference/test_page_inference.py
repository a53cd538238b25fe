"""Pages through the network: any size, in order, bad ones, a broken network."""

import itertools
import threading

import numpy as np
import pytest
import torch

from ocrlab.config.schema import Evaluate, Post
from ocrlab.data.annotations import Problem
from ocrlab.errors import ShapeError
from ocrlab.inference import page_inference
from ocrlab.model.dbnet import Detector
from ocrlab.records import Prediction


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


@pytest.mark.parametrize(("ahead", "batch"), [(None, None), (1, 1), (2, 1), (3, 8), (16, 4), (100, 1)])
def test_what_comes_out_is_what_single_pages_give_in_their_order(detector, sheets, ahead, batch):
    results = list(detector.stream(sheets, ahead=ahead, batch=batch))
    assert [len(result.detections) for result in results] == [n % 5 for n in range(23)]
    assert results == [detector.detect(result) for result in sheets]


def test_no_more_pages_are_taken_than_asked_for(detector, sheets):
    taken = 0

    def pages():
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield sheets[1]

    results = detector.stream(pages(), ahead=5)
    for done in range(1, 40):
        next(results)
        assert taken < done + 5
    results.close()


def test_bad_pages_are_reported_in_their_place(detector, scans):
    (scans / "bad.png").write_bytes((scans / "p1.png").read_bytes()[:100])
    pages = [scans / "p1.png", scans / "bad.png", np.zeros((2, 2)), scans / "gone.png", str(scans / "p2.png")]
    results = list(detector.stream(pages))
    assert [type(result) for result in results] == [Prediction, Problem, Problem, Problem, Prediction]
    assert [results[1].file, results[2].file, results[3].file] == [scans / "bad.png", None, scans / "gone.png"]
    assert "damaged" in results[1].message and "RGB" in results[2].message and "No such file" in results[3].message
    assert (results[0].image, results[4].image) == ("p1.png", "p2.png")


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("ocrlab-pages")]


def test_an_early_end_leaves_no_thread(detector, sheets):
    stream = detector.stream(itertools.repeat(sheets[2]))
    next(stream)
    assert ours()
    stream.close()
    assert not ours()


def test_an_error_of_the_source_comes_through_and_leaves_no_thread(detector, sheets):
    def pages():
        yield sheets[0]
        raise OSError("the scanner is gone")

    with pytest.raises(OSError, match="scanner"):
        list(detector.stream(pages(), ahead=1))
    assert not ours()
