"""The picture of a value holds what can be put back, and says what is too much; what it does not know is left alone."""

from __future__ import annotations

import enum
import json
import logging
import types
from collections import Counter, OrderedDict, defaultdict, deque

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ocrlab.recording import pictures
from ocrlab.recording.pictures import Given, Picture

NOTHING = Given([], [])


class Colour(enum.Enum):
    RED = 1


class Own:
    pass


class OwnList(list):
    pass


@pytest.mark.parametrize(
    "value",
    [
        logging.getLogger("x"), Colour.RED, Own, pytest, len, lambda: 3, OwnList([1]), ValueError("x"), 1j, b"bytes",
        TensorDataset(torch.zeros(2)), DataLoader([1, 2]), [Own, len], {Own: 1}, (x for x in "abc"), "x" * 20000,
        np.array(["text"]), np.array([1j]), torch.zeros(2, device="meta"), torch.zeros(2, requires_grad=True) * 2,
        torch.eye(2).to_sparse(), {len}, torch.default_generator, nn.Linear(1, 1).register_forward_hook(len),
    ],
)  # fmt: skip
def test_what_cannot_be_put_back_has_no_picture(value):
    assert Picture(value, NOTHING).is_empty


@pytest.mark.parametrize(
    "value,text",
    [
        ([1, 2.0, None, True, "a"], '["l", [1, 2.0, null, true, "a"]]'),
        ((1, [2]), '["u", [1, ["l", [2]]]]'),
        ({1: "a", "b": {}, (1, "x"): 3}, '["k", [[1, "a"], ["b", ["k", []]], [["u", [1, "x"]], 3]]]'),
        (deque([1], maxlen=3), '["d", [1], 3]'),
        ({2}, '["s", [2]]'),
        (OrderedDict(a=1), '["ko", [["a", 1]]]'),
        (Counter("a"), '["kc", [["a", 1]]]'),
        (defaultdict(list, a=[1]), '["kd", [["a", ["l", [1]]]]]'),
        (np.float32(0.5), '["n", "<f4", 0.5]'),
        (np.array([[1, 2]], dtype=np.int16), '["a", "<i2", [1, 2], [1, 2]]'),
        (types.SimpleNamespace(a=1, b=len), '["o", "types.SimpleNamespace", {"a": 1}]'),
        (Own(), f'["o", "{__name__}.Own", {{}}]'),  # it may be given attributes later
        (torch.zeros(2), '{"t": 0}'),
        (nn.Parameter(torch.zeros(2)), '{"t": 0, "grad": true}'),
        ({"net": len, "a": 1}, '["k", [["net", {}], ["a", 1]]]'),
        ([0] * 40_000, '{"n": 40000}'),
    ],
)
def test_a_picture_is_text(value, text):
    picture = Picture(value, NOTHING)
    assert picture.text == text and json.loads(text) is not None
    assert picture.too_many == (["a list of 40000"] if "40000" in text else [])


def test_a_long_list_of_numbers_is_a_tensor():
    picture = Picture([0.5] * 1000, NOTHING)
    assert picture.text == '["l", {"t": 0}]' and picture.tensors[0].dtype == torch.float64
    assert Picture([1] * 1000, NOTHING).tensors[0].dtype == torch.int64
    assert not Picture([1, 0.5] * 100, NOTHING).tensors and not Picture([1 << 70] * 100, NOTHING).tensors
    assert Picture(np.zeros(5 << 20), NOTHING).too_many == ["an array of 40 MiB"]
    frozen = np.zeros((60, 60)).T
    frozen.flags.writeable = False  # of which torch would warn
    assert Picture(frozen, NOTHING).bytes() == 28_800
    assert Picture(np.zeros(2000), NOTHING).text == '["A", "<f8", [2000], {"t": 0}]'


def test_what_was_given_is_in_no_picture():
    net = nn.Sequential(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(net.parameters(), momentum=0.9)
    net(torch.ones(2)).sum().backward()
    optimizer.step()
    given = Given([net], [optimizer])
    for value in (net, net[0], optimizer, [*net.parameters()], nn.ModuleDict({"a": net}), {"a": net[0].weight.data}):
        assert Picture(value, given).is_empty, value
    teacher = nn.ModuleDict({"student": net, "own": nn.Linear(2, 2)})
    assert len(Picture(teacher, given).tensors) == 2
    second = torch.optim.Adam(teacher["own"].parameters())
    assert json.loads(Picture(second, given).text)[:2] == ["p", "torch.optim.adam.Adam"]


def test_changes_of_values_are_seen_however_they_are_made():
    net, numbers, large = nn.Linear(3, 3), np.zeros(5000), torch.zeros(100_000)
    last = torch.zeros(8, 8, 8, 8).to(memory_format=torch.channels_last)

    def marks(value):
        picture = Picture(value, NOTHING)
        return picture.text, picture.places(), picture.values()

    for value, change in (
        (net, lambda: net.weight.data.add_(1)),
        (net, lambda: net.eval()),
        (numbers, lambda: numbers.__setitem__(77, 1.0)),
        (large, lambda: large.data.add_(1)),
        (large, lambda: large[77].add_(1)),
        (last, lambda: last.data.add_(1)),
    ):
        before = marks(value)
        assert marks(value) == before
        change()
        assert marks(value) != before


def test_each_thing_is_in_one_picture_and_rings_end():
    ring = Own()
    ring.me, ring.values = ring, [1]
    seen = {}
    assert Picture(ring, NOTHING, seen).text.endswith('{"values": ["l", [1]]}]')
    assert Picture({"again": ring, "values": ring.values}, NOTHING, seen).text == (
        '["k", [["again", {"s": 1}], ["values", {"s": 1}]]]'
    )
    deep: list = []
    for _ in range(50):
        deep = [deep]
    assert len(Picture([1, deep], NOTHING).text) < 200


def test_classes_of_libraries_are_told_from_those_of_the_program():
    assert pictures.is_programs(__name__) and pictures.is_programs("__main__")
    assert not any(map(pictures.is_programs, ("torch", "json", "ocrlab.recording.found", "builtins", "unknown")))
