"""What is known of NaN and Inf beyond the batch in which they arose, and of a batch of two batches."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ocrlab.debug.replay.tracing import nonfinite_tracker as traced_values
from tests.debug.replay.tracing.traced_step import traced

NAMES = ["a.png", "b.png", "c.png", "d.png"]


def job(out: Path, **more: Any) -> dict[str, Any]:
    return {"out": str(out), "last_step": 3, "cell": {"trace": True, **more}}


def read_fault(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "trace.json").read_text())["fault"])


def test_what_the_program_stored_of_an_earlier_batch_is_reported_with_that_batch(tmp_path: Path) -> None:
    net, stored = nn.Linear(3, 5), []
    with pytest.raises(ValueError, match="not finite"), traced(net, job(tmp_path)) as trace, torch.no_grad():
        for number in range(3):
            batch = torch.randn(4, 3)
            trace.begin(batch, [f"{number}-{name}" for name in NAMES], 3, 4 + number, phase="validation")
            positive = torch.tensor([2.0, 0.0 if number == 1 else 1.0, 3.0, 1.0])
            stored.append((net(batch).sum(1) * 0 + positive - positive) / positive)
        if not torch.cat(stored).isfinite().all():
            raise ValueError("recall is not finite")
    fault = read_fault(tmp_path)
    assert (fault["op"], fault["by"], fault["micro"]) == ("aten::div", "0 / 0", 5)
    assert (fault["phase"], fault["names"]) == ("validation", ["1-b.png"])


@pytest.mark.parametrize(("speaks", "op"), [(True, "aten::log10"), (False, None)])
def test_what_is_met_again_behind_the_last_batch_is_followed_to_its_step(tmp_path, speaks, op):
    net, stored = nn.Linear(3, 5), []
    with pytest.raises(ValueError, match="PSNR"), traced(net, job(tmp_path, trace_from=1)) as trace:
        for number in (1, 2, 3):
            batch = trace.begin(torch.rand(4, 3) + 1, [f"{number}-{name}" for name in NAMES], number, number)
            stored.append(torch.log10(batch.sum(1) * torch.tensor([1.0, 1.0, 0.0 if number == 2 else 1.0, 1.0])))
            loss = net(batch).square().mean()
            loss.backward()
            trace.end(loss)
        trace.behind()
        if torch.isinf(torch.cat(stored)).any():
            raise ValueError("PSNR is inf" if speaks else "no PSNR")
    fault = json.loads((tmp_path / "trace.json").read_text())["fault"]
    assert (fault and fault["op"]) == op
    assert fault is None or (fault["step"], fault["names"]) == (2, ["2-c.png"])


def test_memory_that_is_used_anew_has_no_history() -> None:
    values = traced_values.NonFiniteTracker(count=4)
    tensor = torch.tensor([1.0, float("nan")])
    birth = values.new(tensor, "output", {"op": "aten::div"})
    values.births[traced_values.pointer(tensor)] = birth
    earlier = values.carry_over({"micro": 1})
    later = traced_values.NonFiniteTracker(count=4, earlier=earlier)
    assert later._older(tensor) is birth and birth.batch == {"micro": 1}
    tensor[1] = float("inf")
    assert later._older(tensor) is None
    tensor[1] = float("nan")
    weight = {traced_values.pointer(tensor): "weight w"}
    assert traced_values.NonFiniteTracker(weight, count=4, earlier=earlier)._older(tensor) is None


def test_a_sample_of_either_of_two_batches_has_its_own_name(tmp_path: Path) -> None:
    net = nn.Linear(3, 5)
    batch = [(torch.randn(4, 3), torch.zeros(4, dtype=torch.long)) for _ in range(2)]
    batch[1][1][2] = 11
    with pytest.raises(IndexError), traced(net, job(tmp_path)) as trace:
        trace.begin(batch, [f"{name} + other-{name}" for name in NAMES], 3, 3)
        for rows, truth in batch:
            F.cross_entropy(net(rows), truth)
    assert (read_fault(tmp_path)["tensor"], read_fault(tmp_path)["names"]) == ("target batch[1][1]", ["other-c.png"])


def test_a_row_of_which_a_mask_leaves_nothing_is_reported(tmp_path: Path) -> None:
    hidden = torch.zeros(4, 5, dtype=torch.bool)
    hidden[2] = True
    net = nn.Linear(3, 5)
    with traced(net, job(tmp_path)) as trace:
        batch = trace.begin(torch.randn(4, 3), NAMES, 3, 3)
        loss = net(batch).masked_fill(hidden, float("-inf")).softmax(-1).square().mean()
        trace.end(loss)
    assert (read_fault(tmp_path)["by"], read_fault(tmp_path)["names"]) == (traced_values.EMPTY, ["c.png"])


class Teacher(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(3, 5), nn.Linear(4, 5)])

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([head(x) for head in self.heads])


@pytest.mark.parametrize("before", [True, False])
def test_a_teacher_beside_the_model_is_no_loss_and_has_a_path(tmp_path: Path, before: bool) -> None:
    net, teacher = nn.Linear(3, 5), Teacher()
    with pytest.raises(RuntimeError), traced(net, job(tmp_path)) as trace:
        batch = trace.begin(torch.randn(4, 3), NAMES, 3, 3)
        if not before:
            net(batch)
        with torch.set_grad_enabled(before):
            teacher(batch)
    fault = read_fault(tmp_path)
    assert (fault["phase"], fault["path"], fault["module"]) == ("forward", "Teacher.heads.1", "Linear 4->5")


def test_infinite_sums_that_cancel_are_an_overflow_of_no_sample(tmp_path: Path) -> None:
    net = nn.Linear(4, 2)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1e30, -1e30, 1e30, -1e30], [-1e30, 1e30, -1e30, 1e30]]))
    with traced(net, job(tmp_path)) as trace:
        batch = trace.begin(torch.ones(4, 4), NAMES, 3, 3)
        loss = net(batch * 1e20).square().mean()
        trace.end(loss)
    fault = read_fault(tmp_path)
    assert (fault["op"], fault["by"], fault["samples"]) == ("aten::addmm", traced_values.CANCELLED, None)
    assert fault["everyone"] > 1e10


def rows_of(data: Tensor, *rows: int) -> list[Any]:
    return [data[row] for row in rows]


@pytest.mark.parametrize("apart", [False, True])
def test_among_views_of_the_same_tensor_the_right_sample_is_named(tmp_path: Path, apart: bool) -> None:
    net, data = nn.Linear(3, 5), torch.randn(10, 3)
    data[4, 1] = float("nan")
    with traced(net, job(tmp_path)) as trace:
        batch = trace.begin(rows_of(data, 7, 4, 1, 9), NAMES, 3, 3)
        outputs = torch.stack([net(row) for row in batch]) if apart else net(torch.stack(batch))
        trace.end(outputs.square().mean())
    fault = read_fault(tmp_path)
    assert (fault["tensor"], fault["index"], fault["names"]) == ("input batch[1]", [1], ["b.png"])


def test_a_part_of_windows_that_overlap_belongs_to_no_sample() -> None:
    data = torch.arange(12.0)
    parts = [(*traced_values.extent(data[at : at + 6]), at) for at in (0, 3, 6)]
    assert traced_values._owners(parts, data[3:9]) == [3]
    assert traced_values._owners(parts, data[10:12]) == [6]
    assert traced_values._owners(parts, data[4:6]) is None
    assert traced_values._owners(parts, data) is None
    assert traced_values._owners(parts[:1], data) == [0]


def test_a_learning_rate_that_is_infinite_is_reported(tmp_path: Path) -> None:
    net = nn.Linear(3, 5)
    optimizer = torch.optim.SGD(net.parameters(), float("inf"))
    with traced(net, job(tmp_path), optimizers=optimizer) as trace:
        batch = trace.begin(torch.rand(4, 3), NAMES, 3, 3)
        loss = net(batch).square().mean()
        loss.backward()
        optimizer.step()
        trace.end(loss)
    assert (read_fault(tmp_path)["phase"], read_fault(tmp_path)["by"]) == ("optimiser", "the learning rate is inf")
