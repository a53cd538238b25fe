"""Loops of the program go on in a replay where they were; everybody else's ranges are Python's own."""

from __future__ import annotations

import builtins
import itertools
import pickle
import random
import sys
from collections.abc import Sequence

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import std as tqdm_std
from tqdm import tqdm, trange

from ocrlab.flight import ring
from ocrlab.recording import turns
from ocrlab.recording.loops import recording
from tests.recording.test_loops import replay

place = -1  # of the first batch in its walk, once it was fed


@pytest.fixture(autouse=True)
def listening():
    global place
    place = -1
    turns.listen(lambda frame: frame.f_code.co_filename == __file__, lambda: place, [globals(), vars(tqdm_std)])
    assert builtins.range is turns.RANGE and builtins.zip is turns.ZIP and range is turns.Range
    yield
    turns.stop()
    assert itertools.count is turns.COUNT and not {"range", "zip"} & globals().keys()


def feed(frame, **numbers):
    global place
    place = 3
    turns.stop()
    for name, recorded in numbers.items():
        turns.move(f"locals {frame.f_code.co_qualname}", name, frame.f_locals.get(name), recorded)


def plain():
    for epoch in range(10):
        yield epoch
        if epoch == 0:
            feed(sys._getframe(), epoch=6)


def down():
    for epoch in range(20, 0, -2):
        yield epoch
        if epoch == 20:
            feed(sys._getframe(), epoch=10)


def barred():
    for epoch in tqdm(range(10), disable=True):
        yield epoch
        if epoch == 0:
            feed(sys._getframe(), epoch=6)


def barred_by_its_own_range():
    for epoch in trange(10, disable=True):
        yield epoch
        if epoch == 0:
            feed(sys._getframe(), epoch=6)


def named():
    shown = tqdm(range(10), disable=True)
    for epoch in shown:
        yield epoch
        if epoch == 0:
            feed(sys._getframe(), epoch=6)


def backwards():
    for epoch in reversed(range(10)):
        yield epoch
        if epoch == 9:
            feed(sys._getframe(), epoch=3)


def nested():
    for epoch in range(3):
        for number in range(5):
            yield epoch, number
            if (epoch, number) == (0, 0):
                feed(sys._getframe(), epoch=1, number=3)


def counted():
    for number in itertools.count(2):
        yield number
        if number == 2:
            feed(sys._getframe(), number=7)
        if number > 9:
            return


def test_names_that_the_program_has_itself_stay_its_own():
    turns.stop()
    before = {"range": 1, "tally": turns.COUNT}
    scope = dict(before)
    turns.listen(lambda _: True, lambda: -1, [scope], enumerate=list)
    assert scope == {"range": 1, "tally": turns.count, "zip": turns.Zip, "enumerate": list}
    turns.stop()
    assert scope == before


def stream():
    global place
    place = 3
    turns.stop()
    for name in "abc":
        yield name, name


def zipped():
    for number, (name, _) in zip(range(9), stream(), strict=False):
        yield number, name


def zipped_without_end():
    yield from ((number, name) for number, (name, _) in zip(itertools.count(), stream(), strict=False))


def zipped_below_zero():
    yield from ((number, name) for number, name in zip(itertools.count(-5, 2), "ab", strict=False))
    for number, (name, _) in zip(itertools.count(-5, 2), stream(), strict=False):
        yield number, name


def kept_by_another():
    numbers = list(range(3))
    shown = [lambda: numbers]  # a variable of another function too, which no loop reads
    for epoch in shown[0]():
        yield epoch
        if epoch == 0:
            feed(sys._getframe(), epoch=1)


def of_another_variable():
    for epoch in range(3):
        yield epoch
        if epoch == 0:
            feed(sys._getframe(), other=2)


def through_another():
    for double in (2 * one for one in range(10)):
        yield double
        if double == 0:
            feed(sys._getframe(), double=8)


def twice(numbers):
    for number in numbers:
        yield 2 * number


def through_a_function():
    for double in twice(range(10)):
        yield double
        if double == 0:
            feed(sys._getframe(), double=8)


def out_of_range():
    for epoch in range(3):
        yield epoch
        if epoch == 0:
            feed(sys._getframe(), epoch=99)


GOES_ON = [
    (plain, [0, 7, 8, 9]),
    (down, [20, 8, 6, 4, 2]),
    (backwards, [9, 2, 1, 0]),
    (barred, [0, 7, 8, 9]),
    (barred_by_its_own_range, [0, 7, 8, 9]),
    (named, [0, 7, 8, 9]),
    (nested, [(0, 0), (0, 4), (2, 0), (2, 1), (2, 2), (2, 3), (2, 4)]),
    (counted, [2, 8, 9, 10]),
    (zipped, [(3, "a"), (4, "b"), (5, "c")]),
    (zipped_below_zero, [(-5, "a"), (-3, "b"), (1, "a"), (3, "b"), (5, "c")]),
    (kept_by_another, [0, 1, 2]),
    (of_another_variable, [0, 1, 2]),
    (through_another, list(turns.RANGE(0, 20, 2))),
    (through_a_function, list(turns.RANGE(0, 20, 2))),
    (out_of_range, [0, 1, 2]),
]


@pytest.mark.parametrize(("loop", "wanted"), GOES_ON, ids=lambda one: getattr(one, "__name__", ""))
def test_a_loop_goes_on_behind_the_recorded_number(loop, wanted):
    assert list(loop()) == wanted


def test_what_is_in_no_header_is_a_range_as_ever():
    kept = range(5)
    assert type(kept) is type(range(3)) is turns.RANGE and list(range(3)) == [0, 1, 2]
    assert random.Random(0).sample(range(50), 2) == random.Random(0).sample(turns.RANGE(50), 2)
    assert [one * 2 for one in range(3)] == [0, 2, 4] and max(range(4)) == 3
    assert {turns.RANGE: 1}[range] == 1, "as numba looks it up"
    assert isinstance(kept, range) and issubclass(turns.RANGE, range) and not isinstance([], range)
    assert list(zip("ab", range(2), strict=True)) == [("a", 0), ("b", 1)] and next(itertools.count(3)) == 3
    with pytest.raises(ValueError, match="shorter"):
        list(zip("ab", range(1), strict=True))


def kept(held, one):
    held.append(one)
    return [0]


def test_the_range_of_a_header_is_one_in_all_else():
    held = []
    for _ in kept(held, range(2, 9, 3)):
        made = held[0]
    assert type(made) is turns.Range and isinstance(made, range) and isinstance(made, Sequence)
    assert (len(made), made[1], made[-1], 5 in made, 6 in made, made.index(8)) == (3, 5, 8, True, False, 2)
    assert made[1:] == turns.RANGE(5, 11, 3) and made == turns.RANGE(2, 9, 3) and made != turns.RANGE(3)
    assert hash(made) == hash(turns.RANGE(2, 9, 3)) and (made.start, made.stop, made.step) == (2, 9, 3)
    assert list(reversed(made)) == [8, 5, 2] and repr(made) == "range(2, 9, 3)"
    again = pickle.loads(pickle.dumps(made))  # as a data set does that goes to its workers
    assert type(again) is turns.RANGE and again == made


def test_a_count_in_a_variable_is_read_without_being_used_and_advanced():
    numbers = turns.COUNT(5, 2)
    assert turns.left(numbers) == 5 and next(numbers) == 5
    turns.advance(numbers, 21)
    assert next(numbers) == 21
    turns.advance(numbers, 3)  # which does not come any more
    assert next(numbers) == 23 and turns.left(turns.COUNT(0.5)) is None


def epochs(rec, data, step):
    for epoch in range(9):
        for i, batch in enumerate(rec.batches(data)):
            step(batch, 1 + epoch + i / 7)


def steps(rec, data, step):
    batches = iter(rec.batches(data))
    numbers = itertools.count()
    for number in range(40):
        try:
            batch = next(batches)
        except StopIteration:
            batches = iter(rec.batches(data))
            batch = next(batches)
        step(batch, 1 + number + next(numbers) / 7)


def beside(rec, data, step):
    for epoch in itertools.count():
        for number, batch in zip(range(100), rec.batches(data), strict=False):
            step(batch, 1 + epoch + number / 7)
        if epoch == 8:
            return


@pytest.mark.parametrize("loop", [epochs, steps, beside])
def test_losses_that_depend_on_loops_are_equal_bit_for_bit(tmp_path, monkeypatch, loop):
    turns.stop()

    def train():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        with recording(tmp_path, net, optimizer, snapshot_every=6, steps=30) as rec:

            def step(batch, factor):
                assert range is turns.RANGE, "nothing that runs in a step has another one"
                optimizer.zero_grad()
                rec.loss(net(batch[0]).square().mean() * factor).backward()
                optimizer.step()
                if rec.tape is not None and rec.tape.snapshots.thread is not None:
                    rec.tape.snapshots.thread.join()

            loop(rec, DataLoader(TensorDataset(torch.randn(20, 4)), 4, shuffle=True), step)

    train()
    found = ring.read(ring.find(tmp_path)[0])
    assert found.steps[0].micro > 0 and found.snapshots[-1].micro > 5
    result = replay(tmp_path, monkeypatch, train)
    assert result["finished"] and len(result["steps"]) > 5
    assert all(step["equal"] for step in result["steps"])
