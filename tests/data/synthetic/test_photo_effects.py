"""The photograph of a sheet: geometry, sampling, light."""

from __future__ import annotations

import numpy as np
import pytest

from ocrlab.data.synthetic import photo_effects
from ocrlab.data.synthetic.stable_random import Dice
from ocrlab.data.synthetic.typesetting import SCALE

SHEET, PAGE = (400, 700), (500, 800)


def test_the_sheet_lies_inside_the_page_turned_by_at_most_six_degrees() -> None:
    for seed in range(100):
        matrix = photo_effects.place(Dice(seed), SHEET, PAGE)
        corners = [photo_effects.project(matrix, x, y) for x, y in ((0, 0), (400, 0), (400, 700), (0, 700))]
        assert (np.array(corners) >= 0).all() and (np.array(corners) <= PAGE).all()
        top = np.subtract(corners[1], corners[0])
        assert abs(np.degrees(np.arctan2(top[1], top[0]))) < 8  # the turn and the perspective


def test_coordinates_are_the_inverse_of_the_projection() -> None:
    matrix = photo_effects.place(Dice(3), SHEET, PAGE)
    u, v = photo_effects.paper_coordinates(matrix, *PAGE)
    for x, y in ((0, 0), (123, 456), (499, 799)):
        assert photo_effects.project(matrix, float(u[y, x]), float(v[y, x])) == pytest.approx(
            (x + 0.5, y + 0.5), abs=1e-2
        )


def test_sampling_straight_on_averages_the_plane() -> None:
    plane = np.random.default_rng(0).integers(0, 256, (6 * SCALE, 8 * SCALE), dtype=np.uint8)
    y, x = np.mgrid[:6, :8].astype(np.float32) + np.float32(0.5)
    mean = plane.reshape(6, SCALE, 8, SCALE).mean((1, 3)) / 255
    np.testing.assert_allclose(photo_effects.sample(plane, x, y), mean, atol=1e-6)
    assert not photo_effects.sample(plane, x - 100, y).any() and not photo_effects.sample(plane, x, y + 100).any()


def test_softening_keeps_flat_grey_and_spreads_a_dot() -> None:
    flat = np.full((5, 7, 3), 255, np.uint8)
    np.testing.assert_array_equal(photo_effects.soften(flat, 64), flat)
    dot = np.zeros((5, 5, 1), np.uint8)
    dot[2, 2] = 160
    assert photo_effects.soften(dot, 64)[1:4, 1:4, 0].tolist() == [[10, 20, 10], [20, 40, 20], [10, 20, 10]]


def test_light_is_never_too_dark_to_read() -> None:
    for seed in range(20):
        field = photo_effects.light(Dice(seed), 60, 90)
        assert field.dtype == np.float32
        assert field.min() > 0.3 and field.max() == 1


def test_a_photograph_is_dark_where_the_ink_is() -> None:
    ink = np.zeros((700 * SCALE, 400 * SCALE), np.uint8)
    ink[300 * SCALE : 320 * SCALE] = 255
    matrix = photo_effects.place(Dice(1), SHEET, PAGE)
    picture = photo_effects.photograph(Dice(2), ink, np.zeros_like(ink), matrix, PAGE)
    assert picture.shape == (800, 500, 3) and picture.dtype == np.uint8
    levels = [picture[int(y), int(x)].mean() for x, y in (photo_effects.project(matrix, 200, v) for v in (310, 340))]
    assert levels[0] < 0.75 * levels[1]
