"""A traced step on a GPU: indices are looked at before the kernel runs, and values are placed operator by operator."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.debug.replay.tracing.traced_step import traced

pytestmark = pytest.mark.gpu


def step(out: Path, net: nn.Module, image: Tensor, truth: Tensor) -> dict[str, Any]:
    """Return the fault of one traced step on the GPU, whose kernels must not have been asked for a bad index."""
    with traced(net, {"out": str(out), "last_step": 0, "cell": {"trace": True}}) as trace:
        trace.begin((image, truth), ["a", "b"], 0, 0)
        loss = nn.functional.cross_entropy(net(image), truth)
        loss.backward()
        trace.end(loss)
    fault: dict[str, Any] = json.loads((out / "trace.json").read_text())["fault"]
    return fault


def test_nan_on_the_gpu_is_placed_with_its_sample(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(inplace=True)).cuda()
    image = torch.randn(2, 3, 8, 8, device="cuda")
    image[1, 2, 3, 4] = float("nan")
    fault = step(tmp_path, net, image, torch.zeros(2, 6, 6, dtype=torch.long, device="cuda"))
    assert (fault["path"], fault["op"], fault["names"], fault["pixel"]) == ("0", "aten::convolution", ["b"], [3, 4])


def test_overflow_on_the_gpu_is_born_in_backward_or_forward_and_named(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 5, 3)).cuda().half()
    image = torch.zeros(2, 3, 8, 8, device="cuda", dtype=torch.half)
    image[0] = 60000
    with torch.no_grad():
        net[0].weight.fill_(10)
    fault = step(tmp_path, net, image, torch.zeros(2, 6, 6, dtype=torch.long, device="cuda"))
    assert (fault["kind"], fault["value"], fault["names"]) == ("nonfinite", "+Inf", ["a"])
