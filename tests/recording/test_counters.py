"""What a program counts by itself goes on in a replay where it was, and nothing else of it is touched."""

from __future__ import annotations

import builtins
import contextlib
import os
import sys
import weakref

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ocrlab.flight import ring
from ocrlab.recording import counters
from ocrlab.recording.loops import recording
from tests.recording.test_loops import replay

made = 0  # of batches, by this module


class Counting(nn.Linear):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (1 + self.calls % 5)


class Trainer:
    """Counts in every place that a program has."""

    def __init__(self, folder, wrapped=lambda batches: batches):
        torch.manual_seed(0)
        self.folder, self.wrapped, self.steps, self.best, self.process = folder, wrapped, 0, None, os.getpid()
        self.net = nn.Sequential(Counting(4, 4), nn.Dropout(0.2), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.factors = []

    def train(self):
        global made
        seen, made = 0, 0
        with recording(self.folder, self.net, self.optimizer, snapshot_every=7) as rec:
            for _ in rec.epochs(1):
                seen = self.epoch(rec, seen)

    def epoch(self, rec, seen):
        global made
        mine = 0.0
        for i, (x,) in enumerate(self.wrapped(rec.batches(DataLoader(TensorDataset(torch.randn(192, 4)), 4)))):
            made, seen, mine = made + 1, seen + len(x), mine + 0.5
            factor = 1 + i / 3 + (self.steps % 7) + made / 5 + seen / 11 + mine / 13
            loss = self.net(x).square().mean() * factor
            self.best = min(loss.item(), self.best or loss.item())
            self.optimizer.zero_grad()
            rec.loss(loss + self.best).backward()
            self.optimizer.step()
            self.steps += 1
            if rec.tape is not None and rec.tape.snapshots.thread is not None:
                rec.tape.snapshots.thread.join()
        return seen


def passed_on(batches):
    yield from batches


@pytest.mark.parametrize("wrapped", [lambda batches: batches, passed_on, iter])
def test_losses_that_depend_on_counting_are_equal_bit_for_bit(tmp_path, monkeypatch, wrapped):
    Trainer(tmp_path, wrapped).train()
    assert ring.read(ring.find(tmp_path)[0]).snapshots[-1].micro, "it begins in the middle of a walk"
    usual = builtins.enumerate
    again = Trainer(tmp_path, wrapped)
    result = replay(tmp_path, monkeypatch, again.train)
    assert builtins.enumerate is usual
    assert result["finished"] and len(result["steps"]) > 5
    assert all(step["equal"] for step in result["steps"])
    assert (again.steps, made) == (48, 48) and again.process == os.getpid()


def given(values):
    counters.put(values, sys._getframe(1), [])


def program(port, speed, name, flag):
    late = 1
    given({"locals program": {"port": 7, "speed": 2.5, "name": 3, "flag": True, "unknown": 4, "late": "text"}})
    return port, speed, name, flag, late


def test_what_has_not_changed_or_is_another_thing_now_stays():
    assert program(1, 2, "a", None) == (7, 2.5, "a", True, 1)
    first = {"globals x": {"a": 1, "b": 2}}
    now = {"globals x": {"a": 1, "b": 3, "c": 0}, "locals y": {"d": 1}}
    assert counters.changed(now, first) == {"globals x": {"b": 3, "c": 0}, "locals y": {"d": 1}}
    assert counters.changed(first, first) == {}


def test_numbers_of_libraries_modes_and_objects_are_not_taken():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.25))
    numbers = counters.taken(sys._getframe(), [model])
    assert "training" not in numbers["module 0 0"] and numbers["module 0 1"]["p"] == 0.25
    assert all(place.startswith(("module", "locals test_", "globals tests.")) for place in numbers), list(numbers)
    model[1].p = 0.5
    counters.put(numbers, None, [model])
    assert model[1].p == 0.25


def test_enumerate_is_the_usual_one_for_everything_else():
    usual = builtins.enumerate

    def batches():
        counters.begins(10)
        yield from "ab"

    counters.listen()
    assert builtins.enumerate is usual, "what compiles or pickles it is no part of the program"
    before = enumerate("xyz")
    assert next(before) == (0, "x")
    assert [*enumerate(batches(), 1)] == [(11, "a"), (12, "b")]
    assert enumerate is usual and next(before) == (1, "y")
    assert [*enumerate("ab", 5)] == [(5, "a"), (6, "b")]
    counters.listen()
    assert enumerate[int] == usual[int]
    counters.begins(-1)  # nobody knows the place
    assert [*counters.Enumerate(batches())] == [(0, "a"), (1, "b")]


def looked_at():
    return counters.taken(sys._getframe(1), [])


def test_nothing_of_the_program_is_kept_or_changed_by_looking():
    def training():
        step, batch = 3, type("Batch", (), {})()
        held = weakref.ref(batch)
        numbers = looked_at()
        del batch
        return held(), numbers[f"locals {training.__qualname__}"], step

    def asking():
        config = locals()
        step = 3
        looked_at()
        return [*config], step

    def evaluating():
        step = nn.Linear(1, 1).eval().in_features
        return looked_at()[f"locals {evaluating.__qualname__}"], eval.__name__, step

    def only_methods():
        step = nn.Linear(1, 1).eval().in_features
        return looked_at()[f"locals {only_methods.__qualname__}"], step

    assert training() == (None, {"step": 3}, 3)
    assert only_methods() == ({"step": 1}, 1)
    with contextlib.suppress(KeyError):  # before PEP 667
        assert evaluating()[0] == {"step": 1}
    assert asking() == ([], 3)


class Refusing:
    """Gives nothing away, not even that it has no such attribute."""

    __slots__ = ()

    def __getattr__(self, name):
        raise KeyError(name)

    def train(self, numbers):
        given({})  # as in a replay of it
        return numbers.changed([nn.Linear(1, 1)])


def test_what_cannot_be_looked_at_costs_no_snapshot():
    numbers = counters.Counters()
    assert Refusing().train(numbers) == {} and numbers.first is None
    assert isinstance(numbers.changed([nn.Linear(1, 1)]), dict) and numbers.first


def test_whole_numbers_of_the_beginning_are_kept_but_for_those_of_modules():
    kept = counters.Counters()
    assert kept.began() == {}
    kept.first = {"locals train": {"first": 5, "best": 0.5, "new": True}, "module 0 ": {"width": 3}}
    assert kept.began() == {"locals train": {"first": 5}}
