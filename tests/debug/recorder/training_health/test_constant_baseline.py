"""A loss that ends where a constant answer would is reported; a lower one, or another kind of loss, is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from ocrlab.debug.flight_record import training_findings
from ocrlab.debug.recorder.loop_recorder import recording
from ocrlab.debug.recorder.training_health.model_checks import ConstantBaseline

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


def test_targets_as_large_as_images_are_not_stored() -> None:
    model = nn.Linear(4, 300)
    check = ConstantBaseline()
    wanted = torch.randn(8, 300)
    check.begin([INPUTS[:8], wanted])
    check.note(output := model(INPUTS[:8]))
    check.loss(functional.mse_loss(output, wanted).item())
    assert check.targets == [] and "" in check.kinds


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
