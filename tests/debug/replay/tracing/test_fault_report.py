"""What the first fault of a step is where the program says something else, and whose it is."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.debug.replay.tracing.traced_step import traced

JOB: dict[str, Any] = {"last_step": 0, "cell": {"trace": True}}
NAMES = ["a.png", "b.png", "c.png", "d.png"]
Batch = tuple[Tensor, Tensor]


class Net(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
        self.head = nn.Conv2d(width, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x))


def batch() -> Batch:
    return torch.randn(4, 3, 16, 16), torch.randint(1, 5, (4, 16, 16))


def step(
    out,
    net,
    batch_in,
    loss=F.cross_entropy,
    check=lambda value: None,
):
    """Run one traced step, with the checks of the program after it; return the fault and the exception."""
    optimizer = torch.optim.AdamW(net.parameters())
    raised = None
    try:
        with traced(net, {"out": str(out), **JOB}, optimizers=optimizer) as trace:
            trace.begin(batch_in, NAMES, 0, 0)
            value = loss(net(batch_in[0]), batch_in[1])
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            check(value)
            trace.end(value)
    except (Exception, SystemExit) as error:
        raised = error
    return json.loads((out / "trace.json").read_text())["fault"], raised


def subset(fault: dict[str, Any], **wanted: Any) -> None:
    assert {name: fault.get(name) for name in wanted} == wanted


def stop(value: Tensor, error: type[BaseException]) -> None:
    raise error("enough")


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_a_program_that_ends_itself_after_a_bad_loss_is_reported_for_the_loss(tmp_path: Path, error: Any) -> None:
    batch_in = batch()
    batch_in[0][1, 0, 4, 5] = float("nan")
    fault, raised = step(tmp_path, Net(), batch_in, check=lambda value: stop(value, error))
    subset(fault, kind="nonfinite", tensor="input batch[0]", names=["b.png"], path="encoder.0")
    assert isinstance(raised, error) and "enough" in fault["exception"]


def test_a_program_that_ends_itself_without_a_reason_has_no_fault(tmp_path: Path) -> None:
    fault, raised = step(tmp_path, Net(), batch(), check=lambda value: stop(value, SystemExit))
    assert fault is None and isinstance(raised, SystemExit)
    fault, _ = step(tmp_path, Net(), batch(), check=lambda value: stop(value, RuntimeError))
    subset(fault, kind="exception", phase="optimiser")
    assert fault["line"].endswith(" stop"), "not the line of the operator that ran last"


def test_a_loss_that_was_bad_before_its_gradient_comes_first(tmp_path: Path) -> None:
    def loss(x: Tensor, _: Tensor) -> Tensor:
        keep = torch.ones(4, 1, 1, 1)
        keep[2] = 0
        return -torch.log(x.sigmoid() * keep).mean()

    fault, _ = step(tmp_path, Net(), batch(), loss, check=lambda value: stop(value, ValueError))
    subset(fault, phase="loss", op="aten::log", names=["c.png"])


def test_a_guard_without_words_is_reported_for_what_it_looked_at(tmp_path: Path) -> None:
    def loss(x: Tensor, truth: Tensor) -> Tensor:
        share = truth[2].sum() / (truth[2] * 0).sum()
        if share.isinf():
            raise ValueError("this page again")
        return F.cross_entropy(x, truth) * share

    fault, _ = step(tmp_path, Net(), batch(), loss)
    subset(fault, kind="nonfinite", op="aten::div", value="+Inf", by="division by 0")


def test_what_was_changed_in_place_is_reported_with_who_has_changed_it(tmp_path: Path) -> None:
    class Gate(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            gate = x.sigmoid()
            y = x * gate
            gate += 1
            return y + gate

    fault, _ = step(tmp_path, nn.Sequential(nn.Conv2d(3, 5, 1), Gate()), batch())
    subset(fault, kind="exception", phase="backward", path="1", node="MulBackward0")
    if hasattr(torch._C._autograd.SavedTensor, "data"):
        assert fault["changed"].startswith("`aten::add_` at ") and fault["changed"].endswith(" forward")
    else:
        assert fault["changed"] == "", "an older torch does not tell what it has kept"


def test_a_module_that_draws_numbers_blames_no_sample(tmp_path: Path) -> None:
    class Drops(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            Drops.calls += 1
            if Drops.calls == 1 or torch.rand(()) > 0.5:
                raise RuntimeError("nothing is left")
            return x

    for seed in range(4):
        torch.manual_seed(seed)
        Drops.calls = 0
        fault, _ = step(tmp_path, nn.Sequential(nn.Conv2d(3, 5, 1), Drops()), batch())
        subset(fault, kind="exception", path="1", names=None)


def test_a_wrapper_that_nobody_announced_is_no_loss(tmp_path: Path) -> None:
    class Parallel(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.module(half) for half in x.chunk(2)])

    net, batch_in = Net(width=9), batch()
    wrapped = Parallel(net)
    with pytest.raises(RuntimeError), traced(net, {"out": str(tmp_path), **JOB}) as trace:
        trace.begin(batch_in, NAMES, 0, 0)
        wrapped(batch_in[0])
    subset(json.loads((tmp_path / "trace.json").read_text())["fault"], phase="forward", path="head")


def test_a_target_that_is_longer_than_its_input_is_explained(tmp_path: Path) -> None:
    class Letters(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(3, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x).log_softmax(-1)

    def loss(x: Tensor, truth: Tensor) -> Tensor:
        return F.ctc_loss(x, truth, torch.full((4,), 6), torch.tensor([2, 3, 9, 1]))

    fault, _ = step(tmp_path, Letters(), (torch.randn(6, 4, 3), torch.arange(36).reshape(4, 9) % 4 + 1), loss)
    subset(fault, value="+Inf", names=["c.png"], by="no way to align: a target needs more steps than its input has")


def test_a_gradient_of_the_loss_is_reported_with_the_line_that_produced_it(tmp_path: Path) -> None:
    def loss(x: Tensor, _: Tensor) -> Tensor:
        keep = torch.ones(4, 1, 1, 1)
        keep[1] = 0
        return (x * keep).square().sum((1, 2, 3)).sqrt().mean()

    fault, _ = step(tmp_path, Net(), batch(), loss)
    subset(fault, kind="nonfinite", phase="backward", node="SqrtBackward0", names=["b.png"])
    assert fault["line"].endswith(" loss") and "path" not in fault


class Boxes(nn.Module):
    """Pictures of any size, one by one; as many boxes as a picture has."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 4)

    def forward(self, images: list[Tensor]) -> list[Tensor]:
        return [self.head(image.mean((1, 2))) for image in images]


def boxes() -> tuple[list[Tensor], list[Tensor]]:
    """Four pictures, three of them with four boxes: as many as there are samples."""
    return [torch.randn(3, 5 + i, 6) for i in range(4)], [torch.rand(4 - i // 3, 4) for i in range(4)]


def far(fault: list[Tensor], truth: list[Tensor]) -> Tensor:
    return torch.stack([(predicted - two).square().mean() for predicted, two in zip(fault, truth, strict=True)]).mean()


def test_what_lies_in_a_list_of_samples_is_that_samples_whatever_its_size(tmp_path: Path) -> None:
    batch_in = boxes()
    batch_in[1][2][0, 3] = float("nan")
    fault, _ = step(tmp_path, Boxes(), batch_in, far)  # type: ignore[arg-type]
    subset(fault, tensor="input batch[1][2]", names=["c.png"], sample=2)


def test_rows_of_a_sample_are_not_taken_for_samples(tmp_path: Path) -> None:
    def loss(fault: list[Tensor], truth: list[Tensor]) -> Tensor:
        fault[2] = fault[2] + (truth[2] * 0) / (truth[2] * 0)
        return far(fault, truth)

    fault, _ = step(tmp_path, Boxes(), boxes(), loss)  # type: ignore[arg-type]
    subset(fault, op="aten::div", value="NaN", samples=None)


def test_a_target_in_a_list_of_samples_is_that_samples(tmp_path: Path) -> None:
    images, _ = boxes()
    kinds = [torch.arange(4 - i // 3) for i in range(4)]
    kinds[1][3] = 9

    def loss(fault: list[Tensor], truth: list[Tensor]) -> Tensor:
        pairs = zip(fault, truth, strict=True)
        return torch.stack([F.cross_entropy(predicted.expand(len(two), 4), two) for predicted, two in pairs]).mean()

    fault, _ = step(tmp_path, Boxes(), (images, kinds), loss)  # type: ignore[arg-type]
    subset(fault, kind="target", value="9", names=["b.png"])


def test_a_weight_that_is_as_long_as_the_batch_is_no_samples(tmp_path: Path) -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 3, 1, 1))
            self.head = nn.Conv2d(4, 5, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.conv2d(x, torch._weight_norm(self.weight, torch.ones(4, 1, 1, 1))))

    net = Normed()
    with torch.no_grad():
        net.weight[2] = 0
    fault, _ = step(tmp_path, net, batch())
    subset(fault, op="aten::_weight_norm_interface", value="NaN", samples=None)
    assert fault["by"] == "0 / 0, a row of the weight is all 0"


def test_places_in_a_line_of_words_are_no_samples(tmp_path: Path) -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places = nn.Embedding(6, 5)

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(2)[:, :, :5] + self.places(torch.arange(8))[:3]

    fault, _ = step(tmp_path, Words(), batch())
    subset(fault, kind="index", op="aten::embedding", value="6", samples=None)


def test_a_gradient_that_is_only_asked_for_is_a_part_of_the_forward(tmp_path: Path) -> None:
    def loss(x: Tensor, _: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(x.square().sum(), x, create_graph=True)
        return (slope * 0 - 1).log().mean()

    fault, _ = step(tmp_path, Net(), batch(), loss)
    subset(fault, phase="loss", op="aten::log", by="log of a negative number")


def test_an_overflow_of_weights_that_have_run_away_belongs_to_no_sample(tmp_path: Path) -> None:
    net = Net()
    with torch.no_grad():
        net.head.weight.fill_(3e18)
    fault, _ = step(
        tmp_path, net, batch(), lambda x, _: (x[:, 0] * torch.tensor([1.0, 1, 2, 40]).view(4, 1, 1)).square().mean()
    )
    subset(fault, by="overflow", samples=None)
    assert fault["everyone"] > 1e10


def test_an_exception_that_was_with_a_cause_is_reported_with_that(tmp_path: Path) -> None:
    def loss(x: Tensor, truth: Tensor) -> Tensor:
        try:
            return x.view(7, -1).mean()
        except RuntimeError as error:
            raise ValueError("this step failed") from error

    fault, _ = step(tmp_path, Net(), batch(), loss)
    assert fault["exception"].startswith("RuntimeError: shape '[7, -1]' is invalid")
    assert fault["exception"].endswith("raised again as ValueError: this step failed") and fault["op"] == "aten::view"


@pytest.mark.parametrize("asked", [True, False])
def test_an_exception_after_which_the_program_goes_on_is_a_fault_where_that_is_asked(tmp_path, asked):
    net, batch_in = Net(), batch()
    job = {"out": str(tmp_path), "last_step": 0, "cell": {"trace": True, "swallowed": asked}}
    with traced(net, job) as trace:
        trace.begin(batch_in, NAMES, 0, 0)
        with contextlib.suppress(RuntimeError):
            net(batch_in[0]).view(7, -1)
        trace.end()
    fault = json.loads((tmp_path / "trace.json").read_text())["fault"]
    if asked:
        subset(fault, kind="exception", op="aten::view", swallowed=True)
    else:
        assert fault is None


def test_names_that_the_batch_has_in_another_order_are_not_assigned_to_its_rows(tmp_path: Path) -> None:
    samples = [torch.full((3, 16, 16), float(number)) for number in (3, 1, 2, 4)]
    samples[3][0, 0, 0] = float("nan")

    def make(positions: Any) -> Batch:
        chosen = sorted((samples[p] for p in positions), key=lambda sample: float(sample[1, 1, 1]), reverse=True)
        return torch.stack(chosen), torch.ones(len(chosen), 16, 16, dtype=torch.long)

    net, batch_in = Net(), make(range(4))
    with traced(net, {"out": str(tmp_path), **JOB}) as trace:
        trace.begin(batch_in, NAMES, 0, 0, anew=lambda: (NAMES, make))
        value = F.cross_entropy(net(batch_in[0]), batch_in[1])
        value.backward()
        trace.end(value)
    fault = json.loads((tmp_path / "trace.json").read_text())["fault"]
    subset(fault, tensor="input batch[0]", index=[0, 0, 0, 0], names=None)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x).sum(1)


def test_what_fails_in_torchscript_has_its_operator_and_its_line(tmp_path: Path) -> None:
    net = nn.Sequential(torch.jit.script(Words()))
    batch_in = torch.tensor([[0, 1], [2, 9], [3, 4], [0, 0]]), torch.zeros(4, dtype=torch.long)
    fault, raised = step(tmp_path, net, batch_in)
    assert isinstance(raised, RuntimeError)
    assert (fault["kind"], fault["op"], fault["value"], fault["names"]) == ("index", "aten::embedding", "9", ["b.png"])
    assert fault["exception"].startswith("IndexError: index out of range")


def test_the_words_of_others_for_nan_lead_to_the_batch_that_had_it(tmp_path: Path) -> None:
    def check(value: Tensor) -> None:
        raise ValueError("matrix contains invalid numeric entries")

    images, targets = batch()
    images[2] = torch.inf
    fault, _ = step(tmp_path, Net(), (images, targets), lambda out, _: out.clamp(0, 1).mean(), check)
    assert (fault["kind"], fault["tensor"], fault["names"]) == ("nonfinite", "input batch[0]", ["c.png"])
