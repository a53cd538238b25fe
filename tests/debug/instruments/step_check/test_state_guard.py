"""What a check takes back beside the weights: the batch, and what the model does not list."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ocrlab.debug.instruments.step_check import checker
from tests.debug.instruments.step_check.test_forward_pass import classes, data, one, rules


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(inputs.sub_(5.0))  # type: ignore[no-any-return]


def test_a_batch_that_is_written_into_is_told_and_put_back() -> None:
    samples, targets = data(32)
    before = samples.clone()
    report = checker.check(InPlace(), (samples[:16], targets[:16]), classes)
    found = one(report, "batch.written")
    assert found.where == "batch.0" and found.judgement == "fail" and "view of the data" in found.got
    assert torch.equal(samples, before)
    alone = before[:16].clone()
    assert one(checker.check(InPlace(), (alone, targets[:16]), classes), "batch.written").judgement == "warn"
    assert torch.equal(alone, before[:16])
    assert rules(checker.check(nn.Linear(8, 3), (alone, targets[:16]), classes)) == set()


def test_a_batch_that_is_taken_apart_or_reshaped_is_whole_again() -> None:
    samples, targets = data()
    batch = {"inputs": samples.clone(), "rest": [targets]}

    def taken(model: nn.Module, given: dict[str, Any]) -> Tensor:
        given["inputs"].unsqueeze_(1)
        return nn.functional.cross_entropy(model(given["inputs"]).squeeze(1), given["rest"].pop())

    report = checker.check(nn.Linear(8, 3), batch, taken)
    assert not any(text.startswith("eval mode") for text in report.unchecked)
    assert torch.equal(batch["inputs"], samples) and batch["rest"] == [targets]


class Hidden(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(8, 8), nn.BatchNorm1d(8)]
        self.last = nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.layers:
            inputs = layer(inputs)
        return self.last(inputs)  # type: ignore[no-any-return]


def test_modules_in_a_plain_list_are_told_and_left_as_they_were() -> None:
    model, outside = Hidden(), nn.Linear(8, 8)
    norm = model.layers[1]
    assert isinstance(norm, nn.BatchNorm1d) and norm.running_mean is not None

    def loss(net: nn.Module, given: Any) -> Tensor:
        return classes(net, (outside(given[0]), given[1]))

    report = checker.check(model, data(), loss, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert one(report, "weights.unlisted").where == "layers"
    assert "4 parameters" in one(report, "weights.unlisted").got
    assert all(p.grad is None for part in (*model.layers, outside) for p in part.parameters())
    assert not norm.running_mean.any()
    every = [*model.parameters(), *(p for layer in model.layers for p in layer.parameters())]
    assert "weights.unlisted" not in rules(
        checker.check(model, data(), classes, optimizer=torch.optim.SGD(every, lr=0.1))
    )
    for layer in model.layers:
        layer.requires_grad_(False)  # a teacher
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert "weights.unlisted" not in rules(checker.check(model, data(), classes, optimizer=optimizer))


class Positions(nn.Module):
    """A tensor of places that is a plain one, a parameter, one in a list, or not trained."""

    def __init__(self, way: str) -> None:
        super().__init__()
        places = torch.zeros(1, 8, requires_grad=way != "fixed")
        self.places = nn.Parameter(places.detach()) if way == "parameter" else places if way != "list" else [places]
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + (self.places[0] if isinstance(self.places, list) else self.places))


@pytest.mark.parametrize(
    ("way", "where"), [("plain", "places"), ("list", "places[0]"), ("parameter", ""), ("fixed", "")]
)
def test_a_tensor_that_is_no_parameter_is_told_where_it_gets_a_gradient(way: str, where: str) -> None:
    model = Positions(way)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    report = checker.check(model, data(), classes, optimizer=optimizer)
    told = [finding.where for finding in report.findings if finding.rule == "weights.unlisted"]
    assert told == ([where] if where else [])
    held = model.places[0] if isinstance(model.places, list) else model.places
    assert held.grad is None  # as it was
