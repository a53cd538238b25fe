"""The sign of a policy gradient: told by what becomes more likely, not by the sign of the loss."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from ocrlab.debug.instruments.step_check import checker
from ocrlab.debug.instruments.step_check.policy_sign import correlation
from tests.debug.instruments.step_check.test_forward_pass import finding_of, rules

STATES = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
ACTIONS = torch.arange(16) % 3
RETURNS = torch.linspace(-1, 2, 16)


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
