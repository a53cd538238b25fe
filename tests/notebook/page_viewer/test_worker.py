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
from ocrlab.notebook.page_viewer.messages import Opened, Source
from ocrlab.notebook.page_viewer.worker import Bench

FIRST = Source("val", 0)


@pytest.fixture(scope="module")
def bench(root: Path) -> tuple[Bench, Opened]:
    made = Bench()
    return made, made.open("receipts", "runs", str(root / "data_samples"), False)


def pixels(uri: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


def test_it_finds_what_prediction_finds(bench: tuple[Bench, Opened], root: Path) -> None:
    made, opened = bench
    assert opened.splits == ["train", "val"] and "shipped" in opened.origin
    judged = made.judge(FIRST, opened.post)
    seen = made.see(FIRST)
    expected = made.detector.detect(root / "data_samples" / "val" / "images" / f"{seen.name}.jpg")
    assert [polygon.tolist() for polygon in judged.polygons] == [one.polygon for one in expected.detections]
    assert judged.scores.tolist() == [one.score for one in expected.detections]
    assert len(judged.icdar.splitlines()) == len(judged.polygons)
    assert judged.icdar.splitlines()[0].count(",") == 7


def test_matches_and_figures_are_those_of_the_metric(bench: tuple[Bench, Opened]) -> None:
    made, opened = bench
    seen, judged = made.see(FIRST), made.judge(FIRST, opened.post)
    assert judged.figures is not None
    hmean, precision, recall = judged.figures
    cared = int((~seen.ignored).sum())
    assert precision == len(judged.pairs) / int(judged.counts.sum()) and recall == len(judged.pairs) / cared
    assert hmean == pytest.approx(2 * precision * recall / (precision + recall))
    assert all(judged.best[d] > 0.5 and judged.reached[t] > 0.5 for t, d in judged.pairs)
    assert seen.peaks.shape == (len(seen.truth),) and all(
        seen.peaks[t] > opened.post.threshold for t, _ in judged.pairs
    )


def test_settings_change_what_is_found_without_the_network(bench: tuple[Bench, Opened], monkeypatch) -> None:  # type: ignore[no-untyped-def]
    made, opened = bench
    usual = made.judge(FIRST, opened.post)
    monkeypatch.setattr(worker.page_inference, "probability", lambda *_, **__: pytest.fail("the network ran again"))
    strict = made.judge(FIRST, opened.post.model_copy(update={"box_threshold": 0.8}))
    wide = made.judge(FIRST, opened.post.model_copy(update={"unclip": 3.0}))
    none = made.judge(FIRST, opened.post.model_copy(update={"threshold": 1.0}))
    assert len(none.polygons) == 0 < len(strict.polygons) < len(usual.polygons)
    assert none.figures == (0.0, 0.0, 0.0) and none.reached.tolist() == [0.0] * len(none.reached)
    assert wide.best.mean() < usual.best.mean()


def test_the_mask_is_what_is_above_the_threshold(bench: tuple[Bench, Opened]) -> None:
    made, opened = bench
    judged = made.judge(FIRST, opened.post, True)
    kept = made.kept[FIRST]
    width, height = kept.inner
    assert (pixels(judged.mask) == 0).tolist() == (kept.heat[:height, :width] > opened.post.threshold).tolist()


def test_maps_have_the_size_of_the_page_and_small_ones_fit_a_report(bench: tuple[Bench, Opened]) -> None:
    made, _ = bench
    seen, small = made.see(FIRST), made.small(FIRST)
    assert pixels(seen.heat).shape[:2] == pixels(seen.image).shape[:2] == seen.inner[::-1]
    assert small.image.shape[:2] == small.heat.shape == small.threshold.shape
    assert max(small.heat.shape) == worker.THUMB
    assert 0 <= small.threshold.min() < small.threshold.max() <= 1
    assert pixels(made.threshold(FIRST)).shape[:2] == seen.inner[::-1]


def test_a_file_is_a_page_without_annotation(bench: tuple[Bench, Opened], root: Path) -> None:
    made, opened = bench
    page = next((root / "data_samples" / "val" / "images").glob("*.jpg"))
    seen = made.see(Source("", str(page)))
    judged = made.judge(Source("", str(page)), opened.post)
    assert seen.name == page.name and not seen.annotated and not seen.truth
    assert judged.figures is None and len(judged.polygons) > 10


def test_only_the_last_pages_are_remembered(bench: tuple[Bench, Opened], monkeypatch) -> None:  # type: ignore[no-untyped-def]
    made, _ = bench
    monkeypatch.setattr(worker, "KEPT", 2)
    for place in (1, 2, 3):
        made.see(Source("val", place))
    assert list(made.kept) == [Source("val", 2), Source("val", 3)]


def test_wrong_names_get_a_sentence(root: Path, tmp_path: Path, bench: tuple[Bench, Opened]) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint"):
        Bench().open(str(tmp_path / "none.ckpt"), "runs", str(root / "data_samples"), False)
    with pytest.raises(CheckpointError, match="no successful run"):
        Bench().open("newest", str(tmp_path), str(root / "data_samples"), False)
    with pytest.raises(DataError, match="nowhere"):
        bench[0].pages("nowhere")
