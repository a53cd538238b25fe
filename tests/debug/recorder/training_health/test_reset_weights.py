"""Weights that go back to where they were at each walk over the data."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ocrlab.debug.recorder.loop_recorder import recording
from ocrlab.debug.recorder.training_health.pass_checks import WeightResetCheck


def train(folder: Path, reset: str, capsys: pytest.CaptureFixture[str]) -> str:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    begun, best = copy.deepcopy(model.state_dict()), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), batch_size=8)
    with recording(folder, model, optimizer) as rec:
        for _ in rec.epochs(4):
            if reset == "begun":
                model.load_state_dict(begun)
            if reset == "best" and best is not None:
                model.load_state_dict(best)
            for x, y in rec.batches(loader):
                loss = rec.loss(nn.functional.mse_loss(model(x), y))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            best = copy.deepcopy(model.state_dict())
    return capsys.readouterr().err


def test_weights_that_are_reloaded_in_each_epoch_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "all 4 walks over the data began with the same weights" in train(tmp_path, "begun", capsys)


@pytest.mark.parametrize("reset", ["", "best"])
def test_weights_that_go_on_are_no_finding(reset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "same weights" not in train(tmp_path, reset, capsys)


def test_only_walks_behind_steps_count_and_only_weights_that_moved() -> None:
    check = WeightResetCheck()

    def begin(steps: int, total: int) -> None:
        if check.wants(steps):
            check.note(total)

    for steps in (0, 0, 0, 4, 4):  # looks at the data before training
        begin(steps, 7)
    assert check.times == 1
    begin(8, 7)
    assert "all 3 walks" in check.sentence({1: 8})
    assert check.sentence({1: 7}) == ""
    begin(12, 9)
    assert check.sentence({1: 8}) == ""
