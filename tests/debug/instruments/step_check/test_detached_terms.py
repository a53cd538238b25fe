"""Parts of a loss without a gradient, beside others that have one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ocrlab.debug.instruments.step_check import checker

BATCH = (
    torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(1)),
    (torch.rand(8, 1, 16, 16, generator=torch.Generator().manual_seed(2)) > 0.7).float(),
)


def dice(p: Tensor, y: Tensor) -> Tensor:
    return 1 - (2 * (p * y).sum() + 1) / (p.sum() + y.sum() + 1)


def bce(p: Tensor, y: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(p, y)


def added_in_place(p: Tensor, y: Tensor) -> Tensor:
    total = bce(p, y)
    total += dice((p > 0).float(), y)
    return total


def mined(p: Tensor, y: Tensor) -> Tensor:
    each = functional.binary_cross_entropy_with_logits(p, y, reduction="none")
    hard = (p.sigmoid() > 0.5).float() != y
    assert 0 <= float((~hard).float().mean()) <= 1
    return (each * hard).sum() / hard.sum().clamp(min=1) + each.mean()


CUT = {
    "weighted": lambda p, y: bce(p, y) + 0.5 * dice((p.sigmoid() > 0.5).float(), y),
    "in place": added_in_place,
    "stacked": lambda p, y: torch.stack([bce(p, y), dice((p > 0).float(), y)]).mean(),
    "squared": lambda p, y: bce(p, y) + functional.mse_loss((p > 0).float(), y),
    "whole numbers": lambda p, y: bce(p, y) - p.sigmoid().mul(10).long().float().mean(),
}
CUT["rounded"] = lambda p, y: bce(p, y) + dice(p.sigmoid().round(), y)


def straight_through(p: Tensor, y: Tensor) -> Tensor:
    soft = p.sigmoid()
    return bce(p, y) + dice(soft + (soft.round() - soft).detach(), y)


WHOLE = {
    "straight through": straight_through,
    "soft": lambda p, y: bce(p, y) + 0.5 * dice(p.sigmoid(), y),
    "mined": mined,
    "detached": lambda p, y: bce(p, y) + dice(p.sigmoid(), y).detach(),
    "not in the loss": lambda p, y: (bce(p, y), bce(p, y) + dice((p > 0).float(), y))[0],
    "of the targets": lambda p, y: bce(p, y) + (y > 0.5).float().mean(),
}


def rules(loss: Callable[[Tensor, Tensor], Tensor]) -> list[str]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
    optimizer = torch.optim.Adam(model.parameters())
    report = checker.check(model, BATCH, lambda net, batch: loss(net(batch[0]), batch[1]), optimizer=optimizer)
    return [finding.rule for finding in report.findings]


@pytest.mark.parametrize("name", CUT)
def test_a_part_without_a_gradient_is_named(name: str) -> None:
    assert rules(CUT[name]) == ["loss.part"]


@pytest.mark.parametrize("name", WHOLE)
def test_what_has_its_gradient_or_is_meant_is_let_alone(name: str) -> None:
    assert rules(WHOLE[name]) == []
