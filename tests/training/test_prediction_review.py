"""What is looked at after a training: the figures of validation, pages from all over a split, maps kept for a few."""

from pathlib import Path

import numpy as np
import pytest
import torch

from ocrlab.config.schema import Config, load
from ocrlab.data.formats import reader
from ocrlab.data.formats.reader import Sample
from ocrlab.evaluation.metrics import iou
from ocrlab.inference import page_inference
from ocrlab.model.dbnet import Detector
from ocrlab.training import prediction_review
from ocrlab.training.prediction_review import Review, ReviewedPage


@pytest.fixture
def config(root: Path) -> Config:
    small = {"width": 16, "crop": 128, "evaluate.long_side": 128, "post.threshold": 0.45, "post.box_threshold": 0.0}
    return load(overrides={"data": str(root / "data_samples"), **small})


@pytest.fixture
def samples(config: Config) -> list[Sample]:
    return reader.load(config.data, "val").samples


@pytest.fixture
def net(config: Config) -> Detector:
    torch.manual_seed(1)
    return Detector(config.encoder, config.decoder, config.width).eval()


def test_looking_gives_the_figures_of_validation(config: Config, samples: list[Sample], net: Detector) -> None:
    ticks: list[tuple[int, int]] = []
    review = prediction_review.review_pages(
        net, config, samples[:3], bf16=False, keep=2, tick=lambda *done: ticks.append(done)
    )
    assert ticks == [(1, 3), (2, 3), (3, 3)]
    assert [page.heat is not None for page in review.pages] == [True, False, True]
    for page in review.pages:
        image = reader.read_image(page.sample.image)
        ratio = config.targets.shrink_ratio
        detected = page_inference.detect(
            net, image, post=config.post, evaluate=config.evaluate, shrink_ratio=ratio, bf16=False
        )
        assert len(detected) == len(page.regions)
        for a, b in zip(detected.polygons, page.regions.polygons, strict=True):
            assert np.array_equal(a, b)
        assert iou.match(page.sample.polygons, page.sample.ignored, detected.polygons).pairs == page.match.pairs


def test_the_sweep_contains_the_settings_in_use(config: Config, samples: list[Sample], net: Detector) -> None:
    config.post.unclip = 1.7
    review = prediction_review.review_pages(net, config, samples[:2], bf16=False)
    detected = prediction_review.sweep(review, (0.3, 0.6), ("exact",))
    assert set(detected) == {(t, u) for t in (0.3, 0.45, 0.6) for u in ("exact", 1.7)}
    assert detected[0.45, 1.7] == iou.summary([page.match for page in review.pages])


def test_best_and_worst_share_no_page(samples: list[Sample], config: Config) -> None:
    def page(hits: int) -> ReviewedPage:
        sample = samples[0]
        match = iou.match(sample.polygons, sample.ignored, sample.polygons[:hits])
        return ReviewedPage(sample, None, match, np.eye(2, 3), None)  # type: ignore[arg-type]

    ranked = [page(hits) for hits in (3, 9, 1)]
    best, worst = prediction_review.best_and_worst(Review(config, ranked), 2)
    assert [p.match.matched(0.5) for p in best] == [9, 3]
    assert [p.match.matched(0.5) for p in worst] == [1]
    assert prediction_review.best_and_worst(Review(config, ranked[:1]), 2) == (ranked[:1], [])
