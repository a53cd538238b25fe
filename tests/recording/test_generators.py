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
