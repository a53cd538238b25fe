"""Validation data of another scale than training data are reported; augmentation and plots are not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from ocrlab.debug.flight_record import training_findings
from ocrlab.debug.recorder.loop_recorder import recording
from ocrlab.debug.recorder.training_health.model_checks import InputScaleCheck
from tests.debug.recorder.training_health.test_monitor import data, net, right


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


def test_few_samples_other_shapes_and_constants_give_no_finding() -> None:
    model = nn.Conv2d(3, 4, 1)
    check = InputScaleCheck([model])
    check.looking = True
    for _ in range(4):
        model(torch.randn(8, 3, 4, 4))
    model.eval()
    with torch.no_grad():
        model(100 + torch.randn(4, 3, 4, 4))
        assert check.sentence() == ""  # four samples
        model(torch.zeros(16, 3, 4, 4))
        check.close()
        model(100 + torch.randn(64, 3, 4, 4))
    check.stats[id(model)][1].add(torch.zeros(0 + 16, 3, 4, 4))
    assert check.stats[id(model)][1].rows == 36
