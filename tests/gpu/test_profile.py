"""On a real device: kernels belong to modules, waits are measured by line, the share of the peak is plausible."""

import inspect
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from ocrlab.debug.instruments.dataloader import loader_watch
from ocrlab.debug.instruments.profiler import step_profiler

pytestmark = pytest.mark.gpu


def train(profile: step_profiler.StepProfile, count: int = 6) -> int:
    """Do some steps on the device and return the line at which the host waits."""
    model = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 16)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    images = torch.randn(4096, 2048, device="cuda")
    for _ in range(count):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(images).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        profile.step()
    source, first = inspect.getsourcelines(train)
    return first + next(i for i, line in enumerate(source) if line.strip() == "loss.item()")


def test_kernels_and_waits() -> None:
    with step_profiler.steps(skip=2, steps=3) as profile:
        line = train(profile)
    assert profile.device and profile.busy > 0 and profile.waited > 0
    table = profile.table()
    assert table["device_ms"].sum() > 0 and {"0", "2"} <= set(table["module"])
    assert line in profile.waits()["line"].tolist()
    assert "the host waits for the device at test_profile.py:" in profile.finding()
    assert torch.cuda.get_sync_debug_mode() == 0


def test_other_warnings_still_come_through() -> None:
    with warnings.catch_warnings(record=True) as caught, step_profiler.steps(skip=0, steps=1) as profile:
        warnings.simplefilter("always")
        profile.step()
        warnings.warn("theirs", stacklevel=1)
        torch.ones(1, device="cuda").item()
        profile.step()
    assert [str(each.message) for each in caught].count("theirs") == 1


def test_a_device_that_runs_dry_is_reported() -> None:
    def slow() -> Any:
        for _ in range(6):
            torch.cuda.synchronize()
            yield torch.ones(8)

    torch.ones(1, device="cuda")
    with loader_watch.watch(slow()) as profile:
        for batch in profile:
            batch.cuda().square()
    assert profile.steps()["idle"].all()
