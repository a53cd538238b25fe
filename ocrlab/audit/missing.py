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

MOST = 300  # lines of a page, the likeliest; nobody reads more
JOIN = 1.0  # of the text height: letters and words closer than this are one line
TEXT_LIKE = 1.0  # log odds, above which a line is told

# Fitted to 587 boxes left out and 350 lines of other ink of 100 receipts (`sroie/train`, every fifth), in four rounds:
# other ink above 3.5, which may be text that nobody boxed, is left out of the next one. On the pages of the fit 94 % of
# the boxes are above TEXT_LIKE, and 11 of the other lines. A line must also be print (see is_print).
WEIGHTS = {
    "letters": 2.72, "one": 0.86, "stroke": -1.45, "height": -1.97, "uneven": -2.64, "density": -4.85, "lighter": -2.48,
    "darker": -1.97, "wavy": -4.88, "row": 4.72, "tall": -3.59, "ornament": -11.78, "sparse": -3.83, "slim": -0.63,
}  # fmt: skip
BIAS = -0.05

# Of 387 boxes left out of 84 receipts (`sroie/train`, every sixth) 4 are weaker than STRONG, none is above the others;
# cloth and the grain of paper are weaker, or all ink.
STRONG, NOISY, CROWDED = 0.7, 0.35, 0.26
# Pieces of ink, all alike and evenly spaced, from which a row is dashes, dots or stars.
SIGNS, EVEN, ALIKE = 15, 0.06, 0.4
CLAIMED = 0.3  # of a piece of ink inside boxes, from which it belongs to them


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """Ink that could be a line of text: x, y, width, height in sheet pixels, and what speaks for it."""

    box: tuple[int, int, int, int]
    features: Floats  # of FEATURES
    letters: int
    contrast: float  # of its ink against the paper, over that of the ink in boxes
    noise: float  # of the paper between and around its ink, in the same measure
    crowd: float  # share of ink, in no box, of the surroundings
    pieces: int
    rhythm: float  # how far sizes and distances of its pieces are from being all the same, 0 upwards


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
    spans = np.array([(p[:, 1].min(), p[:, 1].max()) for p in sheet.polygons if p is not None], np.float64)
    number, groups = cv2.connectedComponents(joined, connectivity=8)
    first = _any_pixel(labels, count)
    piece_group = np.zeros(count, np.int64)
    piece_group[free] = groups.reshape(-1)[first[free]]
    order = np.argsort(piece_group, kind="stable")
    starts = np.searchsorted(piece_group[order], np.arange(1, number + 1))
    found = [_line(order[start:end], labels, stats, sheet, known, spans) for start, end in pairwise(starts)]
    lines = [line for line in found if line is not None]
    return sorted(lines, key=likeness, reverse=True)[:MOST] if len(lines) > MOST else lines


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


def _typical(stats: Ints, sheet: Sheet) -> tuple[float, float, float, float]:
    """Return height and density of the letters in the boxes, how black they are, and how much against the paper."""
    tall = stats[stats[:, 3] >= 0.35 * sheet.text]
    if len(tall) < 5:
        return 0.7 * sheet.text, 0.45, 60.0, 0.5
    density = tall[:, 4] / (tall[:, 2] * tall[:, 3])
    own = sheet.ink & (sheet.covered > 0)
    black, strength = sheet.gray[own], _contrast(sheet, (slice(None), slice(None)), own)
    return float(np.median(tall[:, 3])), float(np.median(density)), float(np.median(black)), max(strength, 0.05)


def _line(
    pieces: NDArray[np.int64],
    labels: Ints,
    stats: Ints,
    sheet: Sheet,
    known: tuple[float, float, float, float],
    spans: Floats,
) -> Line | None:
    """Describe a group of pieces; None if no piece is as high as a letter."""
    own = stats[pieces]
    height, density, black, strength = known
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
            _row(spans, low, high),
            np.log((high[1] - low[1]) / height),
            _alike(pieces[high_enough], labels, stats),
            tall[:, 2].sum() / (high[0] - low[0]),
            np.log(np.median(tall[:, 2] / tall[:, 3])),
        ]
    )
    box = int(low[0]), int(low[1]), int(high[0] - low[0]), int(high[1] - low[1])
    free = ink & (sheet.covered[window] == 0)
    contrast = _contrast(sheet, window, free) / strength
    noise = _contrast(sheet, window, ~ink) / strength
    return Line(box, features, len(tall), contrast, noise, _crowd(sheet, box), len(own), _rhythm(own))


def is_print(line: Line) -> bool:
    """Tell whether a line is print on paper: as strong as that in the boxes, on ground as quiet, and no ornament."""
    ornament = line.pieces >= SIGNS and line.rhythm < EVEN and line.features[FEATURES.index("alike")] > ALIKE
    return line.contrast >= STRONG and line.noise <= NOISY and line.crowd <= CROWDED and not ornament


def _contrast(sheet: Sheet, window: tuple[slice, ...], where: Mask) -> float:
    """Return the median share of the light that is lost against the paper around, which is the same in any light."""
    dark, gray = sheet.contrast[window][where].astype(np.float64), sheet.gray[window][where]
    return float(np.median(dark / np.maximum(gray + dark, 1))) if dark.size else 0.0


def _crowd(sheet: Sheet, box: tuple[int, int, int, int]) -> float:
    """Return the share of ink of what lies around a line, a text height wide, and in no box; 0 where that is little."""
    x, y, w, h = box
    reach = round(sheet.text)
    left, top = max(0, x - reach), max(0, y - reach)
    window = (slice(top, y + h + reach), slice(left, x + w + reach))
    around = sheet.covered[window] == 0
    around[y - top : y - top + h, x - left : x - left + w] = False
    return float(sheet.ink[window][around].mean()) if around.sum() > sheet.text**2 else 0.0


def _rhythm(own: Ints) -> float:
    """Return how far the pieces (x, y, w, h, area) of a line are from being all alike and evenly spaced."""
    row = own[own[:, 0].argsort()].astype(np.float64)
    steps = np.diff(row[:, 0] + row[:, 2] / 2) if len(row) > 1 else np.ones(1)
    spread = [np.median(np.abs(v - np.median(v))) / max(np.median(v), 1) for v in (row[:, 2], row[:, 3], steps)]
    return float(np.mean(spread))


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


def _row(spans: Floats, low: Ints, high: Ints) -> float:
    """Return how well a line is level with the box (top, bottom; N, 2) that is most level with it, 0..1."""
    if not len(spans):
        return 0.0
    top, bottom = spans.T
    shared = np.minimum(bottom, high[1]) - np.maximum(top, low[1])
    return float(max(0.0, (shared / np.maximum(bottom - top, high[1] - low[1])).max()))


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
