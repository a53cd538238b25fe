"""Lines that nobody boxed: ink outside all boxes that looks like the text inside them.

What looks like text is learned from the page itself: height, density and blackness of the ink in its boxes. C pieces of
ink (connected components) of a line; rulings, bar codes, handwriting and dirt differ in size, evenness or density.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrlab.audit.ink import Mask, Sheet

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]

JOIN = 1.0  # of the text height: letters and words closer than this are one line
TEXT_LIKE = 1.5  # log odds, above which a line is told

# Fitted to 587 boxes left out and 350 lines of other ink of 100 receipts (`sroie/train`, every fifth), in four rounds:
# other ink above 3.5, which may be text that nobody boxed, is left out of the next one. On the pages of the fit 94 % of
# the boxes are above TEXT_LIKE, and 11 of the other lines. TEXT_LIKE itself was raised after a look at `sroie/val`.
WEIGHTS = {
    "letters": 2.72, "one": 0.86, "stroke": -1.45, "height": -1.97, "uneven": -2.64, "density": -4.85, "lighter": -2.48,
    "darker": -1.97, "wavy": -4.88, "row": 4.72, "tall": -3.59, "ornament": -11.78, "sparse": -3.83, "slim": -0.63,
}  # fmt: skip
BIAS = -0.05
CLAIMED = 0.3  # of a piece of ink inside boxes, from which it belongs to them


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """Ink that could be a line of text: x, y, width, height in sheet pixels, and what speaks for it."""

    box: tuple[int, int, int, int]
    features: Floats  # of FEATURES
    letters: int


FEATURES = ("letters", "height", "even", "density", "black", "level", "row", "thin", "alike", "full", "slim")


def lines(sheet: Sheet) -> list[Line]:
    """Return the lines of ink outside all boxes of a sheet."""
    count, labels, stats, _ = cv2.connectedComponentsWithStats(sheet.ink.astype(np.uint8), connectivity=8)
    if count < 2:
        return []
    inside = np.bincount(labels[sheet.covered > 0], minlength=count)
    claimed = inside > CLAIMED * stats[:, cv2.CC_STAT_AREA]
    known = _typical(stats[1:][claimed[1:]], sheet)
    free = ~claimed & _sized(stats, sheet)
    free[0] = False
    if not free.any():
        return []
    ink = free[labels]
    size = (2 * round(JOIN * sheet.text / 2) + 1, 1)
    joined = cv2.morphologyEx(ink.astype(np.uint8), cv2.MORPH_CLOSE, np.ones(size[::-1], np.uint8))
    number, groups = cv2.connectedComponents(joined, connectivity=8)
    first = _any_pixel(labels, count)
    piece_group = np.zeros(count, np.int64)
    piece_group[free] = groups.reshape(-1)[first[free]]
    order = np.argsort(piece_group, kind="stable")
    starts = np.searchsorted(piece_group[order], np.arange(1, number + 1))
    found = [_line(order[start:end], labels, stats, sheet, known) for start, end in pairwise(starts)]
    return [line for line in found if line is not None]


def _any_pixel(labels: Ints, count: int) -> NDArray[np.int64]:
    """Return for each label the flat index of one of its pixels."""
    first = np.zeros(count, np.int64)
    flat = labels.reshape(-1)
    at = np.flatnonzero(flat)
    first[flat[at]] = at
    return first


def _sized(stats: Ints, sheet: Sheet) -> NDArray[np.bool_]:
    """Tell which pieces have the size of letters, or of a few that touch; those at the border are the page's edge."""
    x, y, w, h = (stats[:, column] for column in range(4))
    height, width = sheet.ink.shape
    border = (x <= 1) | (y <= 1) | (x + w >= width - 1) | (y + h >= height - 1)
    return (h <= 1.7 * sheet.text) & (w <= 8 * sheet.text) & (stats[:, 4] >= 0.01 * sheet.text**2) & ~border


def _typical(stats: Ints, sheet: Sheet) -> tuple[float, float, float]:
    """Return height and density of the letters in the boxes, and how black they are."""
    tall = stats[stats[:, 3] >= 0.35 * sheet.text]
    if len(tall) < 5:
        return 0.7 * sheet.text, 0.45, 60.0
    density = tall[:, 4] / (tall[:, 2] * tall[:, 3])
    black = sheet.gray[sheet.ink & (sheet.covered > 0)]
    return float(np.median(tall[:, 3])), float(np.median(density)), float(np.median(black))


def _line(
    pieces: NDArray[np.int64], labels: Ints, stats: Ints, sheet: Sheet, known: tuple[float, float, float]
) -> Line | None:
    """Describe a group of pieces; None if no piece is as high as a letter."""
    own = stats[pieces]
    height, density, black = known
    high_enough = own[:, 3] >= 0.45 * height
    tall = own[high_enough]
    if not len(tall):
        return None
    low, high = own[:, :2].min(axis=0), (own[:, :2] + own[:, 2:4]).max(axis=0)
    window = (slice(low[1], high[1]), slice(low[0], high[0]))
    ink: Mask = sheet.ink[window]
    bottoms = tall[:, 1] + tall[:, 3]
    features = np.array(
        [
            np.log(len(tall)),
            np.log(np.median(tall[:, 3]) / height),
            np.std(tall[:, 3]) / height,
            np.log(np.median(tall[:, 4] / (tall[:, 2] * tall[:, 3])) / density),
            (float(np.median(sheet.gray[window][ink])) - black) / 64,
            np.median(np.abs(bottoms - np.median(bottoms))) / height,
            _row(sheet, low, high),
            np.log((high[1] - low[1]) / height),
            _alike(pieces[high_enough], labels, stats),
            tall[:, 2].sum() / (high[0] - low[0]),
            np.log(np.median(tall[:, 2] / tall[:, 3])),
        ]
    )
    return Line((int(low[0]), int(low[1]), int(high[0] - low[0]), int(high[1] - low[1])), features, len(tall))


def _alike(pieces: NDArray[np.int64], labels: Ints, stats: Ints) -> float:
    """Return how alike neighbouring pieces look, 0..1: ornaments repeat one sign, text does not."""
    if len(pieces) < 4:
        return 0.0
    row = pieces[stats[pieces, 0].argsort()][:40]
    signs = []
    for piece in row:
        x, y, w, h = stats[piece, :4]
        sign = (labels[y : y + h, x : x + w] == piece).astype(np.float32)
        sign = cv2.resize(sign, (8, 8), interpolation=cv2.INTER_AREA).reshape(-1)
        signs.append(np.r_[sign - sign.mean(), 0.1 * np.log(w / h)])
    grid = np.array(signs)
    grid /= np.maximum(np.linalg.norm(grid, axis=1, keepdims=True), 1e-6)
    return float(np.median((grid[1:] * grid[:-1]).sum(axis=1)))


def _row(sheet: Sheet, low: Ints, high: Ints) -> float:
    """Return how well a line is level with the box that is most level with it, 0..1."""
    best = 0.0
    for polygon in sheet.polygons:
        if polygon is not None:
            top, bottom = polygon[:, 1].min(), polygon[:, 1].max()
            shared = min(bottom, high[1]) - max(top, low[1])
            best = max(best, float(shared / max(bottom - top, high[1] - low[1])))
    return best


def likeness(line: Line) -> float:
    """Return how much a line looks like those in the boxes: log odds of a logistic model, see WEIGHTS."""
    return float(terms(line.features) @ np.array(list(WEIGHTS.values())) + BIAS)


def terms(features: Floats) -> Floats:
    """Return what the logistic model weighs, (len(WEIGHTS),): FEATURES bent so that too much and too little count."""
    letters, height, even, density, black, level, row, thin, alike, full, slim = features
    one = letters < 0.4
    return np.array(
        [
            min(letters, 2.5),
            one,
            one * (slim < -1.2),
            min(abs(height), 1),
            min(even, 0.6),
            min(abs(density), 1),
            np.clip(black, 0, 1.5),
            np.clip(-black, 0, 1.5),
            min(level, 0.6),
            row,
            min(abs(thin - 0.15), 1),
            np.clip(alike - 0.4, 0, 0.6),
            np.clip(0.6 - full, 0, 0.6),
            min(abs(slim + 0.5), 1.5),
        ],
        np.float64,
    )
