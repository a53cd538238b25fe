"""A model that gives every sample the same output to the end is reported; one that only begins like that is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ocrlab.debug.recorder.training_health.model_checks import OutputCollapseCheck
from tests.debug.recorder.training_health.test_monitor import net, report


def test_a_norm_over_a_single_value_makes_all_answers_equal(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 1), nn.LayerNorm(1), nn.Linear(1, 4))
    text = report(tmp_path, model=model)
    assert "the model gave 16 different samples the same answer, in the last" in text


def test_a_last_layer_that_begins_at_zero_is_right(tmp_path: Path) -> None:
    model = net()
    nn.init.zeros_(model[3].weight)
    assert report(tmp_path, model=model) == ""


def test_samples_that_are_all_equal(tmp_path: Path) -> None:
    loader = DataLoader(TensorDataset(torch.zeros(128, 8), torch.arange(128) % 4), 16)
    text = report(tmp_path, model=nn.Linear(8, 4), loader=loader)
    assert "all 16 samples that the model got were equal" in text


def test_few_samples_and_half_precision_are_not_looked_at() -> None:
    check = OutputCollapseCheck()
    check.note(torch.zeros(2, 8), torch.zeros(2, 2))
    check.note(torch.zeros(16, 8), torch.zeros(16, 2, dtype=torch.bfloat16))
    assert check.looks == 0
    for _ in range(4):
        check.note(torch.zeros(16, 8), torch.zeros(16, 2))
    assert check.blind == check.equal == 4 and check.sentence().startswith("all 16 samples")


def test_equal_answers_only_in_between_are_right() -> None:
    model = nn.Linear(8, 2)
    check = OutputCollapseCheck()
    for inputs in (torch.zeros(16, 8), torch.randn(16, 8)) * 6:
        check.note(inputs, model(inputs))
    assert check.looks == 12 and check.blind == 0 and check.sentence() == ""


def test_collapsed_embeddings() -> None:
    torch.manual_seed(0)
    for width, factor, named in ((4, 0.1, True), (4, 0.9, False), (1, 0.1, False)):
        model = nn.Linear(8, width)
        check = OutputCollapseCheck()
        for _ in range(8):
            check.note(inputs := torch.randn(16, 8), model(inputs))
            with torch.no_grad():
                model.weight *= factor
        assert ("have become one" in check.sentence()) == named


def test_a_bias_that_two_branches_cancel_is_not_called_dead(tmp_path: Path) -> None:
    def siamese(model: nn.Module, optimizer: Any, batch: Any, rec: Any) -> None:
        optimizer.zero_grad()
        apart = (model(batch[0]) - model(batch[0].flip(0))).square().mean(1)
        same = batch[1] == batch[1].flip(0)
        rec.loss(torch.where(same, apart, (1 - apart).relu()).mean()).backward()
        optimizer.step()

    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    assert report(tmp_path, siamese, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)) == ""
