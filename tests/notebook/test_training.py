"""The sections of the training notebook, over the sample pages and a detector that has learned nothing."""

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from ocrlab.config.schema import Config, dump, load
from ocrlab.evaluation.metrics import iou
from ocrlab.inference import checkpoint
from ocrlab.model.dbnet import Detector
from ocrlab.notebook import training
from ocrlab.reports import progress_view
from ocrlab.training import prediction_review


@pytest.fixture
def config(root: Path) -> Config:
    data = {"data": str(root / "data_samples"), "crop": 128, "evaluate.long_side": 128, "trainer.precision": "fp32"}
    return load(overrides=data | {"trainer.accelerator": "cpu", "width": 16})


@pytest.fixture
def run(config: Config, tmp_path: Path) -> SimpleNamespace:
    """Return a finished run whose detector was never trained."""
    (tmp_path / "config.yaml").write_text(dump(config))
    path = tmp_path / "best.ckpt"
    checkpoint.save_detector(Detector(config.encoder, config.decoder, config.width), path, config, 0, {})
    (tmp_path / "metrics.csv").write_text("step,loss,hmean@0.5\n1,2.5,\n1,,0.5\n", encoding="utf-8")
    return SimpleNamespace(folder=tmp_path, checkpoint=path, metrics={**iou.summary([]), "pages": 16.0})


@pytest.fixture
def progress() -> progress_view.Live:
    return progress_view.Live("Looking", lambda _view: None)


def test_pages_and_their_boxes(config: Config) -> None:
    view = training.pages(config, count=2)
    assert view.html.count("<svg") == 2
    assert re.fullmatch(r"48 pages in split train, \d+ boxes a page on average", view.text)
    assert len(view.html) < 250_000


def test_a_crop_and_its_targets(config: Config) -> None:
    view = training.targets(config)
    assert view.html.count("<svg") == 3
    assert re.match(r"Text shrunk by 0\.7 covers \d+\.\d % of this crop of 128 px", view.text)
    assert training.targets(config) == view  # seeded


@pytest.mark.parametrize(("encoder", "decoder"), [("resnet18", "fpn"), ("mobilenet_v3_large", "unet")])
def test_the_model_table_counts_every_parameter_once(config: Config, encoder: str, decoder: str) -> None:
    config = load(overrides={"encoder": encoder, "decoder": decoder, "crop": 128})
    view = training.model(config)
    total = sum(p.numel() for p in Detector(encoder, decoder, config.width).parameters())
    assert f"{total:,}".replace(",", "\u202f") in view.html
    assert f"{encoder} + {decoder}" in view.text


def test_best_and_worst_pages_and_the_sweep(run: SimpleNamespace, progress: progress_view.Live) -> None:
    review = training.look(run, progress)
    assert "16 of 16" in progress.view().text
    assert len(review.pages) == 16
    worst, best = training.extremes(review, count=1)
    assert worst.text.startswith("Worst pages: hmean@0.5 ")
    assert best.text.startswith("Best pages: hmean@0.5 ")
    few = prediction_review.Review(review.config, review.pages[:2])
    assert "exact" in training.sweep(few, progress).html


def test_a_page_that_training_left_out_does_not_end_the_notebook(run, config, root, tmp_path, progress):
    """Hours of training are done, and its validation has reported the damaged page and continued."""
    data = tmp_path / "data"
    shutil.copytree(root / "data_samples" / "val", data / "val")
    first, *others = sorted((data / "val" / "images").iterdir())
    for image in others[2:]:
        image.unlink()
        next((data / "val" / "gts").glob(f"*{image.stem}.*")).unlink()
    first.write_bytes(first.read_bytes()[:2000])
    (run.folder / "config.yaml").write_text(dump(config.model_copy(update={"data": str(data)})))
    assert [page.sample.name for page in training.look(run, progress).pages] == [page.stem for page in others[:2]]
