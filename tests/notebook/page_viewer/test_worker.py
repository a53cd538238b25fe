"""What the detector's child computes: the same polygons as prediction, their matches, maps, and what it remembers."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ocrlab.errors import CheckpointError, DataError
from ocrlab.notebook.page_viewer import worker
from ocrlab.notebook.page_viewer.messages import DetectorInfo, Source
from ocrlab.notebook.page_viewer.worker import PageWorker
from ocrlab.reports.html import page_images

FIRST = Source("val", 0)


@pytest.fixture(scope="module")
def bench(root: Path) -> tuple[PageWorker, DetectorInfo]:
    page_worker = PageWorker()
    return page_worker, page_worker.open("receipts", "runs", str(root / "data_samples"), False)


def pixels(uri: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


def test_it_finds_what_prediction_finds(bench: tuple[PageWorker, DetectorInfo], root: Path) -> None:
    page_worker, opened = bench
    assert opened.splits == ["train", "val"] and "included" in opened.origin
    judged = page_worker.judge(FIRST, opened.post)
    page = page_worker.see(FIRST)
    expected = page_worker.detector.detect(root / "data_samples" / "val" / "images" / f"{page.name}.jpg")
    assert [polygon.tolist() for polygon in judged.polygons] == [detection.polygon for detection in expected.detections]
    assert judged.scores.tolist() == [detection.score for detection in expected.detections]
    assert len(judged.icdar.splitlines()) == len(judged.polygons)
    assert judged.icdar.splitlines()[0].count(",") == 7


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


def test_settings_change_the_detections_without_the_network(
    bench: tuple[PageWorker, DetectorInfo], monkeypatch
) -> None:  # type: ignore[no-untyped-def]
    page_worker, opened = bench
    default = page_worker.judge(FIRST, opened.post)
    monkeypatch.setattr(worker.page_inference, "probability", lambda *_, **__: pytest.fail("the network ran again"))
    strict = page_worker.judge(FIRST, opened.post.model_copy(update={"box_threshold": 0.8}))
    wide = page_worker.judge(FIRST, opened.post.model_copy(update={"unclip": 3.0}))
    none = page_worker.judge(FIRST, opened.post.model_copy(update={"threshold": 1.0}))
    assert len(none.polygons) == 0 < len(strict.polygons) < len(default.polygons)
    assert none.figures == (0.0, 0.0, 0.0) and none.reached.tolist() == [0.0] * len(none.reached)
    assert wide.best.mean() < default.best.mean()


def test_the_mask_is_what_is_above_the_threshold(bench: tuple[PageWorker, DetectorInfo]) -> None:
    page_worker, opened = bench
    judged = page_worker.judge(FIRST, opened.post, True)
    page = page_worker.cache[FIRST]
    width, height = page.inner
    assert (pixels(judged.mask) == 0).tolist() == (page.heat[:height, :width] > opened.post.threshold).tolist()


def test_maps_have_the_size_of_the_page_and_small_ones_fit_a_report(bench: tuple[PageWorker, DetectorInfo]) -> None:
    page_worker, _ = bench
    page, small = page_worker.see(FIRST), page_worker.small(FIRST)
    assert pixels(page.heat).shape[:2] == pixels(page.image).shape[:2] == page.inner[::-1]
    assert len({pixels(uri).shape[:2] for uri in small}) == 1 and max(pixels(small[0]).shape) == page_images.LONGEST
    assert pixels(page_worker.threshold(FIRST)).shape[:2] == page.inner[::-1]


def test_only_the_last_pages_are_remembered(bench: tuple[PageWorker, DetectorInfo], monkeypatch) -> None:  # type: ignore[no-untyped-def]
    page_worker, _ = bench
    monkeypatch.setattr(worker, "CACHED_PAGES", 2)
    for place in (1, 2, 3):
        page_worker.see(Source("val", place))
    assert list(page_worker.cache) == [Source("val", 2), Source("val", 3)]


def test_wrong_names_get_a_sentence(root: Path, tmp_path: Path, bench: tuple[PageWorker, DetectorInfo]) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint"):
        PageWorker().open(str(tmp_path / "none.ckpt"), "runs", str(root / "data_samples"), False)
    with pytest.raises(CheckpointError, match="no successful run"):
        PageWorker().open("newest", str(tmp_path), str(root / "data_samples"), False)
    with pytest.raises(DataError, match="nowhere"):
        bench[0].pages("nowhere")
