"""What torch.compile has made its own, told from what the flight recorder leaves in the same place."""

from __future__ import annotations

import gc
from pathlib import Path

import torch
from torch import nn

from ocrlab.flight import ring
from ocrlab.recording.stages import Stages
from ocrlab.trace.compiled import any_compiled, is_compiled, itself_compiled


def test_a_model_that_is_recorded_is_not_compiled_and_one_that_is_both_is(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))
    stages = Stages(ring.Writer(tmp_path / "ring-0-0.bin", slots=4))
    stages.attach(net)
    assert net._compiled_call_impl is not None and not is_compiled(net)
    stages.detach()
    net[1].compile(backend="eager")
    assert is_compiled(net) and itself_compiled(net[1]) and not itself_compiled(net)
    stages.attach(net)
    assert is_compiled(net) and itself_compiled(net[1]) and not itself_compiled(net)
    stages.detach()
    assert is_compiled(torch.compile(nn.ReLU()))


def test_a_compiled_module_is_found_while_it_lives_and_a_plain_one_never() -> None:
    plain = nn.Linear(2, 2)
    plain(torch.ones(1, 2))
    graph = torch.compile(nn.Sequential(nn.Linear(2, 2)), backend="eager")
    graph(torch.ones(1, 2))
    assert any_compiled()
    del graph
    gc.collect()
    assert not any_compiled()
