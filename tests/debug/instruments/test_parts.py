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
from ocrlab.debug.instruments.layers.plots import drawn
from ocrlab.debug.instruments.layers.step_counter import Steps
from ocrlab.debug.instruments.layers.table import first
from ocrlab.debug.instruments.step_check.call_checks import Calls, Stopped
from ocrlab.debug.instruments.step_check.finding_text import grouped, index, some
from ocrlab.debug.instruments.step_check.findings import Finding
from ocrlab.debug.instruments.step_check.forward_pass import fits, memory_format
from ocrlab.debug.instruments.step_check.state_guard import Kept, rates, scalar
from ocrlab.debug.instruments.tensor_tree import dotted_tensors, tensors
from ocrlab.errors import ConfigError
from ocrlab.notebook.layers_job import one


@dataclass
class Out:
    logits: Tensor
    name: str


def test_tensors_are_found_with_the_way_to_them() -> None:
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


def test_steps_are_the_optimisers_where_there_is_one() -> None:
    model, said = nn.Linear(2, 1), list[str]()
    steps = Steps(weakref.ref(model), 2, lambda: said.append("end"), lambda: said.append("begin"), lambda: None)
    steps.entered("model")
    steps.entered("model")
    assert (steps.number, steps.micro, steps.looked_at) == (1, 1, False)  # each call is a step, so far
    steps.stepped(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1))
    assert not steps.led  # an optimiser of something else
    steps.stepped(torch.optim.SGD(model.parameters(), lr=0.1))
    assert steps.led and steps.number == 1
    steps.entered("model")
    assert steps.number == 1 and said.count("end") == 2


def test_the_first_fault_is_drawn_and_said() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with torch.no_grad():
        model[1].weight[0, 1] = float("inf")
    with layer_watch.watch(model, "*", backward=False) as seen:
        model(torch.ones(3, 2))
    rows = seen._read()
    fault = first(rows)
    assert fault is not None and (fault.module, fault.what, fault.inf) == ("1", "weight", 1)
    picture = drawn([name for name, _ in seen.modules], rows, fault)
    assert "1" in picture.alt and picture.figure.axes[0].get_xlabel()


def test_shapes_formats_and_positions_in_words() -> None:
    assert fits((4, 3, 8, 8), (None, 3, 8, 8)) and not fits((4, 3, 8), (None, 3, 8, 8)) and not fits((4, 2), (None, 3))
    image = torch.zeros(2, 3, 4, 4)
    assert memory_format(image) == "contiguous"
    assert memory_format(image.to(memory_format=torch.channels_last)) == "channels_last"
    assert memory_format(torch.zeros(2, 1, 1, 1)) == "any" and memory_format(image[:, :, ::2]) == "other"
    assert index(torch.tensor([[False, False], [False, True]])) == "[1, 1]"
    assert some(list("abcdefgh")) == "a, b, c, d, e, f and 2 more"
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert grouped(model, ["0.weight", "0.bias", "1.bias"]) == "0 (2 parameters), 1.bias"


def test_everything_is_put_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    kept, drawn_before = Kept(model, [optimizer]), random.getstate()
    model(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    model.eval()
    random.random()
    assert not torch.equal(model[0].weight, before["0.weight"])
    kept.restore()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training and optimizer.state_dict()["state"] == {} and model[0].weight.grad is None
    assert random.getstate() == drawn_before
    assert rates([optimizer]) == {id(p): 0.1 for p in model.parameters()}


@pytest.mark.parametrize("given", [torch.tensor(2.0), {"loss": torch.tensor(2.0)}, (torch.tensor(2.0), "more")])
def test_the_loss_is_found_in_what_a_step_gives(given: Any) -> None:
    assert float(scalar(given)) == 2.0


def test_a_class_out_of_bounds_stops_the_step_before_the_kernel() -> None:
    found: list[Finding] = []
    target = torch.tensor([0, 7, 1])
    with pytest.raises(Stopped), Calls(found, lambda: "head", ["a.png", "b.png", "c.png"]):
        nn.functional.cross_entropy(torch.zeros(3, 4), target)
    assert found[0].rule == "indices.bounds" and "b.png" in found[0].where and found[0].need == "0 to 3"
    with Calls(found, lambda: "head", None):
        nn.functional.cross_entropy(torch.zeros(3, 4), torch.tensor([0, -100, 1]))  # -100 is not counted
    assert len(found) == 1


def test_the_notebook_looks_at_one_module() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert [named.name for named in one(model, "0")] == ["0"]
    with pytest.raises(ConfigError, match="3 modules"):
        one(model, "*")
