"""Targets that do not belong to their samples, and healthy ones that look alike."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional
from torch.nn.functional import cross_entropy

from ocrlab.debug.instruments.step_check import checker
from ocrlab.debug.instruments.step_check.target_checks import correlation
from tests.debug.instruments.step_check.helpers import finding_of, rules

INPUTS = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))
CLASSES = torch.randint(0, 4, (32,), generator=torch.Generator().manual_seed(1))
Batch = dict[str, Tensor]
POINTS = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
STATES = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
ACTIONS = torch.arange(16) % 3
RETURNS = torch.linspace(-1, 2, 16)


def narrow_findings(dtype: torch.dtype, classes: int) -> list[str]:
    torch.manual_seed(0)
    model = nn.Linear(8, classes)
    batch = (torch.randn(32, 8), torch.randint(0, min(classes, 100), (32,)).to(dtype))
    report = checker.check(model, batch, lambda m, b: functional.cross_entropy(m(b[0]), b[1].long()))
    return [finding.rule for finding in report.findings if finding.rule == "targets.narrow"]


@pytest.mark.parametrize(("dtype", "classes"), [(torch.uint8, 1000), (torch.int8, 200)])
def test_a_type_that_cannot_name_all_classes(dtype, classes):
    assert narrow_findings(dtype, classes) == ["targets.narrow"]


@pytest.mark.parametrize(
    ("dtype", "classes"),
    [(torch.int64, 1000), (torch.int16, 1000), (torch.uint8, 21), (torch.uint8, 260), (torch.int8, 100)],
)
def test_a_type_that_is_large_enough(dtype, classes):
    """260: bytes and four special words."""
    assert narrow_findings(dtype, classes) == []


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


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_noise_sampled_again_for_the_target(again: bool, own: bool) -> None:
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        noise = torch.randn_like(batch)
        level = torch.rand(len(batch), 1)
        noisy = level * batch + (1 - level) * noise
        wanted = torch.randn_like(batch) if again else noise
        return (model(noisy) - wanted).square().mean() if own else functional.mse_loss(model(noisy), wanted)

    report = checker.check(nn.Linear(4, 4), POINTS, loss)
    if again:
        assert "another than that which was added" in finding_of(report, "target.noise").got
    else:
        assert "target.noise" not in rules(report)


def test_noise_on_inputs_or_on_targets_is_right() -> None:
    model = nn.Linear(4, 4)
    noisy = checker.check(model, POINTS, lambda m, b: functional.mse_loss(m(b + torch.randn_like(b)), b))
    smooth = checker.check(model, POINTS, lambda m, b: functional.mse_loss(m(b), b + 0.1 * torch.randn_like(b)))
    assert "target.noise" not in rules(noisy) | rules(smooth)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("way", ["distribution", "gather", "index", "normed"])
def test_a_policy_gradient_with_the_wrong_sign(way: str, sign: int) -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        states, actions, returns = batch
        logits = model(states)
        if way == "normed":
            returns = (returns - returns.mean()) / returns.std()
        if way == "gather":
            chosen = logits.log_softmax(-1).gather(1, actions[:, None])[:, 0]
        elif way == "index":
            chosen = logits.log_softmax(-1)[torch.arange(16), actions]
        else:
            chosen = Categorical(logits=logits).log_prob(actions)
        return sign * (chosen * returns).mean()

    report = checker.check(nn.Linear(4, 3), (STATES, ACTIONS, RETURNS), loss)
    if sign > 0:
        finding = finding_of(report, "policy.sign")
        assert "batch.2" in finding.got and finding.judgement == "warn"
    else:
        assert "policy.sign" not in rules(report)


def test_weights_of_samples_in_a_likelihood_are_right() -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return -(model(batch[0]).log_softmax(-1).gather(1, batch[1][:, None])[:, 0] * batch[2]).sum()

    assert "policy.sign" not in rules(checker.check(nn.Linear(4, 3), (STATES, ACTIONS, RETURNS.abs()), loss))


def test_correlation() -> None:
    assert correlation(RETURNS.double(), 3 * RETURNS.double() + 1) == pytest.approx(1)
    assert correlation(RETURNS.double(), torch.ones(16).double()) == 0
