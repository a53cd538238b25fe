"""Probability maps that no page gives, made to keep post-processing busy; `postprocess.py` times them."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
from numpy.typing import NDArray

Map = NDArray[np.float32]


def boxes() -> Map:
    """Return 5,184 boxes of 12 x 8 pixels."""
    return np.tile(np.pad(np.ones((8, 12), np.float32), 4), (72, 72))


def checkerboard(height: int, width: int, side: int = 1) -> Map:
    """Return squares of `side` pixels: one region with a hole for every second square."""
    return ((np.arange(height)[:, None] // side + np.arange(width) // side) % 2).astype(np.float32)


def dots(height: int, width: int) -> Map:
    """Return a lonely pixel in every fourth place: as many regions as there can be."""
    canvas = np.zeros((height, width), np.float32)
    canvas[::2, ::2] = 1
    return canvas


def noise(height: int, width: int) -> Map:
    """Return a map of noise."""
    return np.random.default_rng(0).random((height, width), dtype=np.float32)


def blobs(height: int, width: int) -> Map:
    """Return noise of a size of some pixels: thousands of ragged regions with holes in them."""
    rough = cv2.GaussianBlur(noise(height, width), (0, 0), 1.2)
    return (rough > 0.5).astype(np.float32)


def comb(side: int) -> Map:
    """Return one region with `side` / 4 teeth as long as the page."""
    canvas = np.zeros((side, side), np.float32)
    canvas[2:-2, 2:-2:4] = canvas[2:-2, 3:-2:4] = canvas[2:6, 2:-2] = 1
    return canvas


def spiral(side: int) -> Map:
    """Return one line, 3 pixels thick, that winds inwards 8 pixels a turn."""
    corners: list[tuple[int, int]] = []
    for inset in range(4, side // 2 - 8, 8):
        far = side - 1 - inset
        corners += [(inset, inset), (far, inset), (far, far), (inset, far), (inset, inset + 8)]
    canvas = np.zeros((side, side), np.float32)
    cv2.polylines(canvas, [np.array(corners, np.int32)], False, 1.0, 3)
    return canvas


def holes(side: int) -> Map:
    """Return one region with a hole of 2 x 2 pixels in every 6 x 6."""
    canvas = np.ones((side, side), np.float32)
    for y in (2, 3):
        for x in (2, 3):
            canvas[y::6, x::6] = 0
    return canvas


def skyline(side: int) -> Map:
    """Return one band with towers of random height, one pixel wide, on both sides of it."""
    rng, canvas = np.random.default_rng(0), np.zeros((side, side), np.float32)
    rows, middle = np.arange(side)[:, None], side // 2
    up, down = rng.integers(0, side // 2 - 2, side), rng.integers(0, side // 2 - 2, side)
    canvas[(rows > middle - up) & (rows < middle + down)] = 1
    return canvas


WORST: dict[str, Callable[[], Map]] = {
    "all ones, 640 x 640": lambda: np.ones((640, 640), np.float32),
    "all ones, 20,000 x 300": lambda: np.ones((300, 20000), np.float32),
    "one pixel": lambda: np.ones((1, 1), np.float32),
    "5,184 boxes": boxes,
    "checkerboard, 1024 x 1024": lambda: checkerboard(1024, 1024),
    "checkerboard, 20,000 x 300": lambda: checkerboard(300, 20000),
    "checkerboard of 8 pixels": lambda: checkerboard(1024, 1024, 8),
    "1,500,000 dots, 20,000 x 300": lambda: dots(300, 20000),
    "noise, 1024 x 1024": lambda: noise(1024, 1024),
    "noise, 20,000 x 300": lambda: noise(300, 20000),
    "noise, 300 x 20,000": lambda: noise(20000, 300),
    "ragged blobs, 1024 x 1024": lambda: blobs(1024, 1024),
    "ragged blobs, 20,000 x 300": lambda: blobs(300, 20000),
    "comb, 2048 x 2048": lambda: comb(2048),
    "spiral, 2048 x 2048": lambda: spiral(2048),
    "holes, 1024 x 1024": lambda: holes(1024),
    "skyline, 2048 x 2048": lambda: skyline(2048),
}
