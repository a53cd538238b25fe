"""Where the memory goes on a CUDA device: as the allocator counts it, and leaks by allocated bytes."""

from pathlib import Path

import pytest
import torch
from torch import nn

from ocrlab.debug.instruments.leaks import leak_watch
from ocrlab.debug.instruments.memory import memory_watch

pytestmark = pytest.mark.gpu
MIB = 2**20


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1)).cuda()


def train(model: nn.Module, steps: int, keep: list[torch.Tensor] | None = None) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        output = model(torch.rand(1, 3, 256, 256, device="cuda"))
        output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if keep is not None:
            keep.append(output.detach())


def test_a_step_is_followed_as_the_allocator_counts_it() -> None:
    model = net()
    with memory_watch.watch(model) as watch:
        train(model, 3)
    assert watch.highest is not None
    assert watch.highest.peak.phase in ("forward", "backward", "outside")
    assert {row.module for row in watch.table()} >= {"0", "2"}
    assert watch.steps[-1].process.cuda
    allocated = sum(watch.steps[-1].end.values())
    assert abs(allocated - watch.steps[-1].process.end) < 2 * MIB
    assert watch.highest.peak.bytes <= torch.cuda.max_memory_allocated() + MIB


def test_a_leak_on_the_device_has_its_line() -> None:
    model, leaked = net(), []
    with leak_watch.watch(model) as watch:
        train(model, 45, leaked)
    assert [Path(leak.location.rpartition(":")[0]).name for leak in watch.leaks] == [Path(__file__).name], (
        watch.finding()
    )
    assert watch.leaks[0].code == "keep.append(output.detach())"
    assert watch.leaks[0].mib_per_step == pytest.approx(1.0, abs=0.1)
