"""Samples and targets in one order are right, in two they are named."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ocrlab.debug.instruments.step_check import checker
from tests.debug.instruments.step_check.test_forward_pass import finding_of, rules

INPUTS = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))
CLASSES = torch.randint(0, 4, (32,), generator=torch.Generator().manual_seed(1))
Batch = dict[str, Tensor]


def targets_only(net: nn.Module, b: Batch) -> Tensor:
    return cross_entropy(net(b["x"]), b["y"][torch.randperm(32)])


def inputs_only(net: nn.Module, b: Batch) -> Tensor:
    return cross_entropy(net(b["x"][torch.randperm(32)]), b["y"])


def both(net: nn.Module, b: Batch) -> Tensor:
    order = torch.randperm(32)
    return cross_entropy(net(b["x"][order]), b["y"][order])


def answers(net: nn.Module, b: Batch) -> Tensor:
    order = torch.randperm(32)
    return cross_entropy(net(b["x"])[order], b["y"][order])


def mixed(net: nn.Module, b: Batch) -> Tensor:
    order = torch.randperm(32)
    logits = net(0.7 * b["x"] + 0.3 * b["x"][order])
    return 0.7 * cross_entropy(logits, b["y"]) + 0.3 * cross_entropy(logits, b["y"][order])


def changed(net: nn.Module, b: Batch) -> Tensor:
    return cross_entropy(net(b["x"] + 0.1 * torch.randn_like(b["x"])), b["y"])


def check(loss: checker.Loss) -> checker.Report:
    torch.manual_seed(0)
    return checker.check(nn.Linear(6, 4), {"x": INPUTS, "y": CLASSES}, loss)


def test_inputs_or_targets_in_another_order() -> None:
    finding = finding_of(check(targets_only), "targets.order")
    assert "the targets are batch.y in another order" in finding.got and finding.judgement == "warn"
    assert "the model's input is batch.x in another order" in finding_of(check(inputs_only), "targets.order").got


@pytest.mark.parametrize("loss", [both, answers, mixed, changed])
def test_both_in_the_same_order(loss: checker.Loss) -> None:
    assert "targets.order" not in rules(check(loss))
