"""What the child of the layers notebook sends back: the strongest maps of a module, no two of them alike."""

from __future__ import annotations

import numpy as np

from ocrlab.notebook.layers_messages import Looked


def looked(maps: list[np.ndarray]) -> Looked:
    figures = [
        {"min": 0.0, "max": 1.0, "std": float(m.std()), "zeros": int((m == 0).sum()), "count": m.size} for m in maps
    ]
    canvas = np.zeros((32, 32, 3), np.uint8)
    return Looked("page", "shipped", "decoder.fusion", "Conv2d", canvas, np.stack(maps).astype(np.uint8), figures)


def test_the_strongest_maps_come_first_and_one_that_shows_the_same_is_passed_over() -> None:
    rng = np.random.default_rng(0)
    strong, other = rng.integers(0, 256, (32, 32)), rng.integers(0, 128, (32, 32))
    seen = looked([other, strong, strong // 2, 255 - strong, other // 4])
    assert seen.strongest[0] in (1, 3)
    assert seen.different(9) == [seen.strongest[0], 0], "a map, and its negative, show the same as the strongest"
    assert seen.different(1) == [seen.strongest[0]]


def test_a_channel_is_told_in_words() -> None:
    half = np.zeros((32, 32))
    half[:16] = 255
    assert looked([half]).told(0) == "0 to 1, 50 % zeros"
