"""The page viewer: what its child computes, the line to it, uploads, and how a page is drawn."""

import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ocrlab.errors import CheckpointError, DataError
from ocrlab.notebook.page_viewer import drawing as view
from ocrlab.notebook.page_viewer import worker
from ocrlab.notebook.page_viewer.messages import Detections, DetectorInfo, Source, ViewedPage
from ocrlab.notebook.page_viewer.worker import PageWorker, read_upload
from ocrlab.reports.html.page_images import Layer

FIRST = Source("val", 0)


@pytest.fixture(scope="module")
def bench(root: Path) -> tuple[PageWorker, DetectorInfo]:
    page_worker = PageWorker()
    return page_worker, page_worker.open("receipts", "runs", str(root / "data_samples"), False)


def test_it_finds_what_prediction_finds(bench: tuple[PageWorker, DetectorInfo], root: Path) -> None:
    page_worker, opened = bench
    assert opened.splits == ["train", "val"] and "included" in opened.origin
    judged = page_worker.judge(FIRST, opened.post)
    page = page_worker.see(FIRST)
    expected = page_worker.detector.detect(root / "data_samples" / "val" / "images" / f"{page.name}.jpg")
    assert [polygon.tolist() for polygon in judged.polygons] == [detection.polygon for detection in expected.detections]
    assert judged.scores.tolist() == [detection.score for detection in expected.detections]


def test_matches_and_figures_are_those_of_the_metric(bench: tuple[PageWorker, DetectorInfo]) -> None:
    page_worker, opened = bench
    page, judged = page_worker.see(FIRST), page_worker.judge(FIRST, opened.post)
    assert judged.figures is not None
    hmean, precision, recall = judged.figures
    cared = int((~page.ignored).sum())
    assert precision == len(judged.pairs) / int(judged.counts.sum()) and recall == len(judged.pairs) / cared
    assert hmean == pytest.approx(2 * precision * recall / (precision + recall))
    assert all(judged.best[d] > 0.5 and judged.reached[t] > 0.5 for t, d in judged.pairs)
    assert page.peaks.shape == (len(page.truth),) and all(
        page.peaks[t] > opened.post.threshold for t, _ in judged.pairs
    )


def test_settings_change_the_detections_without_the_network(bench, monkeypatch):  # type: ignore[no-untyped-def]
    page_worker, opened = bench
    default = page_worker.judge(FIRST, opened.post)
    monkeypatch.setattr(worker.page_inference, "probability", lambda *_, **__: pytest.fail("the network ran again"))
    strict = page_worker.judge(FIRST, opened.post.model_copy(update={"box_threshold": 0.8}))
    wide = page_worker.judge(FIRST, opened.post.model_copy(update={"unclip": 3.0}))
    none = page_worker.judge(FIRST, opened.post.model_copy(update={"threshold": 1.0}))
    assert len(none.polygons) == 0 < len(strict.polygons) < len(default.polygons)
    assert none.figures == (0.0, 0.0, 0.0) and none.reached.tolist() == [0.0] * len(none.reached)
    assert wide.best.mean() < default.best.mean()


def test_wrong_names_get_a_sentence(root: Path, tmp_path: Path, bench: tuple[PageWorker, DetectorInfo]) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint"):
        PageWorker().open(str(tmp_path / "none.ckpt"), "runs", str(root / "data_samples"), False)
    with pytest.raises(CheckpointError, match="no successful run"):
        PageWorker().open("newest", str(tmp_path), str(root / "data_samples"), False)
    with pytest.raises(DataError, match="nowhere"):
        bench[0].pages("nowhere")


GREY = np.tile(np.arange(64, dtype=np.uint8) * 4, (48, 1))


def exif(path: Path) -> None:
    tags = Image.Exif()
    tags[274] = 6
    Image.fromarray(GREY).save(path, "jpeg", exif=tags)


WRITTEN: dict[str, tuple[Callable[[Path], object], tuple[int, int]]] = {
    "without_an_ending": (lambda path: Image.fromarray(GREY).save(path, "png"), (48, 64)),
    "deep.png": (lambda path: Image.fromarray(GREY.astype(np.uint16) << 8).save(path), (48, 64)),
    "turned.jpg": (exif, (64, 48)),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_images_become_pixels(tmp_path: Path, name: str) -> None:
    write, shape = WRITTEN[name]
    write(tmp_path / name)
    image = read_upload(tmp_path / name)
    assert (image.shape, image.dtype) == ((*shape, 3), np.uint8)


def header(width: int, height: int) -> bytes:
    """Return the beginning of a PNG of any size."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    begun = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return begun + struct.pack(">I", 5000) + b"IDAT"


BAD = {
    "empty.jpg": (b"", "is empty"),
    "text.png": (b"not an image at all" * 50, "not an image"),
    "paper.pdf": (b"%PDF-1.7\n" + bytes(500), "is a PDF.*pdftoppm"),
    "renamed.jpg": (b"\n%PDF-1.4\n" + bytes(500), "is a PDF"),
    "huge.png": (header(60_000, 60_000) + bytes(100), "too large"),
    "cut.png": (header(64, 48) + bytes(20), "damaged|not an image"),
    "zeros.bmp": (bytes(5000), "not an image"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_image_gets_a_single_sentence_without_the_folder(tmp_path: Path, name: str) -> None:
    data, words = BAD[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=words) as caught:
        read_upload(tmp_path / name)
    assert name in str(caught.value)
    assert str(tmp_path) not in str(caught.value) and "\n" not in str(caught.value)


def box(x: float, y: float, width: float = 40, height: float = 10) -> np.ndarray:
    return np.array([[x, y], [x + width, y], [x + width, y + height], [x, y + height]], np.float32)


@pytest.fixture
def page() -> ViewedPage:
    """Return a page with a text that is found, one that is missed, and one that is ignored."""
    truth = (box(10, 10), box(10, 40), box(10, 70))
    flags = np.array([False, False, True])
    peaks = np.array([0.9, 0.3, 0.8], np.float32)
    return ViewedPage("page<b>", 200, 100, truth, flags, ("a", "<i>b", "###"), peaks, True, "data:,", "")


@pytest.fixture
def judged() -> Detections:
    polygons = [box(11, 10), box(120, 10), box(12, 71)]
    counts = np.array([True, True, False])
    best, reached = np.array([0.9, 0.0, 0.8]), np.array([0.9, 0.0, 0.8])
    scores = np.array([0.95, 0.7, 0.8], np.float32)
    return Detections(polygons, scores, [(0, 0)], counts, best, reached, (0.5, 0.5, 0.5))


def count(layers: list[Layer]) -> dict[str, int]:
    return {layer.name: len(layer.polygons) for layer in layers}


def test_every_polygon_is_what_it_is(page: ViewedPage, judged: Detections) -> None:
    counts = {"ignored": 1, "missed": 1, "wrong": 1, "on ignored text": 1, "found": 1}
    assert count(view.layers(page, judged)) == counts
    alone = replace(page, annotated=False, truth=(), ignored=np.zeros(0, bool))
    assert count(view.layers(alone, judged)) == {"text": 3}


def test_the_overlay_has_each_kind_once(page: ViewedPage, judged: Detections) -> None:
    layers = view.layers(page, judged)
    plain = view.overlay(page, layers)
    assert re.findall(r'<path class="([\w-]+)"', plain) == [layer.name.replace(" ", "-") for layer in layers]
    assert "M120 10L160 10L160 20L120 20Z" in plain


def test_nothing_that_a_stranger_wrote_becomes_markup(page: ViewedPage, judged: Detections) -> None:
    every = view.overlay(page, view.layers(page, judged)) + view.base(page, page.image, "page")
    every += view.listed(page, judged) + view.alert("<script>")
    assert "<b>" not in every and "<i>" not in every and "<script>" not in every
    assert "&lt;i&gt;b" in every


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("page.png", "page.png"), ("../../etc/passwd", "passwd"), ("C:\\scans\\a b.jpg", "a b.jpg"),
        ("a\0b\n.png", "ab.png"), ("..", "image"), ("", "image"), ("x" * 300 + ".png", "x" * 76 + ".png"),
        ("영수증.jpg", "영수증.jpg"),
    ],
)  # fmt: skip
def test_names_of_uploads_name_no_folder(name: str, plain: str) -> None:
    assert view.plain_name(name) == plain
