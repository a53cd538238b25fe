"""Random states as bytes: taken without drawing, put back exactly, also between the two Gaussians of NumPy."""

# ruff: noqa: NPY002  # the global generator is what is tested
from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ocrlab.debug.flight_record import ring_writer
from ocrlab.debug.recorder import rng_state, step_recorder
from ocrlab.debug.recorder.manual_loop import recording
from ocrlab.debug.recorder.memory_sample import Memory

needed = pytest.mark.skipif(
    rng_state.quick is None, reason="the recorder's part in C was not built: make setup, with cc"
)


def draw():
    return random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.randn(3).tolist()


def test_what_was_taken_is_put_back():
    states = rng_state.take()
    first = draw()
    assert rng_state.take() != states
    rng_state.put(states)
    assert draw() == first
    rng_state.put(states)
    assert rng_state.take() == states


def test_the_second_gaussian_of_numpy_counts():
    np.random.seed(0)
    np.random.randn()
    waiting = rng_state.take()
    second = np.random.randn()
    assert rng_state.take()["numpy"] != waiting["numpy"]
    rng_state.put(waiting)
    assert np.random.randn() == second


def test_taking_draws_nothing():
    rng_state.take()
    states = rng_state.take()
    assert states == rng_state.take()
    assert set(states) == {"python", "numpy", "torch"}


def test_states_that_are_kept_are_the_true_ones():
    """A whole turn of the Twister brings the position back; a seed sets the first word alike each time."""
    for change in (
        lambda: [random.getrandbits(32) for _ in range(624)],
        lambda: np.random.bytes(4 * 624),
        lambda: (random.seed(7), np.random.seed(7)),
        lambda: (random.seed(8), np.random.seed(8)),
        lambda: random.gauss(0, 1),
        lambda: random.gauss(0, 1),
    ):
        change()
        states = rng_state.take()
        _, internal, gauss = random.getstate()
        assert states["python"] == rng_state.PYTHON.pack(*internal, gauss is not None, gauss or 0.0)
        assert states["numpy"][: 4 * 624] == np.random.get_state()[1].tobytes()
        assert rng_state.NUMPY.unpack_from(states["numpy"], 4 * 624)[0] == np.random.get_state()[2]


def test_torchs_state_is_the_one_that_torch_gives():
    """As it lies in memory, where this release is known, and turned back into torch's own form."""
    for draws, kind in ((0, None), (1, torch.float64), (3, torch.float32), (2000, torch.float32), (1, torch.float64)):
        torch.manual_seed(draws) if kind is None else torch.randn(draws, dtype=kind)
        state = rng_state.take()["torch"]
        whole = rng_state.legacy(state) if len(state) == rng_state.DENSE.size else state
        assert whole == torch.get_rng_state().numpy().tobytes()
    assert rng_state._seen.full[2] is not None, "this release of torch has another form: recording is slower"


def test_where_a_release_has_its_states_elsewhere_they_are_asked_for(monkeypatch):
    lost = rng_state._Unknown()
    monkeypatch.setattr(rng_state, "MARKS", None)  # C reads what it was told before
    monkeypatch.setattr(rng_state._seen, "full", [None, rng_state._seen.full[1], None])
    monkeypatch.setattr(rng_state._seen, "views", [lost, rng_state._seen.views[1], lost, *[rng_state.NOTHING] * 2])
    draw()
    states = rng_state.take()
    assert len(states["torch"]) == rng_state.LEGACY.size
    first = draw()
    rng_state.put(states)
    assert draw() == first


def test_the_same_objects_say_that_nothing_was_drawn_or_no_turn_begun():
    torch.manual_seed(0)
    torch.rand(1)
    first = rng_state.parts()
    assert rng_state.parts() is first
    torch.rand(1)
    second = rng_state.parts()
    assert second[0] is first[0] and second[1] != first[1], "the same words, and what moves by itself"
    random.random()
    third = rng_state.parts()
    assert third[0]["python"] != first[0]["python"] and third[0]["torch"] is first[0]["torch"]
    torch.rand(700)
    fourth = rng_state.parts()
    assert fourth[0]["torch"] != first[0]["torch"] and fourth[0]["python"] is third[0]["python"]
    assert rng_state.whole(fourth) == rng_state.take()
    assert [*fourth[0]][-1] == "torch", "what moves is put behind the last one"


def test_another_generator_in_the_place_of_numpys(monkeypatch):
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(1))
        assert "numpy" not in rng_state.take()
        np.random.set_bit_generator(np.random.MT19937(1))
        states = rng_state.take()
        first = np.random.rand()
        rng_state.put(states)
        assert np.random.rand() == first
    finally:
        np.random.set_bit_generator(before)


class Noisy(Dataset):
    def __len__(self):
        return 600

    def __getitem__(self, index):
        return torch.randn(8) + torch.rand(400)[:8]  # a batch uses up torch's words twice


@needed
def test_marks_stand_for_states_until_something_moves():
    marks = rng_state.MARKS
    torch.manual_seed(0)
    torch.rand(1)  # the first draw behind a seed makes new words
    rng_state.parts(cuda=False)
    states = marks.states()
    assert states is marks.states() is rng_state.parts(cuda=False)
    torch.rand(3)
    moved = marks.states()
    assert moved is not states and moved[0] is states[0]
    assert rng_state.legacy(rng_state.whole(moved)["torch"]) == torch.get_rng_state().numpy().tobytes()
    torch.rand(700)
    renewed = marks.states()
    assert renewed[0] is not states[0] and [*renewed[0]] == [*states[0]] and renewed[0]["numpy"] is states[0]["numpy"]
    assert rng_state.legacy(rng_state.whole(renewed)["torch"]) == torch.get_rng_state().numpy().tobytes()
    other = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.MT19937(1))
        assert marks.states() is None, "somebody draws from another one"
    finally:
        np.random.set_bit_generator(other)
    marks.drop()
    assert marks.states() is None
    for sizes in ((0, 4096), (0, 7)):
        with pytest.raises(ValueError, match="no mark"):
            marks.keep((sizes,) * 6, (0, 0, 0), None, None, None, None, ({}, b""))


@needed
def test_draws_of_python_and_numpy_are_read_where_they_lie():
    """With the second Gaussians, which wait without moving anything, over several turns of both twisters."""
    marks, kinds = rng_state.MARKS, random.Random(3)
    rng_state.parts(cuda=False)
    draws = [random.random, np.random.rand, lambda: random.gauss(0, 1), np.random.randn, lambda: torch.rand(1)]
    draws += [
        lambda: random.seed(kinds.random()),
        lambda: np.random.seed(kinds.randrange(99)),
        lambda: np.random.rand(300),
    ]
    draws += [lambda: [random.random() for _ in range(200)], lambda: random.setstate(random.getstate())]
    before = marks.states()
    assert before is not None
    for _ in range(3000):
        kinds.choice(draws)()
        states = marks.states()
        whole = rng_state.whole(states)
        internal, gauss = random.getstate()[1:]
        assert whole["python"] == rng_state.PYTHON.pack(*internal, gauss is not None, gauss or 0.0)
        _, keys, *rest = np.random.get_state()
        assert whole["numpy"] == keys.tobytes() + rng_state.NUMPY.pack(*rest)
        for name in ("python", "numpy"):  # the same words are the same object
            (a, _), (b, _) = before[0][name], states[0][name]
            assert (a is b) == (a == b)
        before = states


@needed
@pytest.mark.parametrize("data", [lambda: [torch.ones(4, 8)] * 150, lambda: DataLoader(Noisy(), batch_size=4)])
@pytest.mark.parametrize("names", [["torch"], ["python", "numpy"]])
def test_new_words_are_written_in_c_and_read_with_each_step(tmp_path, monkeypatch, data, names):
    """More blocks than the ring has room for, nearly all of them filled in C."""
    monkeypatch.setattr(Memory, "due", property(lambda self: self.looked + 0.9))
    begin, in_python, expected = step_recorder.Tape.begin, [], {}
    monkeypatch.setattr(
        step_recorder.Tape, "begin", lambda self, *told: (in_python.append(told[1]), begin(self, *told))
    )
    net = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-9)
    with recording(tmp_path, net, optimizer, snapshot_every=10**9) as rec:
        writer = rec.tape.writer
        while writer.block < 1.2 * writer.blocks:
            for batch in rec.batches(data()):
                expected[rec.micro] = rng_state.take()
                if "torch" in names:
                    torch.rand(1000)
                else:
                    random.random(), np.random.rand(400), random.gauss(0, 1), np.random.randn()
                optimizer.zero_grad()
                rec.loss(net(batch).sum()).backward()
                optimizer.step()
                if rec.micro % 97 == 0:
                    assert ring_writer.read(ring_writer.find(tmp_path)[0]).torn == 0
    found = ring_writer.read(ring_writer.find(tmp_path)[0])
    assert found.torn == 0 and len(found.steps) == writer.slots
    for step in found.steps:
        for name in ("python", "numpy", "torch"):
            state = step.random[name]
            assert (rng_state.dense(state) if name == "torch" else state) == expected[step.micro][name]
    assert len([micro for micro in in_python if micro >= 64]) < rec.micro / 10
