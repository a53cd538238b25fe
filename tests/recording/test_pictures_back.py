"""A picture is put back in place where that can be, and never into something else."""

from __future__ import annotations

import json
import random
from collections import Counter, OrderedDict, defaultdict, deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from ocrlab.recording.pictures import Given, Picture
from ocrlab.recording.pictures_back import Back, UnfitError

NOTHING = Given([], [])


def back(value, there, given=NOTHING):
    """Return what is there once the picture of a value is put back."""
    picture = Picture(value, NOTHING)
    held = [t.clone() for t in picture.tensors]
    return Back(held, given).value(json.loads(picture.text), there)


@pytest.mark.parametrize(
    "value,there",
    [
        ([1, 2.5, None], [0]), ({"a": [1], "c": 3}, {"a": [0, 0], "b": 2}), (deque([1, 2], maxlen=4), deque(maxlen=4)),
        ({1, 2}, {3}), (OrderedDict(a=1), OrderedDict(b=1)), (Counter("aab"), Counter()), ([0.5] * 100, []),
        (defaultdict(int, a=1), defaultdict(int)), (deque([1] * 100), deque()), ({(1, "a"): 2}, {}),
    ],
)  # fmt: skip
def test_containers_are_filled_anew_in_place(value, there):
    made = back(value, there)
    assert made is there and made == value and type(made) is type(value)


@pytest.mark.parametrize(
    "value", [(1, (2, "a")), frozenset({1}), 3, "text", None, [1, [2]], deque([1], maxlen=2), Counter("a"), {"a": {2}}]
)
def test_what_is_not_there_yet_is_made(value):
    made = back(value, None)
    assert made == value and type(made) is type(value) and getattr(made, "maxlen", 0) == getattr(value, "maxlen", 0)


def test_tensors_and_arrays_keep_their_memory():
    for value in (torch.rand(3), np.random.default_rng(0).random(5), np.arange(3000.0)):
        there = value * 0
        assert back(value, there) is there and (there == value).all()
        other = back(value, None)
        assert other.dtype == value.dtype and (other == value).all()
    assert isinstance(back(np.float32(2), None), np.float32)
    held = nn.Parameter(torch.zeros(2))
    assert isinstance(back(nn.Parameter(torch.ones(3)), held), nn.Parameter) and held.sum() == 0
    assert back(torch.ones(2, requires_grad=True), None).requires_grad


def test_two_things_that_were_one_at_the_beginning_are_two_again():
    one = torch.zeros(2)
    made = back({"now": torch.ones(2), "before": torch.full((2,), 3.0)}, {"now": one, "before": one})
    assert made["now"].sum() == 2 and made["before"].sum() == 6
    lists: list = []
    made = back([[1], [2]], [lists, lists])
    assert made == [[1], [2]]


def test_what_was_left_out_stays_and_what_was_given_is_not_written_to():
    made = back({"net": len, "a": 1}, there := {"net": max, "a": 0, "new": 1})
    assert made is there and made == {"net": max, "a": 1}
    assert back([len, 1], [max, 0]) == [max, 1]
    for value, there in (([len, 1], [max]), (defaultdict(list, a=1), None), ([len, 1], None)):
        with pytest.raises(UnfitError):
            back(value, there)
    net = nn.Linear(2, 2, bias=False)
    before = net.weight.clone()
    made = back(torch.ones(2, 2), net.weight.data, Given([net], []))
    assert torch.equal(net.weight, before) and made.sum() == 4


def test_objects_take_what_they_had_and_only_of_the_same_type():
    value, there = SimpleNamespace(a=[1], b=2, net=len, new=[3]), SimpleNamespace(a=[], b=0, net=max)
    held = there.a
    assert back(value, there) is there and there.a is held and vars(there) == {"a": [1], "b": 2, "net": max, "new": [3]}
    for other in (None, nn.Linear(1, 1)):
        with pytest.raises(UnfitError):
            back(value, other)


def test_generators_go_on_where_they_were():
    for make, draw in (
        (random.Random, lambda one: one.gauss(0, 1)),
        (np.random.default_rng, lambda one: one.normal()),
        (np.random.RandomState, lambda one: one.normal()),
        (lambda seed: np.random.Generator(np.random.MT19937(seed)), lambda one: one.normal()),
        (lambda seed: np.random.Generator(np.random.Philox(seed)), lambda one: one.integers(99)),
        (lambda seed: torch.Generator().manual_seed(seed), lambda one: torch.rand(1, generator=one).item()),
    ):
        one, other = make(1), make(2)
        draw(one)
        assert back(one, other) is other
        assert [draw(one) for _ in range(5)] == [draw(other) for _ in range(5)]
        with pytest.raises(UnfitError):
            back(one, None)


def test_modules_optimisers_and_schedulers_are_as_they_were():
    torch.manual_seed(0)

    def made():
        net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        net.register_buffer("bank", torch.zeros(2), persistent=False)
        optimizer = torch.optim.Adam(net.parameters())
        return net, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 20)

    (net, optimizer, scheduler), again = made(), made()
    for _ in range(3):
        net(torch.rand(4, 2)).square().sum().backward()
        optimizer.step()
        scheduler.step()
    net.bank += 1
    net[1].eval()
    for mine, other in zip((net, optimizer, scheduler), again, strict=True):
        assert back(mine, other) is other
    assert all(torch.equal(a, b) for a, b in zip(net.buffers(), again[0].buffers(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again[0].parameters(), strict=True))
    assert again[0].training and not again[0][1].training
    assert str(again[1].state_dict()) == str(optimizer.state_dict())
    assert again[2].last_epoch == 3 and again[2].get_last_lr() == scheduler.get_last_lr()
