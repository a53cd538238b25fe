"""What only a whole run shows: outputs that collapse, samples never drawn, weights reset, other validation data."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

from ocrlab.debug.flight_record import training_findings
from ocrlab.debug.recorder.loop_recorder import recording
from ocrlab.debug.recorder.training_health.model_checks import OutputCollapseCheck
from tests.debug.recorder.training_health.test_monitor import data, net, report, right


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


def test_weights_of_classes_in_place_of_weights_of_samples(tmp_path: Path) -> None:
    sampler = WeightedRandomSampler(torch.ones(4), 128)
    text = report(tmp_path, loader=DataLoader(data(), 16, sampler=sampler))
    assert "only 4 of 128 samples were ever drawn, in 256 draws" in text


def test_fair_samplers_are_right(tmp_path: Path) -> None:
    for number, sampler in enumerate((WeightedRandomSampler(torch.rand(128), 128), SubsetRandomSampler(range(40)))):
        assert "drawn" not in report(tmp_path / str(number), loader=DataLoader(data(), 16, sampler=sampler))


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


def test_weights_that_are_reloaded_in_each_epoch_are_reported(tmp_path, capsys):
    assert "all 4 walks over the data began with the same weights" in train(tmp_path, "begun", capsys)


@pytest.mark.parametrize("reset", ["", "best"])
def test_weights_that_go_on_are_no_finding(reset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "same weights" not in train(tmp_path, reset, capsys)


@pytest.mark.parametrize(("factor", "shift", "named"), [(50.0, 120.0, True), (1.0, 5.0, True), (1.5, 0.5, False)])
def test_a_transform_that_validation_lacks(tmp_path: Path, factor: float, shift: float, named: bool) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with recording(tmp_path, model, optimizer) as rec:
        for _ in rec.epochs(2):
            model.train()
            for batch in rec.batches(DataLoader(data(), 16, shuffle=True)):
                right(model, optimizer, batch, rec)
            model.eval()
            with torch.no_grad():
                for inputs, _ in DataLoader(data(), 16):
                    model(inputs * factor + shift)
    findings = "\n".join(training_findings.read(tmp_path) or [])
    assert ("validation gives the model other numbers" in findings) == named
    assert named or findings == ""


INPUTS = torch.randn(512, 4, generator=torch.Generator().manual_seed(0))
TARGETS = {
    "classes": INPUTS[:, :3].argmax(1),
    "chances": (INPUTS[:, :1] > 0.5).float(),
    "squares": INPUTS[:, :2] @ torch.tensor([[1.0], [2.0]]),
}
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "classes": functional.cross_entropy,
    "chances": functional.binary_cross_entropy_with_logits,
    "squares": functional.mse_loss,
}


def trained(folder: Path, kind: str, *, apart: bool, factor: float = 1.0) -> str:
    torch.manual_seed(0)
    model = nn.Linear(4, 3 if kind == "classes" else 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    targets = TARGETS[kind]
    targets = targets[torch.randperm(512, generator=torch.Generator().manual_seed(1))] if apart else targets
    loader = DataLoader(TensorDataset(INPUTS, targets), 16, shuffle=True)
    with recording(folder, model, optimizer) as rec:
        for _ in rec.epochs(6):
            for inputs, wanted in rec.batches(loader):
                optimizer.zero_grad()
                rec.loss(LOSSES[kind](model(inputs), wanted) * factor).backward()
                optimizer.step()
    return "\n".join(training_findings.read(folder) or [])


@pytest.mark.parametrize("kind", list(LOSSES))
def test_targets_of_other_samples(tmp_path: Path, kind: str) -> None:
    text = trained(tmp_path / "apart", kind, apart=True)
    assert "one answer for all samples would give" in text and "shuffled" in text
    assert trained(tmp_path / "right", kind, apart=False) == ""
    assert trained(tmp_path / "other", kind, apart=True, factor=0.5) == ""  # a loss that is not known


def test_targets_that_come_in_a_tree_of_their_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    inputs, wanted = (DataLoader(TensorDataset(t), 16, shuffle=True) for t in (INPUTS, TARGETS["squares"]))
    with recording(tmp_path, model, optimizer) as rec:
        for _ in rec.epochs(6):
            for (x,), (y,) in rec.batches(zip(inputs, wanted, strict=True)):
                optimizer.zero_grad()
                rec.loss(functional.mse_loss(model(x), y)).backward()
                optimizer.step()
    assert "one answer for all samples would give" in "\n".join(training_findings.read(tmp_path) or [])
