"""A traced step on a GPU, with torch's CUDA calls mocked: kernels fail late, and are placed where they were started."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.debug.replay.tracing.traced_step import traced

TEXT = "CUDA error: an illegal memory access was encountered"


class Device:
    """A device that reports what a kernel did when it is next asked, and from then on always."""

    spoilt = False
    asked = 0

    def synchronize(self) -> None:
        """Wait for all kernels."""
        self.asked += 1
        if self.spoilt:
            raise torch.AcceleratorError(TEXT)


class Kernel(torch.autograd.Function):
    """A user's operator, whose kernel the dispatcher does not see."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, device: Device, where: str) -> Tensor:
        ctx.device, ctx.where = device, where
        device.spoilt |= where == "forward"
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.device.spoilt |= ctx.where == "backward"
        return grads[0], None, None


class Filter(nn.Module):
    """The module with the kernel, in an operator of its own or started as it is."""

    def __init__(self, device: Device, where: str) -> None:
        super().__init__()
        self.device, self.where = device, where

    def forward(self, x: Tensor) -> Tensor:
        if self.where == "plain":
            self.device.spoilt = True
            return x
        return Kernel.apply(x, self.device, self.where)


@pytest.mark.parametrize(("where", "phase"), [("forward", "forward"), ("plain", "forward"), ("backward", "backward")])
def test_a_kernel_of_the_users_own_is_placed(tmp_path, monkeypatch, where, phase):
    device = Device()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", device.synchronize)
    net = nn.ModuleDict({"stem": nn.Linear(4, 4), "filter": Filter(device, where), "head": nn.Linear(4, 1)})
    job = {"out": str(tmp_path), "last_step": 0, "cell": {"trace": True}}
    with pytest.raises(torch.AcceleratorError), traced(net, job) as trace:
        trace.begin(torch.ones(2, 4), ["a", "b"], 0, 0)
        x = net["head"](net["filter"](net["stem"](torch.ones(2, 4)))).sum()
        x.backward()
        before = device.asked
        raise torch.AcceleratorError(TEXT)  # the program hears of it here
    assert device.asked == before, "nothing is asked of a dead context"
    fault = json.loads((tmp_path / "trace.json").read_text())["fault"]
    assert (fault["kind"], fault["phase"], fault["path"]) == ("exception", phase, "filter")
    if where == "forward":
        assert fault["op"] == "Kernel"
    assert not str(fault.get("op", "")).startswith("aten::")


def test_what_an_operator_works_on_comes_before_its_bias_and_weights_are_called_weights(tmp_path) -> None:
    net = nn.Sequential(nn.Linear(4, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    job = {"out": str(tmp_path), "last_step": 0, "cell": {"trace": True}}
    with pytest.raises(RuntimeError), traced(net, job) as trace:
        trace.begin(torch.ones(2, 4), ["a", "b"], 0, 0)
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()  # which writes into the weights
        net(torch.ones(2, 7))
    fault = json.loads((tmp_path / "trace.json").read_text())["fault"]
    assert fault["op"] == "aten::addmm" and fault["inputs"][0] == "(2, 7) fp32"
    assert fault["sources"][1:] == ["(3,) fp32 from weight 0.bias", "(4, 3) fp32 from weight 0.weight"]
