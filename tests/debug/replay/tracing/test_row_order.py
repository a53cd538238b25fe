"""After a sort by length or a transpose, row 3 is not sample 3: the samples are then guesses, to be tried alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ocrlab.debug.replay.tracing import batch_rows
from tests.debug.replay.tracing.traced_step import traced

NAMES = ["a.png", "b.png", "c.png", "d.png"]
LENGTHS = torch.tensor([2, 5, 3, 4])
X = torch.ones(4, 3, 4)
ORDER = torch.tensor([1, 3, 2, 0])


@pytest.mark.parametrize(("name", "args", "kwargs", "moved"), [
    ("aten::index", (X, [ORDER]), {}, True),
    ("aten::index", (X, [torch.arange(4), ORDER]), {}, False),  # the score of each sample's class
    ("aten::index", (X, [X[:, 0, 0] > 0]), {}, True),
    ("aten::index", (X, [None, torch.arange(3)]), {}, False),
    ("aten::index", (torch.ones(7, 3), [ORDER]), {}, False),  # centres of classes
    ("aten::index_select", (X, 0, ORDER), {}, True),
    ("aten::index_select", (X, 1, torch.arange(2)), {}, False),
    ("aten::index_select", (X, 0), {"index": ORDER}, True),
    ("aten::flip", (X, [-1]), {}, False),
    ("aten::flip", (X, [0, 1]), {}, True),
    ("aten::roll", (X, [1]), {}, True),
    ("aten::roll", (X, [1], [2]), {}, False),
    ("aten::sort", (LENGTHS,), {"dim": -1, "descending": True}, True),
    ("aten::sort", (X, -1), {}, False),
    ("aten::sort", (X, 0), {}, True),
    ("aten::topk", (X, 2), {}, False),
    ("aten::topk", (LENGTHS, 2), {}, True),
    ("aten::gather", (X, 1, ORDER), {}, False),
    ("aten::masked_select", (X, X > 0), {}, True),
    ("aten::relu", (X,), {}, False),
    ("aten::sum", (X, [0, 2]), {}, True),  # of each class
    ("aten::sum", (X, [1, -1]), {}, False),
    ("aten::mean", (X,), {"dtype": None}, False),  # the loss: of no row
    ("aten::mean", (X,), {"dim": [0]}, True),
    ("aten::max", (X, 0), {}, True),
    ("aten::max", (X, -1, True), {}, False),
    ("aten::linalg_vector_norm", (X, 2, [0]), {}, True),
    ("aten::linalg_vector_norm", (X, 2, [1, 2]), {}, False),
    ("aten::scatter_add_", (torch.zeros(4), 0, ORDER, torch.ones(4)), {}, True),
    ("aten::scatter", (torch.zeros(4, 5), 1, ORDER[:, None], 1), {}, False),  # one-hot
])  # fmt: skip
def test_what_moves_rows(name: str, args: Any, kwargs: dict[str, Any], moved: bool) -> None:
    assert batch_rows.reorders_rows(name, args, kwargs, 4) is moved
    assert not batch_rows.reorders_rows(name, args, kwargs, None)


def fault(out: Path, step: Callable[[nn.Module, Tensor, Tensor], Tensor], *inputs: Tensor) -> dict[str, Any]:
    net = nn.Linear(3, 5)
    try:
        with traced(net, {"out": str(out), "last_step": 3, "cell": {"trace": True}}) as trace:
            trace.begin(inputs, NAMES, 3, 3)
            trace.end(step(net, *inputs))
    except (IndexError, ValueError):
        pass
    return dict(json.loads((out / "trace.json").read_text())["fault"])


def sorted_by_length(net: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
    x = x[lengths.sort(descending=True)[1]]
    out: Tensor = net(x / x.sum(1, keepdim=True))
    return out.square().mean()


def time_first(net: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
    x = x.transpose(0, 1).contiguous()
    out: Tensor = net(x / x.sum(2, keepdim=True))
    return out.square().mean()


def plain(net: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
    out: Tensor = net(x / x.sum(1, keepdim=True))
    return out[torch.arange(4), lengths % 5].square().mean()


def classes(net: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
    order = lengths.sort(descending=True)[1]
    return F.cross_entropy(net(x[order] + 1), lengths[order])


def of_classes(net: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
    scores = net(x + 1).softmax(1)[:, :4].mul(torch.tensor([1.0, 0.0, 1.0, 1.0]))  # as many classes as samples
    overlap = scores.sum(0)
    return (overlap / overlap).mean()


def tasks(net: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
    losses = []
    for task in x + 1:  # of four shots each, as many as there are tasks
        out: Tensor = net(task)
        losses.append((out / (out * torch.tensor([1.0, 1.0, 1.0, 0.0])[:, None])).mean())
    return torch.stack(losses).mean()


def columns(net: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
    out: Tensor = net(x[:, :3] / x[:, 1:4].sum(1, keepdim=True))
    return out.square().mean()


@pytest.mark.parametrize(("step", "shape", "guessed"), [
    (of_classes, (4, 3), True), (tasks, (4, 4, 3), True), (columns, (4, 5), None),
    (sorted_by_length, (4, 3), True), (time_first, (4, 4, 3), True), (plain, (4, 3), None),
    (classes, (4, 3), True),
])  # fmt: skip
def test_whose_it_is_is_a_guess_behind_what_moves_rows(tmp_path, step, shape, guessed):
    x = torch.rand(shape) + 1
    x[1] = 0
    assert fault(tmp_path, step, x, LENGTHS).get("guessed") == guessed
    data = torch.cat([torch.ones_like(x), x, torch.ones_like(x)])  # a batch that is a part of all data
    assert fault(tmp_path / "part", step, data[4:8], LENGTHS).get("guessed") == guessed


class Strict(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if (x == 0).any():
            raise ValueError("an empty row")
        return x


@pytest.mark.parametrize(("order", "samples"), [(None, [1]), (ORDER, None)])
def test_a_module_does_not_get_moved_rows_individually(tmp_path, order, samples):
    strict = Strict()
    x = torch.ones(4, 3)
    x[1] = 0
    with pytest.raises(ValueError, match="empty"), traced(strict, {"out": str(tmp_path), "last_step": 3,
                                                                   "cell": {"trace": True}}) as trace:  # fmt: skip
        inputs = trace.begin(x, NAMES, 3, 3)
        strict(inputs if order is None else inputs[order])
    assert json.loads((tmp_path / "trace.json").read_text())["fault"]["samples"] == samples


def test_a_value_computed_from_weights_alone_belongs_to_no_sample(tmp_path: Path) -> None:
    def step(net: nn.Module, x: Tensor, _lengths: Tensor) -> Tensor:
        weight = net.weight
        assert isinstance(weight, Tensor)
        return F.linear(x, weight / weight.norm(dim=1, keepdim=True).mul(0)).square().mean()

    assert fault(tmp_path, step, torch.rand(4, 3), LENGTHS).get("from_weights") is not True, (
        "the norm is none of the weights"
    )

    def other(net: nn.Module, x: Tensor, _lengths: Tensor) -> Tensor:
        weight = net.weight
        assert isinstance(weight, Tensor)
        with torch.no_grad():
            weight[2] = -1
        return F.linear(x, weight.log()).square().mean()

    assert fault(tmp_path / "kept", other, torch.rand(4, 3), LENGTHS)["from_weights"] is True
