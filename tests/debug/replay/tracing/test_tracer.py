"""A traced step: every kind of fault is placed by module, phase, operator, sample and pixel, and nothing is changed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ocrlab.debug.flight_record import replay_position
from tests.debug.replay.tracing.traced_step import traced

NAMES = ["a.png", "b.png", "c.png", "d.png"]
JOB: dict[str, Any] = {"last_step": 0, "cell": {"trace": True}}
Batch = tuple[Tensor, Tensor]


class Net(nn.Module):
    """A small network with what makes tracing hard: in-place ReLU, a shared module, functional code."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(inplace=True))
        self.encoder = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.decoder = nn.ModuleDict({"fusion": shared, "again": shared})
        self.head = nn.Conv2d(8, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.decoder.values():
            x = block(x if x.shape[1] == 8 else self.encoder(x)) + 1
        return self.head(x)


def batch() -> Batch:
    return torch.randn(4, 3, 16, 16), torch.randint(0, 5, (4, 16, 16))


def step(out: Path, net: nn.Module, batch_in: Batch, loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy) -> Any:
    """Run one traced step and return the fault that was found, and the exception."""
    optimizer = torch.optim.AdamW(net.parameters())
    raised = None
    try:
        with traced(net, {"out": str(out), "last_step": 3, "cell": {"trace": True}}, optimizers=optimizer) as trace:
            trace.begin(batch_in, NAMES, 3, 3)
            value = loss(net(batch_in[0]), batch_in[1])
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            trace.end(value)
    except Exception as error:
        raised = error
    fault = json.loads((out / "trace.json").read_text())
    assert (fault["step"], fault["samples"]) == (3, NAMES)
    return fault["fault"], raised


def subset(fault: dict[str, Any], **wanted: Any) -> None:
    assert {name: fault.get(name) for name in wanted} == wanted


def test_a_good_step_has_no_fault_and_the_same_weights(tmp_path: Path) -> None:
    torch.manual_seed(1)
    first, second = Net(), Net()
    second.load_state_dict(first.state_dict())
    batch_in = batch()
    optimizer = torch.optim.AdamW(second.parameters())
    F.cross_entropy(second(batch_in[0]), batch_in[1]).backward()
    optimizer.step()
    before = torch.get_rng_state()
    assert step(tmp_path, first, batch_in) == (None, None)
    assert torch.equal(torch.get_rng_state(), before)
    for weight, other in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        assert torch.equal(weight, other)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in first.modules())
    assert torch.autograd.backward.__module__ == "torch.autograd" and not hasattr(torch.autograd.grad, "__wrapped__")


def test_inf_that_a_batchnorm_turns_into_nan_is_reported_where_it_arose(tmp_path: Path) -> None:
    net, image, truth = Net(), torch.full((4, 3, 16, 16), 1e20), batch()[1]
    with torch.no_grad():
        net.encoder[0].weight.zero_()
        net.encoder[0].weight[0, :, 1, 1] = 1e20  # the overflow has one sign, so that no NaN arises before BatchNorm
    fault, _ = step(tmp_path, net, (image, truth))
    subset(fault, kind="nonfinite", path="encoder.0", value="+Inf", by="overflow")
    assert "conv" in fault["op"]


def test_a_flattened_target_is_located_in_the_batch(tmp_path: Path) -> None:
    batch_in = batch()
    batch_in[1][1, 8, 2] = -1
    fault, _ = step(
        tmp_path, Net(), batch_in, lambda x, y: F.cross_entropy(x.permute(0, 2, 3, 1).reshape(-1, 5), y.view(-1))
    )
    subset(fault, kind="target", sample=1, pixel=[8, 2], value="-1", names=["b.png"])


def test_a_probability_out_of_range_is_reported_though_nothing_raises(tmp_path: Path) -> None:
    image, _ = batch()
    truth = torch.rand(4, 5, 16, 16)
    truth[3, 1, 4, 5] = 255
    fault, raised = step(tmp_path, Net(), (image, truth), F.binary_cross_entropy_with_logits)
    subset(fault, kind="target", sample=3, pixel=[4, 5], value="255", allowed="0 to 1", names=["d.png"])
    assert raised is None


def test_a_target_of_the_wrong_type_is_placed_in_the_loss(tmp_path: Path) -> None:
    image, truth = batch()
    fault, raised = step(tmp_path, Net(), (image, truth.float()))
    subset(fault, kind="exception", phase="loss")
    assert raised is not None and str(raised) in fault["exception"]
    assert "test_tracer.py" in fault["line"]


def test_nan_in_a_page_is_reported_with_the_first_module_that_got_it(tmp_path: Path) -> None:
    batch_in = batch()
    batch_in[0][1, 0, 4, 5] = float("nan")
    fault, _ = step(tmp_path, Net(), batch_in)
    subset(fault, kind="nonfinite", tensor="input batch[0]", value="NaN", sample=1, pixel=[4, 5], names=["b.png"])
    subset(fault, path="encoder.0", module="Conv2d 3->8", op="aten::convolution", before=True)


def test_an_infinite_weight_is_reported_by_name_and_index(tmp_path: Path) -> None:
    net = Net()
    with torch.no_grad():
        net.decoder["fusion"][0].weight[3, 0, 1, 1] = float("inf")
    fault, _ = step(tmp_path, net, batch())
    subset(fault, kind="nonfinite", tensor="weight decoder.fusion.0.weight", value="+Inf", index=[3, 0, 1, 1])
    subset(fault, path="decoder.fusion.0", module="Conv2d 8->8", names=None)


def test_a_wrong_shape_says_what_came_from_where(tmp_path: Path) -> None:
    net = Net()
    net.head = nn.Conv2d(9, 5, 1)
    fault, _ = step(tmp_path, net, batch())
    subset(fault, kind="exception", phase="forward", path="head", module="Conv2d 9->5", op="aten::convolution")
    assert fault["sources"][0] == "(4, 8, 16, 16) fp32 from the model (Net), `aten::add`"
    assert fault["sources"][1] == "(5, 9, 1, 1) fp32 from weight head.weight"


def test_the_log_of_zero_in_the_loss_is_reported_with_its_line_and_sample(tmp_path: Path) -> None:
    def loss(x: Tensor, _: Tensor) -> Tensor:
        keep = torch.ones(4, 1, 1, 1)
        keep[2] = 0
        return -torch.log(x.sigmoid() * keep).mean()

    fault, _ = step(tmp_path, Net(), batch(), loss)
    subset(fault, kind="nonfinite", phase="loss", op="aten::log", value="-Inf", by="log of 0", names=["c.png"])
    assert "path" not in fault and fault["line"].endswith(" loss")


def test_a_mask_of_infinities_is_no_fault_unless_a_row_of_it_is_all_there_is(tmp_path: Path) -> None:
    def loss(x: Tensor, _: Tensor, rows: int) -> Tensor:
        mask = torch.zeros(4, 5, 16, 16)
        mask[1, 0, :rows] = float("-inf")
        return (x + mask)[:, 0].softmax(1).mean()

    assert step(tmp_path, Net(), batch(), lambda x, y: loss(x, y, 3)) == (None, None)
    fault, _ = step(tmp_path, Net(), batch(), lambda x, y: loss(x, y, 16))
    subset(fault, op="aten::_softmax", value="NaN", names=["b.png"])


def test_overflow_in_half_precision_is_reported_where_it_begins(tmp_path: Path) -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return (self.up(x).half() * 60000).float()

    net = Half()
    with torch.no_grad():
        net.up.weight.copy_(torch.eye(4))
        net.up.bias.zero_()
    image = torch.zeros(4, 4)
    image[3] = 100.0
    fault, _ = step(tmp_path, net, (image, image), lambda x, y: (x - x.mean()).square().mean())
    subset(fault, op="aten::mul", value="+Inf", names=["d.png"], module="Half")
    assert fault["by"].startswith("overflow")


def test_nan_that_is_born_in_backward_is_reported_with_the_node_and_the_forward_module(tmp_path: Path) -> None:
    class Root(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            keep = torch.ones(4, 1, 1, 1)
            keep[1] = 0
            return (x * keep).sqrt()

    net = nn.Sequential(nn.Conv2d(3, 5, 1), nn.ReLU(), Root())
    net[0].bias.data += 10  # so that nothing but the page is 0
    fault, _ = step(tmp_path, net, batch(), lambda x, _: x.mean())
    subset(fault, kind="nonfinite", phase="backward", path="2", module="Root", node="SqrtBackward0")
    assert "b.png" in fault["names"] and fault["reaches"].startswith("gradient of ")


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise ValueError("planted")


@pytest.mark.parametrize(("plant", "module"), [
    (lambda net: net.head.register_forward_hook(lambda m, i, o: Broken.apply(o)), "head"),
    (lambda net: net.encoder[0].register_forward_hook(lambda m, i, o: Broken.apply(o)), "encoder.0"),
    (
        lambda net: net.encoder[2].register_forward_hook(lambda m, i, o: o.register_hook(lambda g: 1 / 0) and None),
        "encoder.2",
    ),
    (lambda net: net.head.register_full_backward_hook(lambda m, i, o: 1 / 0), "head"),
    (lambda net: net.head.register_full_backward_pre_hook(lambda m, o: 1 / 0), "head"),
], ids=["function in the head", "function inside", "tensor hook", "module hook", "module pre-hook"])  # fmt: skip
def test_what_raises_in_backward_is_placed_in_its_module(tmp_path: Path, plant: Any, module: str) -> None:
    net = Net()
    plant(net)
    fault, raised = step(tmp_path, net, batch())
    subset(fault, kind="exception", phase="backward", path=module)
    assert type(raised).__name__ in fault["exception"] and "test_tracer.py" in fault["line"]


def test_what_raises_for_a_single_page_is_reported_with_that_page(tmp_path: Path) -> None:
    def plant(module: nn.Module, inputs: Any, output: Tensor) -> None:
        if bool((inputs[0].amax(dim=(1, 2, 3)) > 50).any()):
            raise RuntimeError("cannot be")

    net = Net()
    net.encoder[0].register_forward_hook(plant)
    batch_in = batch()
    batch_in[0][3] += 100
    fault, _ = step(tmp_path, net, batch_in)
    subset(fault, path="encoder.0", phase="forward", names=["d.png"])


def test_an_attention_mask_is_no_fault_and_what_the_program_checks_is(tmp_path: Path) -> None:
    def loss(x: Tensor, _: Tensor, last: float) -> Tensor:
        scores = x.flatten(2)[:, :, :5]
        hidden = torch.eye(5, dtype=torch.bool)
        attended = scores.masked_fill(hidden, float("-inf")).softmax(-1).mean()
        weights = torch.tensor([1.0, 1.0, last, 1.0]) + 0 * x.flatten(1).sum(1)
        total = attended + (weights * 0 / weights).mean()
        if not torch.isfinite(total):
            raise FloatingPointError("loss is nan")
        return total

    assert step(tmp_path, Net(), batch(), lambda x, y: loss(x, y, 1.0)) == (None, None)
    fault, raised = step(tmp_path, Net(), batch(), lambda x, y: loss(x, y, 0.0))
    subset(fault, kind="nonfinite", op="aten::div", by="0 / 0", names=["c.png"])
    assert isinstance(raised, FloatingPointError)


def test_what_a_step_that_went_well_has_too_is_no_fault(tmp_path: Path) -> None:
    net, batch_in = nn.Conv2d(3, 5, 1), batch()
    batch_in[0][0, 0, 0, 0] = float("nan")  # a value that stands for none

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(x.nan_to_num(), y)

    job = {"out": str(tmp_path), "last_step": 3, "cell": {"trace": True}}
    with traced(net, job) as trace:
        for number in (2, 3):
            trace.begin(batch_in, NAMES, number, number)
            value = loss(net(batch_in[0].nan_to_num()), batch_in[1])
            trace.harmless |= trace.step.values.signatures() if trace.step is not None else set()
            trace.end(value)
    assert json.loads((tmp_path / "trace.json").read_text())["fault"] is None


def test_a_buffer_of_nan_is_judged_by_what_is_left_of_it(tmp_path: Path) -> None:
    class Fill(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            filled = torch.full_like(x, float("nan"))
            fine = torch.tensor([True, True, False, True])
            filled[fine] = x[fine]
            return filled

    fault, _ = step(tmp_path, nn.Sequential(nn.Conv2d(3, 5, 1), Fill()), batch())
    subset(fault, kind="nonfinite", value="NaN", path="1", names=["c.png"])


def test_a_target_that_makes_the_loss_nan_is_reported_and_not_the_loss(tmp_path: Path) -> None:
    image, truth = torch.randn(4, 5), torch.rand(4, 5)
    truth[3, 0] = 3e38

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(x * 0 + 1000, y)

    fault, _ = step(tmp_path, nn.Linear(5, 5), (image, truth), loss)
    subset(fault, kind="target", op="aten::binary_cross_entropy_with_logits", names=["d.png"], phase="loss")


def test_an_op_of_the_users_own_that_raises_is_named_and_a_single_sample_is_named(tmp_path: Path) -> None:
    class LineFilter(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            raise ValueError("planted")

    net = Net()
    net.head.register_forward_hook(lambda m, i, o: LineFilter.apply(o))
    original = torch.autograd.Function.__dict__["apply"]
    fault, raised = step(tmp_path, net, batch())
    subset(fault, kind="exception", phase="forward", path="head", op="LineFilter")
    assert isinstance(raised, ValueError) and torch.autograd.Function.__dict__["apply"] is original
    with pytest.raises(ValueError, match="planted"), traced(net, {**JOB, "out": str(tmp_path)}) as trace:
        trace.begin(batch()[0][:1], ["only.png"], 0, 0)
        net(batch()[0][:1])
    assert json.loads((tmp_path / "trace.json").read_text())["fault"]["names"] == ["only.png"]


def test_an_error_of_the_tracer_does_not_reach_the_training(tmp_path: Path, capsys: Any) -> None:
    net = Net()
    with traced(net, {"out": str(tmp_path), "last_step": 0, "cell": {"trace": True}}) as trace:
        trace.begin(batch(), NAMES, 0, 0)
        assert trace.step is not None
        trace.step.values.result = None  # type: ignore[method-assign, assignment]
        loss = net(batch()[0]).mean()
        loss.backward()
        trace.end(loss)
    assert "tracing stopped" in capsys.readouterr().err
    assert all(parameter.grad is not None for parameter in net.parameters())


CRASH = """
import os, sys, time, ctypes
sys.path.insert(0, {root!r})
import torch
from torch import nn
from tests.debug.replay.tracing.traced_step import traced
def boom(*_):
    {fault}
net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 2, 3))
if {backward}:
    net[1].register_forward_hook(lambda m, i, o: o.register_hook(boom) and None)
else:
    net[1].register_forward_hook(boom)
with traced(net, {{"out": {out!r}, "last_step": 0, "cell": {{"trace": True}}}}) as trace:
    x = torch.randn(2, 3, 8, 8)
    trace.begin(x, ["a", "b"], 0, 0)
    net(x).mean().backward()
"""


@pytest.mark.parametrize(
    ("fault", "backward"), [("os.kill(os.getpid(), 11)", True), ("os.kill(os.getpid(), 9)", False)]
)
def test_where_it_died_stands_in_the_trail(tmp_path: Path, fault: str, backward: bool) -> None:
    root = str(Path(__file__).parents[4])
    code = CRASH.format(root=root, fault=fault, backward=backward, out=str(tmp_path))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], timeout=120, check=False, env=environment, stderr=-3)
    assert done.returncode in (-signal.SIGSEGV, -signal.SIGKILL)
    position = replay_position.read(tmp_path / "trail.bin")
    assert position is not None
    subset(position.place, step=0, phase="backward" if backward else "forward", path="1", module="ReLU")
    assert json.loads((tmp_path / "trace.json").read_text())["state"] == "running"
