"""Stages: the top modules of a model, by the names that a person would use, on at most twenty hooks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ocrlab.flight import ring
from ocrlab.model.detector import Detector
from ocrlab.recording.stages import Stages, top


def test_the_detectors_stages():
    names = [name for name, _ in top(Detector(width=32))]
    assert {"encoder.layer1", "encoder.layer4", "decoder.fusion", "head.probability", "head.threshold"} <= {*names}
    assert len(names) <= 18


def test_wrappers_are_looked_through_and_compiled_modules_are_not():
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert [name for name, _ in top(nn.DataParallel(net))] == ["0", "1"]
    assert [name for name, _ in top(torch.compile(net))] == ["model"]
    assert [name for name, _ in top(nn.Linear(2, 2))] == ["model"]
    assert len(top(nn.Sequential(*[nn.Linear(1, 1) for _ in range(50)]))) == 18


def test_entering_a_stage_is_written_and_every_hook_leaves(tmp_path):
    writer = ring.Writer(tmp_path / "ring-0-0.bin", slots=4)
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(3))
    stages = Stages(writer)
    stages.attach(net)
    assert len(stages.handles) <= 20
    writer.begin(ring.Step(0, 0))
    stages.in_step = True
    with pytest.raises(RuntimeError):
        net(torch.ones(4, 2))
    now = ring.read(tmp_path / "ring-0-0.bin").now
    assert (now.stage, now.phase) == ("1", "forward")
    stages.detach()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
