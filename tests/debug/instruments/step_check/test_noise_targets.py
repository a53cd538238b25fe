"""Noise that is to be predicted: named where it is not the noise that the model is given."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ocrlab.debug.instruments.step_check import checker
from tests.debug.instruments.step_check.test_forward_pass import finding_of, rules

POINTS = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))


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
