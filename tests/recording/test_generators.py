"""Random states as bytes: taken without drawing, put back exactly, also between the two Gaussians of NumPy."""

# ruff: noqa: NPY002  # the global generator is what is tested
from __future__ import annotations

import random

import numpy as np
import torch

from ocrlab.recording import generators


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
