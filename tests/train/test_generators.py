"""Random states as bytes: taken without drawing, put back exactly, also between the two Gaussians of NumPy."""

# ruff: noqa: NPY002  # the global generator is what is tested
from __future__ import annotations

import random

import numpy as np
import torch

from ocrlab.train import generators


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
