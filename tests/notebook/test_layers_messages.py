"""What the child of the layers notebook sends back: the strongest maps of a module, no two of them alike."""

from __future__ import annotations

import numpy as np

from ocrlab.notebook.layers_messages import PageMaps


def page_maps(maps: list[np.ndarray]) -> PageMaps:
    figures = [
        {"min": 0.0, "max": 1.0, "std": float(m.std()), "zeros": int((m == 0).sum()), "count": m.size} for m in maps
    ]
    canvas = np.zeros((32, 32, 3), np.uint8)
    return PageMaps("page", "shipped", "decoder.fusion", "Conv2d", canvas, np.stack(maps).astype(np.uint8), figures)


def test_the_strongest_maps_come_first_and_duplicates_are_passed_over() -> None:
    rng = np.random.default_rng(0)
    strong, other = rng.integers(0, 256, (32, 32)), rng.integers(0, 128, (32, 32))
    maps = page_maps([other, strong, strong // 2, 255 - strong, other // 4])
    assert maps.strongest[0] in (1, 3)
    assert maps.different(9) == [maps.strongest[0], 0], "a map, and its negative, show the same as the strongest"
    assert maps.different(1) == [maps.strongest[0]]


def test_a_channel_is_described_in_words() -> None:
    half = np.zeros((32, 32))
    half[:16] = 255
    assert page_maps([half]).describe_channel(0) == "0 to 1, 50 % zeros"
