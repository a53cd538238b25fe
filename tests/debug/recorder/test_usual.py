"""What is done in C is what Python does: the same records, the same notes; and what is unusual is left to Python."""

from __future__ import annotations

import contextlib
import os
import random
from dataclasses import asdict

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ocrlab.debug.flight_record import ring_format, ring_writer
from ocrlab.debug.recorder import rng_state, step_recorder, usual
from ocrlab.debug.recorder.manual_loop import recording

STEPS = 150
needed = pytest.mark.skipif(
    rng_state.quick is None, reason="the recorder's part in C was not built: make setup, with cc"
)


class Data(Dataset):
    def __len__(self):
        return 4 * STEPS

    def __getitem__(self, index):
        return torch.full((8,), index / 600), torch.tensor(index % 3)


class Named(Data):
    def __getitem__(self, index):
        return {"x": torch.full((8,), index / 600), "name": f"page_{index}.png"}


class Drawing(Data):
    def __getitem__(self, index):
        return torch.randn(8) + random.random() + np.random.rand(), torch.tensor(index % 3)  # noqa: NPY002


class Noisy(Data):
    def __getitem__(self, index):
        return torch.randn(8) + torch.rand(400)[:8]  # a batch uses up torch's words twice


DATA = {
    "tensors in a list": lambda: [[torch.ones(4, 8)]] * STEPS,
    "tensors": lambda: [torch.ones(4, 8)] * STEPS,
    "a loader": lambda: DataLoader(Data(), batch_size=4, shuffle=True),
    "a loader with workers": lambda: DataLoader(Drawing(), batch_size=4, num_workers=2),
    "a loader that draws": lambda: DataLoader(Drawing(), batch_size=4),
    "a loader with workers that draw nothing": lambda: DataLoader(Data(), batch_size=4, num_workers=2),
    "a loader that uses up words": lambda: DataLoader(Noisy(), batch_size=4),
    "names in the batch": lambda: DataLoader(Named(), batch_size=4),
}


def plainly(rec, optimizer, forward, each):
    optimizer.zero_grad()
    rec.loss(forward()).backward()
    each()
    optimizer.step()


def with_a_closure(rec, optimizer, forward, each):
    def closure():
        optimizer.zero_grad()
        loss = rec.loss(forward())
        loss.backward()
        each()
        return loss

    optimizer.step(closure)


def with_a_named_closure(rec, optimizer, forward, each):
    optimizer.zero_grad()
    optimizer.step(closure=lambda: (rec.loss(forward()).backward(), each()))


def with_a_closure_that_raises(rec, optimizer, forward, each):
    def closure():
        rec.loss(forward())
        raise ArithmeticError

    if rec.micro % 3 == 0:
        with contextlib.suppress(ArithmeticError):
            optimizer.step(closure)
    plainly(rec, optimizer, forward, each)


def trained(folder, data, *, each=lambda number, net, optimizer: None, groups=1, step=plainly):
    """Train for a while; returns the steps of the ring without what differs from run to run, and what was learned."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    parts = [{"params": [p], "lr": 0.01 * (i + 1)} for i, p in enumerate(net.parameters())]
    optimizer = torch.optim.SGD(parts if groups > 1 else net.parameters(), lr=0.01)
    with recording(folder, net, optimizer, snapshot_every=40) as rec:
        told = rec.tape.learning.told
        for number, batch in enumerate(rec.batches(data)):
            x = batch["x"] if isinstance(batch, dict) else batch[0] if isinstance(batch, list) else batch
            forward = lambda x=x: net(x).square().mean()  # noqa: E731
            step(rec, optimizer, forward, lambda number=number: each(number, net, optimizer))
    steps = [asdict(step) for step in ring_writer.read(ring_writer.find(folder)[0]).steps]
    for step in steps:
        del step["memory"], step["time"]
        for states in (step["random"], step["loaded"]):  # in memory, what is not set may be anything
            states.update({name: rng_state.dense(state) for name, state in states.items() if name == "torch"})
    return steps, [told.batches, told.steps, told.losses, told.last, told.bare, told.unrated, told.looks]


def without(monkeypatch):
    monkeypatch.setattr(rng_state, "quick", None)
    monkeypatch.setattr(rng_state, "MARKS", None)


def counting(monkeypatch):
    """Return a list that grows by the micro-batch of each record that Python writes."""
    seen, begin = [], step_recorder.Tape.begin

    def counted(self, number, micro, *rest):
        seen.append(micro)
        begin(self, number, micro, *rest)

    monkeypatch.setattr(step_recorder.Tape, "begin", counted)
    return seen


@needed
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("data", DATA)
def test_records_and_notes_are_those_of_python(tmp_path, monkeypatch, data, groups):
    in_c = trained(tmp_path / "c", DATA[data](), groups=groups)
    without(monkeypatch)
    in_python = trained(tmp_path / "python", DATA[data](), groups=groups)
    assert len(in_c[0]) == STEPS
    for ours, reference in zip(in_c[0], in_python[0], strict=True):
        assert ours == reference
    assert in_c[1] == in_python[1]


@needed
@pytest.mark.parametrize(
    "data",
    [name for name in DATA if name != "a loader that uses up words"],
)
def test_usual_steps_are_written_in_c(tmp_path, monkeypatch, data):
    monkeypatch.setattr(usual.Memory, "due", property(lambda self: self.looked + 0.9))  # a slow machine looks in each
    seen = counting(monkeypatch)
    trained(tmp_path, DATA[data]())
    assert len([micro for micro in seen if micro >= 64]) < (STEPS - 64) / 4


def nothing_drawn(number, net, optimizer):
    return None


def uses_up(number, net, optimizer):
    torch.rand(700 if number % 3 else 1300)


def uses_up_beside(number, net, optimizer):
    torch.rand(500)
    if number % 7 == 0:
        random.random()
    if number % 11 == 0:
        np.random.rand()  # noqa: NPY002
    if number % 13 == 0:
        torch.manual_seed(number % 2)


def draws(number, net, optimizer):
    random.random()
    np.random.rand()  # noqa: NPY002


def other_generator(number, net, optimizer):
    if number == 100:
        np.random.seed(1)  # noqa: NPY002
        torch.manual_seed(3)
        random.seed(2)


def frozen(number, net, optimizer):
    if number >= 90:
        optimizer.zero_grad(set_to_none=True)


def no_rate(number, net, optimizer):
    if number >= 90:
        optimizer.param_groups[0]["lr"] = 0.0


def other_rate(number, net, optimizer):
    optimizer.param_groups[0]["lr"] = 1 if number % 2 else torch.tensor(0.01)


def evaluating(number, net, optimizer):
    net.train(number < 80)


@needed
@pytest.mark.parametrize(
    "each", [nothing_drawn, draws, uses_up, uses_up_beside, other_generator, frozen, no_rate, other_rate, evaluating]
)
def test_what_a_program_does_in_its_steps_is_noted_as_python_does(tmp_path, monkeypatch, each):
    in_c = trained(tmp_path / "c", DATA["tensors"](), each=each)
    without(monkeypatch)
    assert repr(in_c) == repr(trained(tmp_path / "python", DATA["tensors"](), each=each))  # some of the losses are NaN


@needed
@pytest.mark.parametrize("step", [with_a_closure, with_a_named_closure, with_a_closure_that_raises])
@pytest.mark.parametrize("each", [nothing_drawn, frozen, no_rate, evaluating])
def test_steps_with_a_closure_are_noted_as_python_does(tmp_path, monkeypatch, step, each):
    in_c = trained(tmp_path / "c", DATA["tensors"](), each=each, step=step)
    without(monkeypatch)
    assert repr(in_c) == repr(trained(tmp_path / "python", DATA["tensors"](), each=each, step=step))


@needed
def test_usual_steps_with_a_closure_are_noted_in_c(tmp_path, monkeypatch):
    seen, stepping = [], step_recorder.Tape.stepping

    def counted(*args):
        seen.append(1)
        stepping(*args)

    monkeypatch.setattr(step_recorder.Tape, "stepping", counted)
    trained(tmp_path, DATA["tensors"](), step=with_a_closure)
    assert len(seen) < 64 + (STEPS - 64) / 4


@needed
@pytest.mark.parametrize("workers", [0, 2])
def test_steps_of_a_program_that_draws_are_written_in_c(tmp_path, monkeypatch, workers):
    monkeypatch.setattr(usual.Memory, "due", property(lambda self: self.looked + 0.9))
    seen = counting(monkeypatch)
    trained(tmp_path, DataLoader(Drawing(), batch_size=4, num_workers=workers), each=draws)
    assert len([micro for micro in seen if micro >= 64]) < (STEPS - 64) / 4


@needed
def test_a_loss_that_is_no_usual_one_is_left_to_python(tmp_path):
    net = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with recording(tmp_path, net, optimizer, snapshot_every=10**9) as rec:
        quick = rec.tape.quick
        for number, batch in enumerate(rec.batches([torch.ones(1, 1)] * 80)):
            loss = rec.loss(net(batch).sum())
            loss.backward()
            optimizer.step()
            if number == 78:
                assert not quick.loss(torch.tensor(float("nan")))
                assert not quick.loss(torch.ones(2))
                assert not quick.loss(1.0)
                assert not quick.loss(torch.tensor(1, dtype=torch.int64))
                assert quick.loss(torch.tensor(2.5, dtype=torch.float64))
        assert ring_writer.read(ring_writer.find(tmp_path)[0]).steps[78].loss == 2.5
    assert not quick.loss(torch.tensor(1.0)), "the ring is closed"
    assert not quick.begin(1, 1, 0, None, usual, None)


@needed
def test_a_closure_makes_its_gradients_itself(tmp_path):
    net = nn.Linear(1, 1)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=2)
    phases = []
    with recording(tmp_path, net, optimizer, snapshot_every=10**9) as rec:
        for batch in rec.batches([torch.ones(1, 1)] * 90):

            def closure(batch=batch):
                optimizer.zero_grad()
                phases.append(ring_writer.read(ring_writer.find(tmp_path)[0]).now.phase)
                loss = net(batch).square().sum()
                loss.backward()
                return loss

            optimizer.step(closure)
    assert "optimiser" not in phases, "with a closure the forward is still to come"


@needed
def test_a_forked_child_writes_nothing_into_the_record_of_its_parent(tmp_path):
    net = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with recording(tmp_path, net, optimizer, snapshot_every=10**9) as rec:
        for number, batch in enumerate(rec.batches([torch.ones(1, 1)] * 80)):
            rec.loss(net(batch).sum()).backward()
            if number == 79:
                pid = os.fork()
                if pid == 0:
                    optimizer.step()  # the hook is the parent's, in C
                    os._exit(0)
                os.waitpid(pid, 0)
                assert ring_writer.read(ring_writer.find(tmp_path)[0]).now.phase == "backward"
            optimizer.step()


@needed
def test_a_long_training_holds_no_more_than_a_short_one(tmp_path):
    net = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    held = []
    with recording(tmp_path, net, optimizer, snapshot_every=10**9) as rec:
        learning = rec.tape.learning
        for number, batch in enumerate(rec.batches([torch.ones(1, 1)] * 3000)):
            rec.loss(net(batch).sum()).backward()
            optimizer.step()
            if number > 2100:
                held.append(max(len(learning.losses), len(learning.steps), len(learning.drawn.noted)))
    assert max(held) < 2 * usual.MANY
    assert learning.told.steps == learning.told.batches == 3000


@needed
@pytest.mark.parametrize("given", [(), (1,), (None,) * 6, ("a",) * 6, (2**70, 1, 1, None, None, None), (object(),) * 6])
def test_wrong_arguments_end_nobody(given):
    quick = rng_state.quick.Quick.__new__(rng_state.quick.Quick)
    for name in ("begin", "stepping", "behind", "know", "prepare", "look", "stage", "walk", "__init__"):
        with contextlib.suppress(TypeError, ValueError, OverflowError, RuntimeError):
            getattr(quick, name)(*given)
    assert quick.drain() == (0, [], [], [])
    assert quick.loss(torch.tensor(1.0)) is False
    quick.off()
    quick.close()


@needed
def test_what_a_stray_write_has_left_in_the_ring_ends_nobody(tmp_path):
    net = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with recording(tmp_path, net, optimizer, snapshot_every=10**9) as rec:
        for number, batch in enumerate(rec.batches([torch.ones(1, 1)] * 200)):
            rec.loss(net(batch).sum()).backward()
            optimizer.step()
            if number in (100, 130, 160):
                page, count = rec.tape.writer.page, rec.tape.writer.count
                at = ring_format.FIRST + (count - 1) * ring_format.SLOT_BYTES
                page[at : at + 1024] = bytes([255]) * 1024
            if number == 170:
                page[ring_format.COUNT_AT : ring_format.COUNT_AT + 16] = bytes([255]) * 16
        assert rec.tape.on and number == 199, "neither the training nor the recorder has ended"
    found = ring_writer.read(ring_writer.find(tmp_path)[0])
    assert found.torn >= 1 and {step.micro for step in found.steps} >= {50, 99, 129, 199}


@needed
def test_a_ring_that_is_too_small_is_refused(tmp_path):
    quick = rng_state.quick
    marks = type(rng_state.MARKS), rng_state.MARKS
    arguments = ((4, 32, 16, 24576, 0, 0, 4, 0, 8, 24, 16), (1, 2, 3, 4), *marks, {}, object, {}, print, print, print)
    with pytest.raises(ValueError, match="too small"):
        quick.Quick(bytearray(64), *arguments)
    with pytest.raises(BufferError):
        quick.Quick(b"read only", *arguments)
