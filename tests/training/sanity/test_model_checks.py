"""Each check of the network: ok on the detector, failing on the defect that it is there for."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ocrlab.config import schema as configs
from ocrlab.losses.db_loss import LossParts, TargetMaps, db_loss
from ocrlab.model.dbnet import Detector, Maps
from ocrlab.training.sanity import model_checks, sanity_checks
from tests.training.sanity.checks import check_named, detector, words


class Swapped(Detector):
    def forward(self, images: Tensor, letterbox: bool = False) -> Maps:
        maps = super().forward(images, letterbox)
        return Maps(maps.threshold_logits, maps.probability_logits)


class Torn(Detector):
    def forward(self, images: Tensor, letterbox: bool = False) -> Maps:
        maps = super().forward(images, letterbox)
        return Maps(maps.probability_logits, maps.threshold_logits.detach())


class Wide(Detector):
    def forward(self, images: Tensor, letterbox: bool = False) -> Maps:
        return super().forward(images * float("inf") if self.training else images, letterbox)


def test_a_head_with_swapped_maps_is_detected(config, batch) -> None:
    """It learns as well as any: only prediction, which reads head.probability, would be wrong."""
    assert model_checks.inference(detector(config), batch).judgement == "ok"
    torch.manual_seed(0)
    swapped = Swapped(config.encoder, config.decoder, config.width)
    assert model_checks.inference(swapped, batch).judgement == "fail"
    assert swapped.training
    assert model_checks.inference(nn.Conv2d(3, 1, 1), batch).judgement == "skip"


def test_a_detached_branch_is_named(config) -> None:
    report = sanity_checks.check(
        config, model=partial(Torn, config.encoder, config.decoder, config.width), only=["contract"]
    )
    check = check_named(report.checks, "gradients")
    assert check.judgement == "fail" and "gradient.missing at head.threshold" in check.observed


def test_a_network_that_overflows_is_detected(config) -> None:
    report = sanity_checks.check(
        config, model=partial(Wide, config.encoder, config.decoder, config.width), only=["contract"]
    )
    assert report.contract is not None
    assert {"forward.finite", "loss.finite", "gradient.finite"} <= {f.rule for f in report.contract.findings}
    assert set(words(report.checks).values()) == {"fail"}


def test_an_optimizer_that_leaves_a_part_out_is_detected(config) -> None:
    def head_only(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.get_submodule("head").parameters(), lr=1e-3)

    report = sanity_checks.check(config, optimizer=head_only, only=["contract"])
    assert report.contract is not None
    [finding] = report.contract.findings
    assert finding.rule == "optimizer.missing" and "encoder (60 parameters)" in finding.where
    assert "decoder" in finding.where and "head" not in finding.where


def spoilt(spoil: Any) -> Any:
    """Return the DB loss with other arguments."""

    def loss(x: Tensor, y: Tensor, maps: TargetMaps, **named: Any) -> LossParts:
        return db_loss(*spoil(x, y, maps), **named)

    return loss


def scaled(factor: float) -> Any:
    def loss(*args: Any, **named: Any) -> LossParts:
        parts = db_loss(*args, **named)
        return parts._replace(total=parts.total * factor)

    return loss


@pytest.mark.slow
def test_a_single_page_is_learned_by_heart(config) -> None:
    events: list[dict[str, Any]] = []
    report = sanity_checks.check(configs.apply(config, {"width": 64}), only=["by_heart"], progress=events.append)
    assert words(report.checks) == {"one page overfitted": "ok"}, str(report)
    assert report.learned is not None and report.learned.hmean == 1.0
    assert len(report.learned.detections) >= int((~report.learned.ignored).sum()) >= 8
    assert events[-1]["kind"] == "end" and events[-2]["hmean@0.5"] == 1.0


@pytest.mark.slow
def test_a_loss_that_is_upside_down_learns_nothing_by_heart(config, samples, monkeypatch):
    monkeypatch.setattr(model_checks, "STEPS", 90)
    upside_down = spoilt(lambda x, y, m: (-x, y, m))
    learned = model_checks.learn(partial(detector, config), upside_down, samples[:2], config, lambda _event: None)
    assert model_checks.by_heart(learned, 1.0).judgement == "fail"


def test_learning_by_heart_ends_where_the_loss_does(config, samples) -> None:
    learned = model_checks.learn(
        partial(detector, config), scaled(float("nan")), samples[:2], config, lambda _event: None
    )
    assert len(learned.curve) == 1
    assert model_checks.by_heart(learned, 1.0).judgement == "fail"


def test_a_page_without_a_legible_box_is_skipped(config, samples, monkeypatch):
    monkeypatch.setattr(model_checks, "STEPS", 1)
    empty = [replace(samples[0], polygons=(), ignored=np.zeros(0, bool), texts=())]
    learned = model_checks.learn(partial(detector, config), db_loss, empty, config, lambda _event: None)
    assert model_checks.by_heart(learned, 1.0).judgement == "skip" and not learned.curve
