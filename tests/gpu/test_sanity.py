"""On a real device: the contract of a step stops before an index reaches a kernel, and leaves nothing behind."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

import ocrlab

pytestmark = pytest.mark.gpu


def test_an_index_out_of_range_never_reaches_the_device() -> None:
    model = nn.Embedding(4, 4).cuda()
    labels = torch.tensor([0, 9, 1, 2]).cuda()
    report = ocrlab.check_step(model, labels, lambda m, i: functional.cross_entropy(m(i % 4), i))
    assert [finding.rule for finding in report.findings] == ["indices.bounds"]
    assert float(torch.ones(3, device="cuda").sum()) == 3  # the context lives


def test_a_dead_context_is_reported_and_left_alone() -> None:
    """The child's kernel asserts; the check must come back with a finding and make no further CUDA call."""
    code = (
        "import torch; import ocrlab\n"
        "def step(m, x):\n"
        "    table = torch.ones(4, device='cuda')\n"
        "    torch.ops.aten.index(table, [torch.tensor([99], device='cuda')]).sum().item()\n"
        "report = ocrlab.check_step(torch.nn.Linear(2, 2).cuda(), torch.ones(2, 2, device='cuda'), step)\n"
        "print(report)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "step.raised" in done.stdout, done.stderr[-2000:]
    assert "the CUDA context is dead" in done.stdout


def test_tensors_on_two_devices_are_named() -> None:
    model = nn.Linear(3, 2).cuda()
    report = ocrlab.check_step(model, torch.ones(4, 3), lambda m, x: m(x).sum())
    rules = {finding.rule: finding for finding in report.findings}
    assert "Move the batch (cpu)" in rules["step.raised"].do


def test_a_step_leaves_nothing_on_the_device() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.5)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.cuda.get_rng_state()
    report = ocrlab.check_step(
        model, torch.rand(4, 3, 16, 16).cuda(), lambda m, x: m(x).square().mean(), optimizer=optimizer
    )
    assert report.findings == []
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.cuda.get_rng_state(), state)
