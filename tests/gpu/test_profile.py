"""On a real device: kernels belong to modules, waits are told by line and measured, the share of the peak is sane."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from ocrlab.debug.instruments.dataloader import loader_watch
from ocrlab.debug.instruments.profiler import step_profiler

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def train(seen: step_profiler.StepProfile, count: int = 6) -> int:
    """Do some steps on the device and return the line at which the host waits."""
    model = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 16)).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), fused=True)
    images = torch.randn(4096, 2048, device="cuda")
    for _ in range(count):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(images).float().square().mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        loss.item()
        seen.step()
    source, first = inspect.getsourcelines(train)
    return first + next(i for i, line in enumerate(source) if line.strip() == "loss.item()")


def test_kernels_waits_and_peak() -> None:
    with step_profiler.steps(skip=2, steps=3) as seen:
        line = train(seen)
    assert seen.device and seen.busy > 0 and seen.waited > 0
    table = seen.table()
    assert table["device_ms"].sum() > 0 and {"0", "2"} <= set(table["module"])
    assert line in seen.waits()["line"].tolist()
    share = seen.share_of_peak()
    assert share is None or 0 < share < 1
    assert "the host waits for the device at test_profile.py:" in seen.finding()
    assert torch.cuda.get_sync_debug_mode() == 0


def test_other_warnings_still_come_through() -> None:
    with warnings.catch_warnings(record=True) as told, step_profiler.steps(skip=0, steps=1) as seen:
        warnings.simplefilter("always")
        seen.step()
        warnings.warn("theirs", stacklevel=1)
        torch.ones(1, device="cuda").item()
        seen.step()
    assert [str(each.message) for each in told].count("theirs") == 1


def test_a_device_that_runs_dry_is_told() -> None:
    def slow() -> Any:
        for _ in range(6):
            torch.cuda.synchronize()
            yield torch.ones(8)

    torch.ones(1, device="cuda")
    with loader_watch.watch(slow()) as seen:
        for batch in seen:
            batch.cuda().square()
    assert seen.steps()["idle"].all()
