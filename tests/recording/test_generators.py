"""Random states as bytes: taken without drawing, put back exactly, also between the two Gaussians of NumPy."""

# ruff: noqa: NPY002  # the global generator is what is tested
from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ocrlab.flight import ring
from ocrlab.recording import generators, tape
from ocrlab.recording.loops import recording
from ocrlab.recording.memory import Memory

needed = pytest.mark.skipif(
    generators.quick is None, reason="the recorder's part in C was not built: make setup, with cc"
)


def draw():
    return random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.randn(3).tolist()


def test_what_was_taken_is_put_back():
    states = generators.take()
    first = draw()
    assert generators.take() != states
    generators.put(states)
    assert draw() == first
    generators.put(states)
    assert generators.take() == states


def test_the_second_gaussian_of_numpy_counts():
    np.random.seed(0)
    np.random.randn()
    waiting = generators.take()
    second = np.random.randn()
    assert generators.take()["numpy"] != waiting["numpy"]
    generators.put(waiting)
    assert np.random.randn() == second


def test_taking_draws_nothing():
    generators.take()
    states = generators.take()
    assert states == generators.take()
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
        states = generators.take()
        _, internal, gauss = random.getstate()
        assert states["python"] == generators.PYTHON.pack(*internal, gauss is not None, gauss or 0.0)
        assert states["numpy"][: 4 * 624] == np.random.get_state()[1].tobytes()
        assert generators.NUMPY.unpack_from(states["numpy"], 4 * 624)[0] == np.random.get_state()[2]


def test_torchs_state_is_the_one_that_torch_gives():
    """As it lies in memory, where this release is known, and turned back into torch's own form."""
    for draws, kind in ((0, None), (1, torch.float64), (3, torch.float32), (2000, torch.float32), (1, torch.float64)):
        torch.manual_seed(draws) if kind is None else torch.randn(draws, dtype=kind)
        state = generators.take()["torch"]
        whole = generators.legacy(state) if len(state) == generators.DENSE.size else state
        assert whole == torch.get_rng_state().numpy().tobytes()
    assert generators._seen.full[2] is not None, "this release of torch has another form: recording is slower"


def test_where_a_release_has_its_states_elsewhere_they_are_asked_for(monkeypatch):
    lost = generators._Unknown()
    monkeypatch.setattr(generators, "MARKS", None)  # C reads what it was told before
    monkeypatch.setattr(generators._seen, "full", [None, generators._seen.full[1], None])
    monkeypatch.setattr(generators._seen, "views", [lost, generators._seen.views[1], lost, *[generators.NOTHING] * 2])
    draw()
    states = generators.take()
    assert len(states["torch"]) == generators.LEGACY.size
    first = draw()
    generators.put(states)
    assert draw() == first


def test_the_same_objects_say_that_nothing_was_drawn_or_no_turn_begun():
    torch.manual_seed(0)
    torch.rand(1)
    first = generators.parts()
    assert generators.parts() is first
    torch.rand(1)
    second = generators.parts()
    assert second[0] is first[0] and second[1] != first[1], "the same words, and what moves by itself"
    random.random()
    third = generators.parts()
    assert third[0]["python"] != first[0]["python"] and third[0]["torch"] is first[0]["torch"]
    torch.rand(700)
    fourth = generators.parts()
    assert fourth[0]["torch"] != first[0]["torch"] and fourth[0]["python"] is third[0]["python"]
    assert generators.whole(fourth) == generators.take()
    assert [*fourth[0]][-1] == "torch", "what moves is put behind the last one"


def test_another_generator_in_the_place_of_numpys(monkeypatch):
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(1))
        assert "numpy" not in generators.take()
        np.random.set_bit_generator(np.random.MT19937(1))
        states = generators.take()
        first = np.random.rand()
        generators.put(states)
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
    marks = generators.MARKS
    torch.manual_seed(0)
    torch.rand(1)  # the first draw behind a seed makes new words
    generators.parts(cuda=False)
    states = marks.states()
    assert states is marks.states() is generators.parts(cuda=False)
    torch.rand(3)
    moved = marks.states()
    assert moved is not states and moved[0] is states[0]
    assert generators.legacy(generators.whole(moved)["torch"]) == torch.get_rng_state().numpy().tobytes()
    torch.rand(700)
    renewed = marks.states()
    assert renewed[0] is not states[0] and [*renewed[0]] == [*states[0]] and renewed[0]["numpy"] is states[0]["numpy"]
    assert generators.legacy(generators.whole(renewed)["torch"]) == torch.get_rng_state().numpy().tobytes()
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
    marks, kinds = generators.MARKS, random.Random(3)
    generators.parts(cuda=False)
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
        whole = generators.whole(states)
        internal, gauss = random.getstate()[1:]
        assert whole["python"] == generators.PYTHON.pack(*internal, gauss is not None, gauss or 0.0)
        _, keys, *rest = np.random.get_state()
        assert whole["numpy"] == keys.tobytes() + generators.NUMPY.pack(*rest)
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
    begin, in_python, expected = tape.Tape.begin, [], {}
    monkeypatch.setattr(tape.Tape, "begin", lambda self, *told: (in_python.append(told[1]), begin(self, *told)))
    net = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-9)
    with recording(tmp_path, net, optimizer, snapshot_every=10**9) as rec:
        writer = rec.tape.writer
        while writer.block < 1.2 * writer.blocks:
            for batch in rec.batches(data()):
                expected[rec.micro] = generators.take()
                if "torch" in names:
                    torch.rand(1000)
                else:
                    random.random(), np.random.rand(400), random.gauss(0, 1), np.random.randn()
                optimizer.zero_grad()
                rec.loss(net(batch).sum()).backward()
                optimizer.step()
                if rec.micro % 97 == 0:
                    assert ring.read(ring.find(tmp_path)[0]).torn == 0
    found = ring.read(ring.find(tmp_path)[0])
    assert found.torn == 0 and len(found.steps) == writer.slots
    for step in found.steps:
        for name in ("python", "numpy", "torch"):
            state = step.random[name]
            assert (generators.dense(state) if name == "torch" else state) == expected[step.micro][name]
    assert len([micro for micro in in_python if micro >= 64]) < rec.micro / 10
