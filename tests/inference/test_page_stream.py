"""Many pages: order, bounds, bad ones, an early end."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import numpy as np
import pytest

from ocrlab.data.annotations import Problem
from ocrlab.inference import page_stream
from ocrlab.records import Prediction


@pytest.mark.parametrize(("ahead", "batch"), [(None, None), (1, 1), (2, 1), (3, 8), (16, 4), (100, 1)])
def test_what_comes_out_is_what_single_pages_give_in_their_order(detector, sheets, ahead, batch):
    results = list(detector.stream(sheets, ahead=ahead, batch=batch))
    assert [len(result.detections) for result in results] == [n % 5 for n in range(23)]
    assert results == [detector.detect(result) for result in sheets]


def test_batches_are_no_larger_than_asked(detector, sheets, monkeypatch):
    together = []

    def probabilities(_model, canvases, **_more):
        together.append(len(canvases))
        return np.zeros(canvases.shape[:3], np.float32)

    monkeypatch.setattr(page_stream.page_inference, "probabilities", probabilities)
    assert len(list(detector.stream(sheets, ahead=23, batch=4))) == 23
    assert sum(together) == 23 and max(together) <= 4


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


def test_a_page_too_large_for_the_memory_is_a_bad_page(detector, monkeypatch):
    def read(*_args, **_more):
        raise MemoryError

    monkeypatch.setattr(page_stream.image_io, "read_image", read)
    (results,) = detector.stream(["page.png"])
    assert results == Problem(Path("page.png"), None, "is too large for the memory that is left.")
