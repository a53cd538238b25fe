"""What a program keeps and has not named to the recorder is there again in a replay: losses are equal bit for bit."""

from __future__ import annotations

import copy
import random
import sys
import weakref
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ocrlab.errors import CheckpointError
from ocrlab.flight import ring
from ocrlab.recording import found
from ocrlab.recording.loops import recording
from ocrlab.recording.pictures import Given
from tests.recording.test_loops import replay

STEPS = 60
drawn = None  # by what the module itself keeps


def net_of(out=1):
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, out))


def sgd(net, **more):
    return torch.optim.SGD(net.parameters(), lr=0.01, **more)


def trained(folder, net, optimizer, loss_of, after=lambda loss: None):
    """Train with a loss, and let something happen after each step; the sixtieth fails."""
    with recording(folder, net, optimizer, snapshot_every=7) as rec:
        for step, (x,) in enumerate(rec.batches(DataLoader(TensorDataset(torch.randn(256, 4)), 4, shuffle=True)), 1):
            loss = rec.loss(loss_of(x))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            after(loss)
            if rec.tape is not None and rec.tape.snapshots.thread is not None:
                rec.tape.snapshots.thread.join()
            if step == STEPS:
                raise ValueError("bad here")


class Average:
    """Of the weights, as many write it: its state is a dict that is filled anew."""

    def __init__(self, net):
        self.net, self.shadow = net, {name: p.detach().clone() for name, p in net.named_parameters()}

    def update(self):
        for name, p in self.net.named_parameters():
            self.shadow[name] = 0.9 * self.shadow[name] + 0.1 * p.data

    def far(self):
        return sum((p - self.shadow[name]).square().sum() for name, p in self.net.named_parameters())


def own_average(folder):
    net = net_of()
    average = Average(net)
    trained(folder, net, sgd(net), lambda x: net(x).square().mean() + average.far(), lambda _: average.update())


def teacher(folder):
    net = net_of()
    held = copy.deepcopy(net).eval()

    def update(_):
        for mine, p in zip(held.parameters(), net.parameters(), strict=True):
            mine.data.mul_(0.9).add_(p.data, alpha=0.1)  # which torch does not count as a change

    trained(folder, net, sgd(net), lambda x: (net(x) - held(x).detach() + 1).square().mean(), update)


def averaged_model(folder):
    net = net_of()
    average = torch.optim.swa_utils.AveragedModel(net)
    loss_of = lambda x: (net(x) - average(x).detach() + 1).square().mean()  # noqa: E731
    trained(folder, net, sgd(net), loss_of, lambda _: average.update_parameters(net))


def schedulers(folder):
    net = net_of()
    optimizer = sgd(net)
    rates = [torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 9), torch.optim.lr_scheduler.StepLR(optimizer, 4)]
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, rates, [9])
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)

    def after(loss):
        scheduler.step()
        plateau.step(loss.item())

    trained(folder, net, optimizer, lambda x: net(x).square().mean() * (1 + scheduler.last_epoch / 9), after)


def adversary(folder):
    net, other = net_of(4), net_of()
    held = {"adversary": (other, torch.optim.Adam(other.parameters(), lr=0.01))}

    def after(_):
        model, optimizer = held["adversary"]
        optimizer.zero_grad()
        model(net(torch.randn(4, 4)).detach()).mean().backward()
        optimizer.step()

    trained(folder, net, sgd(net), lambda x: other(net(x)).square().mean(), after)


def spikes(folder):
    net = net_of()
    last, above, tags = deque([1.0], maxlen=9), [], ("none", 0)

    def after(loss):
        nonlocal tags
        if loss.item() > sum(last) / len(last):
            above.append(len(above))
            tags = ("spike", tags[1] + 1)
        last.append(loss.item())

    trained(folder, net, sgd(net), lambda x: net(x).square().mean() * (1 + sum(last) + len(above) + tags[1]), after)


def generators(folder):
    global drawn
    drawn = random.Random(7), torch.Generator().manual_seed(5)
    net, own, old = net_of(), np.random.default_rng(3), np.random.RandomState(4)

    def loss_of(x):
        x = x * drawn[0].uniform(0.5, 1.5) + float(own.normal()) + torch.rand(4, generator=drawn[1])
        return net(x).square().mean() * (1 + old.rand())

    trained(folder, net, sgd(net), loss_of)


def noting():
    calls, weights, mean = [0], {"sum": 0.0, "of": Counter()}, torch.zeros(1)

    def note(loss):
        calls[0] += 1
        weights["sum"] += loss.item()
        weights["of"][calls[0] % 3] += 1
        mean.mul_(0.9).add_(0.1 * loss.detach())
        note.last = loss.item()

    note.factor = lambda: 1 + calls[0] + weights["sum"] + weights["of"][0] + mean.item() + getattr(note, "last", 0)
    return note


def closures(folder):
    net = net_of()
    note = noting()
    trained(folder, net, sgd(net), lambda x: net(x).square().mean() * note.factor(), note)


def running(folder):
    net = net_of()
    mean, best, seen = torch.zeros(4), None, np.zeros(STEPS)

    def after(loss):
        nonlocal mean, best
        mean = 0.9 * mean + 0.1 * torch.rand(4)
        best = loss.detach() if best is None else torch.minimum(best, loss.detach())
        seen[int(np.count_nonzero(seen)) % STEPS] = loss.item()

    trained(folder, net, sgd(net), lambda x: net(x - mean).square().mean() + (best or 0) + float(seen.sum()), after)


def own_weight(folder):
    net = net_of()
    heat = torch.zeros(1, requires_grad=True)  # trained, and no weight of the model
    optimizer = torch.optim.Adam([*net.parameters(), heat], lr=0.1)
    trained(folder, net, optimizer, lambda x: net(x).square().mean() * heat.exp() - heat.sum() / 9)


def reverting(folder):
    net = net_of()
    best, low, notes = None, 1e9, {"net": net, "steps": []}

    def after(loss):
        nonlocal best, low
        if loss.item() < low:
            low, best = loss.item(), copy.deepcopy(net.state_dict())
        notes["steps"].append({"loss": loss.item(), "of": ("step", len(notes["steps"]))})
        if len(notes["steps"]) % 5 == 0:
            net.load_state_dict(best)

    trained(folder, net, sgd(net), lambda x: net(x).square().mean() * (1 + len(notes["steps"])), after)


@dataclass
class State:
    losses: list = field(default_factory=list)
    by: dict = field(default_factory=lambda: defaultdict(float))
    worst: float = 0.0


class Queue(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("bank", torch.zeros(8, 4), persistent=False)
        self.at, self.notes = 0, []

    def push(self, x):
        self.bank[self.at : self.at + 4] = x
        self.at = (self.at + 4) % 8
        self.notes.append(self.at)


class Noted(nn.Linear):
    def __init__(self):
        super().__init__(4, 1)
        self.seen, self.centre = deque(maxlen=5), torch.zeros(1)

    def forward(self, x):
        self.seen.append(x.mean().item())
        self.centre = 0.9 * self.centre + 0.1 * x.detach().mean()
        return super().forward(x) * (1 + sum(self.seen) / 9) + self.centre


class Trainer:
    def __init__(self, folder):
        self.folder, self.net, self.state, self.queue, self.past = folder, Noted(), State(), Queue(), None
        self.optimizer, self.scaler = sgd(self.net), torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=5)

    def loss_of(self, x):
        self.queue.push(x)
        loss = self.net(x).square().mean() + self.queue.bank.mean() * len(self.queue.notes) / 9 + (self.past or 0)
        return loss * (1 + self.scaler.get_scale() / 99 + self.state.by["steps"] / 99 + self.state.worst)

    def after(self, loss):
        self.past = 0.1 * loss.detach()
        self.state.losses.append(loss.item())
        self.state.worst = min(1.0, max(self.state.losses[-3:]))
        self.state.by["steps"] += 0.5
        self.scaler.scale(loss.detach())
        self.scaler.update(8.0 + len(self.state.losses))

    def train(self):
        trained(self.folder, self.net, self.optimizer, self.loss_of, self.after)


PROGRAMS = [own_average, teacher, averaged_model, schedulers, adversary, spikes, generators, closures, running]
PROGRAMS += [own_weight, reverting, lambda folder: Trainer(folder).train()]


@pytest.mark.parametrize("program", PROGRAMS)
def test_losses_are_equal_bit_for_bit(tmp_path, monkeypatch, program):
    torch.manual_seed(0)
    with pytest.raises(ValueError, match="bad here"):
        program(tmp_path)
    assert ring.read(ring.find(tmp_path)[0]).snapshots[-1].micro > 40
    torch.manual_seed(0)
    result = replay(tmp_path, monkeypatch, lambda: program(tmp_path))
    assert len(result["steps"]) > 5 and all(step["equal"] for step in result["steps"]), result["steps"]
    assert "bad here" in str(result["error"]) and not result["warnings"]
    torch.manual_seed(0)
    (tmp_path / "replay" / "job.json").unlink()
    (tmp_path / "replay").rename(tmp_path / "before")
    anew = replay(tmp_path, monkeypatch, lambda: program(tmp_path), cell={"counters": False})
    assert not all(step["equal"] for step in anew["steps"]), "a loss that does not depend on it shows nothing"


def names_of(told):
    return sorted(name for place in told.get("kept", {}).values() for name in place)


def looked_at_twice(change, given, room=None):
    """Look at what the caller keeps, change it, and look again, as two snapshots of a program do."""
    seen = found.Found()
    seen.changed(given)
    change()
    return seen, seen.changed(given, room)


def keeps_much():
    """A program in which little of what it keeps is worth to be kept (asserts would ask for its variables)."""
    net = net_of()
    optimizer = sgd(net, momentum=0.9)
    given = [[*net.parameters()], net[3], nn.ModuleDict({"net": net}), {"state": optimizer.state}, Average]
    still = [torch.randn(64, 4), net_of()]
    names = [f"page {i}" for i in range(100_000)]
    loader, history, late, loss = DataLoader(TensorDataset(still[0])), [0.5], None, torch.zeros(1)

    def change():
        nonlocal late, loss
        loss = net(still[0]).mean()
        loss.backward()
        optimizer.step()
        history.append(1.0)
        late = {"a": (1, torch.ones(2))}

    return *looked_at_twice(change, Given([net], [optimizer])), (given, names, loader)


def keeps_too_much(room=None):
    net, numbers = nn.Linear(2, 2), [1.0]
    big, small, other = torch.zeros(5 << 20), torch.zeros(4), net_of()

    def change():
        big.add_(1)
        small.add_(1)
        numbers.extend([2.0] * 100_000)
        other[0].weight.data.add_(1)

    return looked_at_twice(change, Given([net], []), room)[1]


def test_only_what_has_changed_and_is_not_given_already_is_kept():
    seen, told, _ = keeps_much()
    assert {*names_of(told)} - {"change"} == {"history", "late"} and not told["left_out"]
    assert len(told["tensors"]) == 1 and seen.seconds < 0.5


def test_what_has_no_room_is_left_out_and_named():
    told = keeps_too_much()
    assert {"numbers", "other", "small"} <= {*names_of(told)}, "a long list is known by its length"
    assert {"big: 20 MiB", "numbers: a list of 100001"} <= {*told["left_out"]} and "big" not in names_of(told)

    def room(size):
        if size > 100:
            raise CheckpointError("none")

    told = keeps_too_much(room)
    assert "small" in names_of(told) and "other" not in names_of(told)


class Refusing:
    """Gives nothing away."""

    def __init__(self):
        self.hits = 0

    def __getattr__(self, name):
        raise KeyError(name)

    def __eq__(self, other):
        raise ValueError("nobody may compare")

    __hash__ = None

    def state_dict(self):
        raise RuntimeError("no state")

    def load_state_dict(self, state):
        raise RuntimeError("no state")


def keeps_what_refuses(history):
    refusing, several = Refusing(), [Refusing()]
    told = looked_at_twice(lambda: history.append(2.0), Given([nn.Linear(1, 1)], []))[1]
    history.clear()
    put_back(told)
    return told, refusing, several


def put_back(told):
    found.put(told, sys._getframe(1), Given([], []))


def test_an_object_that_raises_costs_nothing_but_itself():
    history = [1.0]
    assert names_of(keeps_what_refuses(history)[0]) == ["history"]
    assert history == [1.0, 2.0]
    assert found.Found().changed(None) == {}  # type: ignore[arg-type]  # nothing can be looked at


def keeps_a_batch():
    batch, history, own = torch.zeros(4), [Average(nn.Linear(1, 1))], Average(nn.Linear(1, 1))
    held = [weakref.ref(batch), weakref.ref(own)]
    looked_at_twice(lambda: history.append(1.0), Given([], []))
    del batch, own
    return [ref() for ref in held]


def test_nothing_of_the_program_lives_on_because_it_was_looked_at():
    assert keeps_a_batch() == [None, None]


def test_a_thing_that_is_large_and_still_is_looked_at_seldom():
    thing = found.Thing(b"", [], [], size=1000)
    assert [look for look in range(1, 40) if not thing.is_quiet()] == [1, 2, 3, 4, 8, 16, 32]
    thing.has_changed = True
    assert not thing.is_quiet()
