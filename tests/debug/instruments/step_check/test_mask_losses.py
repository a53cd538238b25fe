"""Losses of one's own over masks: what is right is let alone, what trains something else is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ocrlab.debug.instruments.step_check import checker
from tests.debug.instruments.step_check.test_forward_pass import finding_of, rules

IMAGES = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
MASK = (IMAGES.mean(1, keepdim=True) > 0.5).float()
IGNORED = torch.zeros_like(MASK)
IGNORED[:, :, :4] = 1
Loss = Callable[[nn.Module, dict[str, Tensor]], Tensor]


def check(loss: Loss, last: nn.Module | None = None, **more: Tensor) -> checker.Report:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1), last or nn.Identity())
    return checker.check(model, {"image": IMAGES, "mask": MASK, "ignore": IGNORED} | more, loss)


def dice(p: Tensor, t: Tensor) -> Tensor:
    return 1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)


def iou(p: Tensor, t: Tensor) -> Tensor:
    both = (p * t).flatten(1).sum(1)
    return (1 - both / (p.flatten(1).sum(1) + t.flatten(1).sum(1) - both)).mean()


def pixels(net: nn.Module, b: dict[str, Tensor]) -> Tensor:
    return functional.binary_cross_entropy_with_logits(net(b["image"]), b["mask"], reduction="none")


@pytest.mark.parametrize("overlap", [dice, iou])
def test_an_overlap_of_logits(overlap: Callable[[Tensor, Tensor], Tensor]) -> None:
    finding = finding_of(check(lambda net, b: overlap(net(b["image"]), b["mask"])), "loss.overlap")
    assert "sigmoid" in finding.do and finding.judgement == "fail"
    assert "loss.overlap" in rules(check(lambda net, b: overlap(net(b["image"]), b["mask"]), nn.Upsample(size=16)))
    assert rules(check(lambda net, b: overlap(net(b["image"]).sigmoid(), b["mask"]))) == set()
    assert rules(check(lambda net, b: overlap(net(b["image"]), b["mask"]), nn.Sigmoid())) == set()


@pytest.mark.parametrize(
    "loss",
    [
        lambda net, b: (lambda z: (z.relu() - z * b["mask"] + (-z.abs()).exp().log1p()).mean())(net(b["image"])),
        lambda net, b: (net(b["image"]) * b["mask"]).sum().square() / b["mask"].sum(),
        lambda net, b: ((net(b["image"]) - b["image"][:, :1]).square() * b["mask"]).sum() / b["mask"].sum(),
        lambda net, b: (lambda z: (z * b["mask"]).sum().square() / (z.square().sum() + 1))(net(b["image"])),
    ],
    ids=["cross entropy by hand", "a mean", "a distance", "a norm"],
)
def test_logits_beside_a_mask_may_be_meant(loss: Loss) -> None:
    assert "loss.overlap" not in rules(check(loss))


def test_a_mask_of_bytes() -> None:
    finding = finding_of(
        check(lambda net, b: dice(net(b["image"]).sigmoid(), b["mask"]), mask=MASK * 255), "targets.bytes"
    )
    assert "255" in finding.do and finding.judgement == "warn"
    weighed = check(lambda net, b: (pixels(net, b) * b["weight"]).sum() / b["weight"].sum(), weight=MASK * 255)
    assert rules(weighed) == set()
    divided = check(lambda net, b: dice(net(b["image"]).sigmoid(), b["mask"] / 255), mask=MASK * 255)
    assert rules(divided) == set()


def test_a_mask_of_what_is_ignored_that_is_turned() -> None:
    finding = finding_of(check(lambda net, b: (pixels(net, b) * b["ignore"]).sum() / b["ignore"].sum()), "loss.ignored")
    assert "25% of the places" in finding.got and "1 - mask" in finding.do and finding.judgement == "warn"
    assert rules(check(lambda net, b: (pixels(net, b) * (1 - b["ignore"])).mean())) == set()
    assert rules(check(lambda net, b: pixels(net, b)[b["ignore"] == 0].mean())) == set()
    assert rules(check(lambda net, b: pixels(net, b).mean())) == set(), "it is not used: a loss of its own choice"
    report = check(lambda net, b: (pixels(net, b) * b["valid"]).mean(), valid=1 - IGNORED, avoid=1 - IGNORED)
    assert rules(report) == set()
