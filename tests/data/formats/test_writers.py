"""Numbers as they are written: whole where they are whole, and never another number when they are read back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ocrlab.data.formats.writers import numbers


def test_whole_numbers_stay_whole() -> None:
    assert json.dumps(numbers(np.float32([[1, 2], [-3, 40000]]))) == "[1, 2, -3, 40000]"


def test_fractions_are_short() -> None:
    assert json.dumps(numbers(np.float32([[364.37, 578.23], [0.1, 2]]))) == "[364.37, 578.23, 0.1, 2.0]"


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3, 1e6])
def test_every_number_comes_back(size: float) -> None:
    points = (np.random.default_rng(0).normal(size=(500, 2)) * size).astype(np.float32)
    again = np.array(json.loads(json.dumps(numbers(points))), np.float32).reshape(-1, 2)
    np.testing.assert_array_equal(again, points)
