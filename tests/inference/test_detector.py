"""Which detector is used, and what it takes."""

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from ocrlab.data.annotations import Problem
from ocrlab.errors import CheckpointError, ConfigError, DataError, ShapeError
from ocrlab.inference import Detector, page_inference, pretrained
from ocrlab.inference.detector import newest_checkpoint


@pytest.fixture
def ships(tmp_path, tiny, monkeypatch) -> Path:
    """Let the package ship the tiny detector, and work in an empty folder."""
    folder = tmp_path / "pretrained"
    folder.mkdir()
    shutil.copy(tiny, folder / "receipts.ckpt")
    (folder / "receipts.ckpt.sha256").write_text(f"{pretrained.sha256(tiny)}  receipts.ckpt\n")
    monkeypatch.setattr(pretrained, "FOLDER", folder)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    return folder / "receipts.ckpt"


def finished(runs: Path, name: str, checkpoint: Path | None, status: str = "success") -> Path:
    folder = runs / name
    (folder / "checkpoints").mkdir(parents=True)
    sentinel = {"schema": 1, "status": status, "started": f"2026-01-0{name[0]}T00:00:00.000000+00:00"}
    (folder / f".{status.upper()}").write_text(json.dumps(sentinel))
    if checkpoint:
        shutil.copy(checkpoint, folder / "checkpoints" / "best-tiny.ckpt")
    return folder / "checkpoints" / "best-tiny.ckpt"


def test_the_shipped_detector_is_there_where_nothing_was_trained(ships):
    detector = Detector.load()
    assert detector.checkpoint == ships
    assert detector.origin == "the included detector receipts, since runs has no successful run"
    assert {weight.dtype for weight in detector.model.parameters()} == {torch.float32}


def test_the_newest_successful_run_comes_first(ships, tiny):
    finished(Path("runs"), "1-old", tiny)
    best = finished(Path("runs"), "2-new", tiny)
    finished(Path("runs"), "3-bad", tiny, status="failure")
    finished(Path("runs"), "4-another-program", None)
    assert newest_checkpoint(Path("runs")) == best
    detector = Detector.load()
    assert detector.checkpoint == best
    assert detector.origin.startswith(
        f"{best}, the newest successful run, which reached only hmean@0.5 0.25 (`receipts`"
    )


def test_the_shipped_detector_can_be_asked_for_by_name(ships, tiny):
    finished(Path("runs"), "1-old", tiny)
    Path("receipts").mkdir()
    assert Detector.load("receipts").checkpoint == ships, "a folder of that name may hold samples"
    Path("receipts").rmdir()
    shutil.copy(tiny, "receipts")
    assert Detector.load("receipts").checkpoint == Path("receipts"), "a file of that name is meant"
    assert Detector.load(tiny).origin == str(tiny)


def test_damage_is_named(ships):
    data = bytearray(ships.read_bytes())
    data[len(data) // 2] ^= 1
    ships.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"damaged.*SHA-256"):
        Detector.load()
    ships.unlink()
    with pytest.raises(CheckpointError, match=r"missing.*--checkpoint"):
        Detector.load()


def test_what_is_shipped_is_whole():
    path = pretrained.find()
    assert path.stat().st_size <= 10_000_000
    assert pretrained.sha256(path) in path.with_suffix(".md").read_text()
    assert Detector.load("receipts").detect(np.full((64, 64, 3), 255, np.uint8)).detections == []


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3)), np.zeros((4, 4, 4), np.uint8),
        np.zeros((0, 4, 3), np.uint8), [[[0, 0, 0]]],
    ],
)  # fmt: skip
def test_an_image_of_another_kind_is_refused(detector, image):
    with pytest.raises(ShapeError, match="RGB"):
        detector.detect(image)


def test_arrays_and_files(detector, scans):
    detections = detector.detect(scans / "p2.png")
    expected = ("p2.png", 120, 160, 2)
    assert (detections.image, detections.width, detections.height, len(detections.detections)) == expected
    with pytest.raises(DataError, match=r"p9\.png"):
        detector.detect(str(scans / "p9.png"))


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory."), RuntimeError("Invalid buffer")])
def test_a_page_too_large_for_the_memory_costs_itself_only(detector, sheets, monkeypatch, error):
    compute = page_inference.probabilities

    def probabilities(model, canvases, **more):
        if len(canvases) > 1 or canvases.shape[2] > 180:
            raise error
        return compute(model, canvases, **more)

    monkeypatch.setattr(page_inference, "probabilities", probabilities)
    stream = detector.stream(sheets[:9], batch=4)
    if "buffer" in str(error):  # of the device, not of a page
        with pytest.raises(RuntimeError, match="buffer"):
            list(stream)
        return
    large = Problem(None, None, "is too large for the memory that is left.")
    pages = [page if isinstance(page, Problem) else len(page.detections) for page in stream]
    assert pages == [0, 1, large, 3, 4, large, 1, 2, large]


@pytest.mark.parametrize("size", [(1, 1), (300, 20_000), (3_000_000, 1), (1, 40_000), (31, 33)])
def test_odd_sizes_are_answered_at_once(detector, size):
    start = time.monotonic()
    detections = detector.detect(np.full((*size[::-1], 3), 255, np.uint8))
    assert (detections.width, detections.height, detections.detections) == (*size, [])
    assert time.monotonic() - start < 20, "a second on a quiet machine"


@pytest.mark.parametrize("page", ["page.jpg", Path("page.jpg"), np.zeros((8, 8, 3), np.uint8), np.zeros((8, 8))])
def test_a_single_page_is_no_list_of_pages(ships, page):
    """The letters of its name would be files, and its rows images: thousands of problems in place of one."""
    with pytest.raises(ShapeError, match=r"one page.*a list of pages.*use detect"):
        Detector.load().stream(page)


@pytest.mark.parametrize("device", ["gpu", "cuda:99"])
def test_a_device_that_is_not_there_is_a_single_clear_error(ships, device):
    with pytest.raises(ConfigError, match=rf"onto this device.*device='{device}'.*cpu, or cuda"):
        Detector.load(device=device)
