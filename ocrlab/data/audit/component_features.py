"""What a piece of ink looks like, and whether the boxes of the page hold one like it.

A page repeats few signs many times: ink outside the boxes that repeats signs inside them is print of the same machine,
at any size; handwriting, stamps and dirt repeat nothing. C pieces of ink (connected components).
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrlab.data.audit.ink_mask import Gray

Ints = NDArray[np.int32]
Looks = NDArray[np.float32]

GRID = 8  # cells a side
MOST, ROWS = 4000, 512  # known looks that are compared, more say nothing new; looks at a time: a page of dirt has 10^5
ASPECT = 0.5  # what a difference of 1 in log(width / height) takes from a likeness


def looks(contrast: Gray, stats: Ints) -> Looks:
    """Return the looks of C pieces (x, y, w, h, ...) of a page (H, W) as vectors (C, GRID * GRID + 1).

    Of a vector, all but the last are the contrast in a grid over the piece, without mean and of length 1; the last is
    log(width / height).
    """
    sums = cv2.integral(contrast)
    x, y, w, h = (stats[:, column, None].astype(np.int64) for column in range(4))
    cells = np.arange(GRID)
    left, right = x + cells * w // GRID, x + -(-(cells + 1) * w // GRID)
    top, bottom = y + cells * h // GRID, y + -(-(cells + 1) * h // GRID)
    rows, below = top[:, :, None], bottom[:, :, None]
    columns, beyond = left[:, None, :], right[:, None, :]
    total = sums[below, beyond] - sums[rows, beyond] - sums[below, columns] + sums[rows, columns]
    grid = (total / ((below - rows) * (beyond - columns))).reshape(-1, GRID * GRID).astype(np.float32)
    grid -= grid.mean(axis=1, keepdims=True)
    grid /= np.maximum(np.linalg.norm(grid, axis=1, keepdims=True), 1e-6)
    return np.hstack([grid, np.log(w / h).astype(np.float32)])


def likeness(looks: Looks, other: Looks) -> Looks:
    """Return how alike looks (C, D) and looks (K, D) are, (C, K), at most 1."""
    apart = looks[:, None, -1] - other[None, :, -1]
    return np.asarray(looks[:, :-1] @ other[:, :-1].T - ASPECT * np.abs(apart), np.float32)


def repeated(own: Looks, references: Looks) -> NDArray[np.float32]:
    """Return how alike each of C looks is to the one of K known looks that is most like it, (C,); -1 if K is 0."""
    best = np.full(len(own), -1.0, np.float32)
    references = references[:: -(-len(references) // MOST) or 1]
    for start in range(0, len(own) if len(references) else 0, ROWS):
        best[start : start + ROWS] = likeness(own[start : start + ROWS], references).max(axis=1)
    return best


def monotony(row: Looks) -> float:
    """Return how alike a row of looks (C, D) is, 0..1: the length of their mean, 0 below 3. Ornaments repeat a sign."""
    return float(np.linalg.norm(row[:, :-1].mean(axis=0))) if len(row) > 2 else 0.0
