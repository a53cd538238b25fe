"""Parts of the layer hooks and of the contract check that the whole does not show alone."""

from __future__ import annotations

import random
import weakref
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ocrlab.debug.instruments.layers import layer_watch
from ocrlab.debug.instruments.layers.plots import plot_layers
from ocrlab.debug.instruments.layers.step_counter import StepCounter
from ocrlab.debug.instruments.layers.table import first_nonfinite
from ocrlab.debug.instruments.step_check.call_checks import CallWatch, Stopped
from ocrlab.debug.instruments.step_check.findings import Finding, index_text, listing, shortened_list
from ocrlab.debug.instruments.step_check.forward_pass import memory_format, shape_matches
from ocrlab.debug.instruments.step_check.state_guard import StepState, learning_rates, loss_value
from ocrlab.debug.instruments.tensor_tree import dotted_tensors, tensors
from ocrlab.errors import ConfigError
from ocrlab.notebook.layers_job import find_module


@dataclass
class Out:
    logits: Tensor
    name: str


def test_tensors_come_with_their_path() -> None:
    t = torch.zeros(1)
    batch = {"loss": t, "more": [t, (t, "text")], "out": Out(t, "x"), "pair": namedtuple("Pair", "a b")(t, 3)}
    paths = ["['loss']", "['more'][0]", "['more'][1][0]", "['out'].logits", "['pair'].a"]
    assert [path for path, _ in tensors(batch, "")] == paths
    assert [name for name, _ in dotted_tensors(batch)] == ["loss", "more.0", "more.1.0", "out.logits", "pair.a"]
    packed = nn.utils.rnn.pack_sequence([torch.ones(2, 1)])
    assert [name for name, _ in (*tensors(t), *dotted_tensors(t), *tensors(packed))] == [
        "batch",
        "batch",
        "batch.data (packed)",
    ]


def test_steps_are_those_of_the_optimiser_if_there_is_any() -> None:
    model, events = nn.Linear(2, 1), list[str]()
    steps = StepCounter(
        weakref.ref(model), 2, lambda: events.append("end"), lambda: events.append("begin"), lambda: None
    )
    steps.entered("model")
    steps.entered("model")
    assert (steps.number, steps.micro, steps.looked_at) == (1, 1, False)  # each call is a step, so far
    steps.stepped(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1))
    assert not steps.led  # an optimiser of something else
    steps.stepped(torch.optim.SGD(model.parameters(), lr=0.1))
    assert steps.led and steps.number == 1
    steps.entered("model")
    assert steps.number == 1 and events.count("end") == 2


def test_the_first_fault_is_plotted_and_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with torch.no_grad():
        model[1].weight[0, 1] = float("inf")
    with layer_watch.watch(model, "*", backward=False) as watch:
        model(torch.ones(3, 2))
    rows = watch._read()
    fault = first_nonfinite(rows)
    assert fault is not None and (fault.module, fault.what, fault.inf) == ("1", "weight", 1)
    picture = plot_layers([name for name, _ in watch.modules], rows, fault)
    assert "1" in picture.alt and picture.figure.axes[0].get_xlabel()


def test_shapes_formats_and_positions_in_words() -> None:
    assert (
        shape_matches((4, 3, 8, 8), (None, 3, 8, 8))
        and not shape_matches((4, 3, 8), (None, 3, 8, 8))
        and not shape_matches((4, 2), (None, 3))
    )
    image = torch.zeros(2, 3, 4, 4)
    assert memory_format(image) == "contiguous"
    assert memory_format(image.to(memory_format=torch.channels_last)) == "channels_last"
    assert memory_format(torch.zeros(2, 1, 1, 1)) == "any" and memory_format(image[:, :, ::2]) == "other"
    assert index_text(torch.tensor([[False, False], [False, True]])) == "[1, 1]"
    assert shortened_list(list("abcdefgh")) == "a, b, c, d, e, f and 2 more"
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert listing(model, ["0.weight", "0.bias", "1.bias"]) == "0 (2 parameters), 1.bias"


def test_everything_is_put_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state, random_state = StepState(model, [optimizer]), random.getstate()
    model(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    model.eval()
    random.random()
    assert not torch.equal(model[0].weight, before["0.weight"])
    state.restore()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training and optimizer.state_dict()["state"] == {} and model[0].weight.grad is None
    assert random.getstate() == random_state
    assert learning_rates([optimizer]) == {id(p): 0.1 for p in model.parameters()}


@pytest.mark.parametrize("value", [torch.tensor(2.0), {"loss": torch.tensor(2.0)}, (torch.tensor(2.0), "more")])
def test_the_loss_in_what_a_step_returns(value: Any) -> None:
    assert float(loss_value(value)) == 2.0


def test_a_class_out_of_bounds_stops_the_step_before_the_kernel() -> None:
    findings: list[Finding] = []
    target = torch.tensor([0, 7, 1])
    with pytest.raises(Stopped), CallWatch(findings, lambda: "head", ["a.png", "b.png", "c.png"]):
        nn.functional.cross_entropy(torch.zeros(3, 4), target)
    assert findings[0].rule == "indices.bounds" and "b.png" in findings[0].where and findings[0].need == "0 to 3"
    with CallWatch(findings, lambda: "head", None):
        nn.functional.cross_entropy(torch.zeros(3, 4), torch.tensor([0, -100, 1]))  # -100 is not counted
    assert len(findings) == 1


def test_the_notebook_inspects_a_single_module() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert [named.name for named in find_module(model, "0")] == ["0"]
    with pytest.raises(ConfigError, match="3 modules"):
        find_module(model, "*")
