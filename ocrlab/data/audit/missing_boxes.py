"""Lines that nobody boxed: ink outside all boxes that looks like the text inside them.

What looks like text is learned from the page itself: the signs in its boxes, and height, density and blackness of
their ink. A page repeats few signs many times: ink outside the boxes that repeats signs inside them is print of the
same machine, at any size; rulings, bar codes, handwriting and dirt differ in size, evenness or density, and repeat no
sign of the boxes. C pieces of ink (connected components), N boxes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrlab.data.audit.page_image import Gray, Mask, Sheet

Looks = NDArray[np.float32]
Ints = NDArray[np.int32]
Floats = NDArray[np.float64]

GRID = 8  # cells a side
COMPARED, ROWS_AT_ONCE = 4000, 512  # known looks that are compared; looks at a time: a page of dirt has 10^5
ASPECT = 0.5  # what a difference of 1 in log(width / height) takes from a likeness
MOST = 300  # lines of a page, the likeliest; nobody reads more
JOIN = 1.0  # of the text height: letters and words closer than this are one line
TEXT_LIKE = 1.7  # log odds, above which a line is reported

# Fitted by benchmarks/audit_fit.py to boxes left out and lines of other ink of all receipts of `sroie/train`; its page
# in results/ says how many of each are above TEXT_LIKE. A line must also be print (see is_print).
WEIGHTS = {
    "letters": 1.46, "stroke": -1.83, "smaller": -1.55, "density": -4.57, "darker": -1.16, "wavy": -4.45, "row": 2.76,
    "row of one": 3.76, "tall": -4.46, "sparse": 2.09, "slim": 0.29, "known": 10.29, "known of one": -4.96,
    "column": -3.18, "weak": -6.46, "noise": -3.16, "ornament": -12.23, "unknown ornament": -20.03,
}  # fmt: skip
BIAS = -2.58

# Of 11,105 boxes left out 3 are weaker than STRONG, 17 above NOISY and 9 above CROWDED: there are cloth, the grain of
# paper and bar codes.
STRONG, NOISY, CROWDED = 0.5, 0.35, 0.26
CLAIMED = 0.3  # of a piece of ink inside boxes, from which it belongs to them
LETTER, FLAT = 0.45, 0.3  # of the height of letters: what is one has this at least; a dash at most, and is wider
RULE = 3.0  # text heights, from which an unbroken level run of ink is a ruling
NEAR = 5.0  # text heights above and below a line, within which boxes are its column


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """Ink that could be a line of text: x, y, width, height in sheet pixels, and what supports it."""

    box: tuple[int, int, int, int]
    features: Floats  # of FEATURES
    letters: int
    crowd: float  # share of ink, in no box, of the surroundings

    def __getitem__(self, feature: str) -> float:
        """Return one of FEATURES."""
        return float(self.features[FEATURES.index(feature)])


# Of pieces as high as letters if not said otherwise, against those in the boxes:
# letters: log of their number; height, density, slim (width / height): log of the median; black: grey levels / 64;
# level: how far their lower ends are from one line, in letters; row: how level the line is with a box, 0..1;
# thin: log height of the line in letters; alike: each other, 0..1; full: share of the width that they fill;
# known: how like signs in boxes, at most 1; column: text heights between its left, right or middle and that of a box
# near by, at most 1; contrast of its ink, and noise of the paper in it: over the contrast of the ink in boxes.
FEATURES = (
    "letters", "height", "density", "black", "level", "row", "thin", "alike", "full", "slim", "known", "column",
    "contrast", "noise",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class _Print:
    """What the boxes of a page say of its print: medians of its letters, and where they are."""

    height: float
    density: float
    black: float  # grey level
    strength: float  # contrast against the paper
    looks: Looks  # of its letters
    bounds: Floats  # left, top, right, bottom (N, 4) of the boxes


def lines(sheet: Sheet) -> list[Line]:
    """Return the lines of ink outside all boxes of a sheet."""
    ink = sheet.ink.astype(np.uint8)
    rulings = cv2.morphologyEx(ink, cv2.MORPH_OPEN, _level(RULE * sheet.text))  # text on one is a piece of its own
    count, labels, stats, _ = cv2.connectedComponentsWithStats(ink & ~rulings, connectivity=8)
    if count < 2:
        return []
    claimed = np.bincount(labels[sheet.covered > 0], minlength=count) > CLAIMED * stats[:, cv2.CC_STAT_AREA]
    claimed[0] = False
    reference = _boxed_print(stats[claimed], sheet)
    # Letters, or a few that touch; what is at the border is the page's edge, and a row of dashes a ruling.
    x, y, w, h, area = stats.T
    height, width = sheet.ink.shape
    border = (x <= 1) | (y <= 1) | (x + w >= width - 1) | (y + h >= height - 1)
    dash = (h < FLAT * reference.height) & (w > 1.5 * h)
    sized = (h <= 1.7 * sheet.text) & (w <= 8 * sheet.text) & (area >= 0.01 * sheet.text**2)
    free = ~claimed & sized & ~border & ~dash
    free[0] = False
    if not free.any():
        return []
    joined = cv2.morphologyEx(free[labels].astype(np.uint8), cv2.MORPH_CLOSE, _level(JOIN * sheet.text))
    number, groups = cv2.connectedComponents(joined, connectivity=8)
    flat = labels.reshape(-1)
    pixels = np.flatnonzero(flat)
    any_pixel = np.zeros(count, np.int64)  # of each label, as the flat index
    any_pixel[flat[pixels]] = pixels
    at = np.flatnonzero(free)
    group = groups.reshape(-1)[any_pixel[at]]
    own = stats[at[np.argsort(group, kind="stable")]]
    starts = np.searchsorted(np.sort(group), np.arange(1, number + 1))
    looks = component_looks(sheet.contrast, own)
    repeated = best_similarity(looks, reference.looks)
    candidates = [_line(own[i:j], looks[i:j], repeated[i:j], sheet, reference) for i, j in pairwise(starts.tolist())]
    lines = [line for line in candidates if line is not None]
    return sorted(lines, key=likeness, reverse=True)[:MOST] if len(lines) > MOST else lines


def _level(width: float) -> NDArray[np.uint8]:
    """Return a kernel of odd width and height 1."""
    return np.ones((1, 2 * round(width / 2) + 1), np.uint8)


def component_looks(contrast: Gray, stats: Ints) -> Looks:
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


def best_similarity(own: Looks, references: Looks) -> NDArray[np.float32]:
    """Return how alike each of C looks is to the one of K known looks that is most like it, at most 1; -1 if K is 0."""
    best = np.full(len(own), -1.0, np.float32)
    references = references[:: -(-len(references) // COMPARED) or 1]  # more say nothing new
    for start in range(0, len(own) if len(references) else 0, ROWS_AT_ONCE):
        looks = own[start : start + ROWS_AT_ONCE]
        apart = np.abs(looks[:, None, -1] - references[None, :, -1])
        alike = looks[:, :-1] @ references[:, :-1].T - ASPECT * apart
        best[start : start + ROWS_AT_ONCE] = alike.max(axis=1)
    return best


def _boxed_print(stats: Ints, sheet: Sheet) -> _Print:
    """Return what the pieces in the boxes are like."""
    bounds = np.array([(*p.min(axis=0), *p.max(axis=0)) for p in sheet.polygons], np.float64).reshape(-1, 4)
    tall = stats[stats[:, 3] >= 0.35 * sheet.text]
    if len(tall) < 5:
        return _Print(0.7 * sheet.text, 0.45, 60.0, 0.5, component_looks(sheet.contrast, tall), bounds)
    height = float(np.median(tall[:, 3]))
    density = tall[:, 4] / (tall[:, 2] * tall[:, 3])
    own = sheet.ink & (sheet.covered > 0)
    strength = max(_contrast(sheet, (slice(None), slice(None)), own), 0.05)
    looks = component_looks(sheet.contrast, stats[stats[:, 3] >= LETTER * height])
    return _Print(height, float(np.median(density)), float(np.median(sheet.gray[own])), strength, looks, bounds)


def _line(own: Ints, looks: Looks, repeated: Looks, sheet: Sheet, reference: _Print) -> Line | None:
    """Describe a group of pieces (x, y, w, h, area), (C, 5); None if none is as high as a letter."""
    letter = own[:, 3] >= LETTER * reference.height
    if not letter.any():
        return None
    tall = own[letter]
    low, high = own[:, :2].min(axis=0), (own[:, :2] + own[:, 2:4]).max(axis=0)
    window = (slice(low[1], high[1]), slice(low[0], high[0]))
    ink: Mask = sheet.ink[window]
    bottoms = tall[:, 1] + tall[:, 3]
    row, column = _neighbours(reference.bounds, np.concatenate([low, high]).astype(np.float64), sheet.text)
    vectors = looks[letter, :-1]  # ornaments repeat a sign: the mean of their looks is as long as each of them
    features = np.array(
        [
            np.log(len(tall)),
            np.log(np.median(tall[:, 3]) / reference.height),
            np.log(np.median(tall[:, 4] / (tall[:, 2] * tall[:, 3])) / reference.density),
            (float(np.median(sheet.gray[window][ink])) - reference.black) / 64,
            np.median(np.abs(bottoms - np.median(bottoms))) / reference.height,
            row,
            np.log((high[1] - low[1]) / reference.height),
            float(np.linalg.norm(vectors.mean(axis=0))) if len(vectors) > 2 else 0.0,
            tall[:, 2].sum() / (high[0] - low[0]),
            np.log(np.median(tall[:, 2] / tall[:, 3])),
            np.median(repeated[letter]),
            column,
            _contrast(sheet, window, ink & (sheet.covered[window] == 0)) / reference.strength,
            _contrast(sheet, window, ~ink) / reference.strength,
        ]
    )
    # The share of ink of what lies around the line, a text height wide, and in no box.
    reach = round(sheet.text)
    left, top = max(0, low[0] - reach), max(0, low[1] - reach)
    around = (slice(top, high[1] + reach), slice(left, high[0] + reach))
    outside = sheet.covered[around] == 0
    outside[low[1] - top : high[1] - top, low[0] - left : high[0] - left] = False
    crowd = float(sheet.ink[around][outside].mean()) if outside.sum() > sheet.text**2 else 0.0
    box = int(low[0]), int(low[1]), int(high[0] - low[0]), int(high[1] - low[1])
    return Line(box, features, len(tall), crowd)


def is_print(line: Line) -> bool:
    """Return whether a line is print on paper: strong enough against that in the boxes, on quiet ground."""
    return line["contrast"] >= STRONG and line["noise"] <= NOISY and line.crowd <= CROWDED


def _contrast(sheet: Sheet, window: tuple[slice, ...], where: Mask) -> float:
    """Return the median share of the light that is lost against the paper around, which is the same in any light."""
    dark, gray = sheet.contrast[window][where].astype(np.float64), sheet.gray[window][where]
    return float(np.median(dark / np.maximum(gray + dark, 1))) if dark.size else 0.0


def _neighbours(bounds: Floats, line: Floats, text: float) -> tuple[float, float]:
    """Return how well a line (left, top, right, bottom) is level with the box most level with it, 0..1, and its column.

    That is the way from an edge or the middle of the line to that of a box near by, in text heights and at most 1.
    """
    if not len(bounds):
        return 0.0, 1.0
    left, top, right, bottom = bounds.T
    shared = np.minimum(bottom, line[3]) - np.maximum(top, line[1])
    row = float(max(0.0, (shared / np.maximum(bottom - top, line[3] - line[1])).max()))
    near = (bottom > line[1] - NEAR * text) & (top < line[3] + NEAR * text)
    ways = np.abs(left - line[0]), np.abs(right - line[2]), np.abs(left + right - line[0] - line[2]) / 2
    return row, float(min(1.0, np.min(ways, axis=0)[near].min(initial=np.inf) / text))


def likeness(line: Line) -> float:
    """Return how much a line looks like those in the boxes: log odds of a logistic model, see WEIGHTS."""
    return float(terms(line) @ np.array(list(WEIGHTS.values())) + BIAS)


def terms(line: Line) -> Floats:
    """Return what the logistic model weighs, (len(WEIGHTS),): FEATURES bent so that too much and too little count."""
    single = line.letters == 1
    familiarity = max(line["known"], 0.0)
    ornament = max(line["alike"] - 0.4 - 0.9 / line.letters, 0)  # of a few letters many are alike by chance
    return np.array(
        [
            min(line["letters"], 2.5),
            single * (line["slim"] < -1.2),
            min(max(-line["height"], 0), 1),
            min(abs(line["density"]), 1),
            min(max(-line["black"], 0), 1.5),
            min(line["level"], 0.6),
            line["row"],
            single * line["row"],
            min(abs(line["thin"] - 0.15), 1),
            min(max(0.6 - line["full"], 0), 0.6),
            min(abs(line["slim"] + 0.5), 1.5),
            familiarity,
            single * familiarity,
            line["column"],
            min(max(1 - line["contrast"], 0), 0.6),
            min(line["noise"], 0.8),
            ornament,
            ornament * (1 - familiarity),
        ],
        np.float64,
    )
