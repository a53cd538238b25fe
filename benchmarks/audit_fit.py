"""Where the weights of `ocrlab/data/audit/missing_boxes.py` come from: they tell a line of text that has no box.

    python benchmarks/audit_fit.py --data ../shared/data/sroie

Boxes of the train pages are left out, some of a page at a time: the lines found where they were are text. The lines
found on the whole pages are other ink, except print that was really forgotten: what is above FORGOTTEN and repeats
signs of the page is left out of the next round. A logistic model with a little ridge is fitted to half of the pages
and scored on the other half, both ways; the weights printed are those of all pages. The val pages are not read.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import planted
from numpy.typing import NDArray
from table import ROOT, figure, markdown, page, parser, publish

from ocrlab.data.audit import missing_boxes, page_image
from ocrlab.errors import DataError

FORGOTTEN, SIGNS = 3.5, 0.7  # log odds; likeness to signs in boxes
ROUNDS = 4
LEFT_OUT, SHARE = 8, 0.2  # boxes of a page at a time, at most, and of all its boxes
INSIDE, COVERED = 0.5, 0.25  # a line is that of a box with so much of its area in it, and covers so much of it
RIDGE = 1.0

PlacedLine = tuple[missing_boxes.Line, tuple[float, float, float, float]]  # left, top, right, bottom in image pixels
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Lines:
    """What the model sees: terms (N, T); and of each line its page, whether it is print, how known its signs are."""

    terms: Floats
    pages: NDArray[np.int64]
    prints: Bools
    familiarity: Floats


def main() -> None:
    """Fit, score on the other half of the pages, and print both."""
    args = arguments()
    try:
        pages = planted.read(args.data / "train")
    except (DataError, OSError) as error:
        sys.exit(f"No receipts to fit to: {error}")
    text, other, count = collect(pages, args.times, np.random.default_rng(0))
    used = np.ones(len(other.pages), np.bool_)
    for _ in range(ROUNDS):
        odds_text, odds_other = crossed(text, other, used)
        used = ~((odds_other > FORGOTTEN) & (other.familiarity >= SIGNS))
    weights, bias = fit(text.terms, other.terms[used])
    rows = [
        [
            f"{limit:.1f}",
            f"{(text.prints & (odds_text > limit)).sum() / count:.4f}",
            int((other.prints & used & (odds_other > limit)).sum()),
            int((other.prints & ~used & (odds_other > limit)).sum()),
        ]
        for limit in (0.5, 1.0, 1.5, 2.0, 2.5)
    ]
    summary = f"{len(text.pages)} of {count} boxes left out are found as a line; {used.sum()} lines of other ink"
    figure("boxes left out that are found as a line", len(text.pages) / count, "share")
    header = ("log odds above", "share of the boxes left out", "lines of other ink", "forgotten print")
    table = [[name, f"{weight:.2f}"] for name, weight in zip(missing_boxes.WEIGHTS, weights, strict=True)]
    parts = [summary, markdown(header, rows), markdown(("term", "weight"), [*table, ["bias", f"{bias:.2f}"]])]
    publish("audit-fit", page("Lines that nobody boxed: the weights", "\n\n".join(parts)), args)


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    command = parser(__doc__)
    data = ROOT.parent / "shared" / "data" / "sroie"
    command.add_argument("--data", type=Path, default=data, help="receipts with train/")
    command.add_argument("--times", type=int, default=3, help="how often boxes are left out of each page (default 3)")
    return command.parse_args()


def collect(pages: list[planted.Page], times: int, rng: np.random.Generator) -> tuple[Lines, Lines, int]:
    """Return the lines of boxes left out, those of other ink, and how many boxes were left out."""
    text: list[tuple[int, missing_boxes.Line]] = []
    other: list[tuple[int, missing_boxes.Line]] = []
    count = 0
    for number, raw_page in enumerate(pages):
        image = page_image.decode(raw_page.image)[0]
        other += [(number, line) for line, _ in placed_lines(image, raw_page.boxes)]
        for _ in range(times):
            size = min(LEFT_OUT, max(1, int(SHARE * len(raw_page.boxes))))
            gone = set(rng.choice(len(raw_page.boxes), size, replace=False).tolist())
            lines = placed_lines(image, [box for at, box in enumerate(raw_page.boxes) if at not in gone])
            best = [_line_of(raw_page.boxes[at], lines) for at in gone]
            text += [(number, line) for line in best if line is not None]
            count += size
    return _lines(text), _lines(other), count


def placed_lines(image: page_image.Image, boxes: list[planted.Box]) -> list[PlacedLine]:
    """Return the lines outside `boxes`."""
    sheet = page_image.sheet(image, [box.corners.astype(np.float32) for box in boxes])
    lines = []
    for line in missing_boxes.lines(sheet):
        x, y, w, h = (value / sheet.scale for value in line.box)
        lines.append((line, (x, y, x + w, y + h)))
    return lines


def crossed(text: Lines, other: Lines, used: Bools) -> tuple[Floats, Floats]:
    """Return the log odds of all lines by the model of the pages of the other half."""
    odds = np.zeros(len(text.pages)), np.zeros(len(other.pages))
    for half in (0, 1):
        weights, bias = fit(text.terms[text.pages % 2 != half], other.terms[used & (other.pages % 2 != half)])
        for lines, put in zip((text, other), odds, strict=True):
            own = lines.pages % 2 == half
            put[own] = lines.terms[own] @ weights + bias
    return odds


def fit(text: Floats, other: Floats) -> tuple[Floats, float]:
    """Return weights (T,) and bias of a logistic model of text (N, T) against other ink (M, T); by Newton's method."""
    terms = np.concatenate([text, other])
    wanted = np.r_[np.ones(len(text)), np.zeros(len(other))]
    mean, spread = terms.mean(axis=0), terms.std(axis=0) + 1e-9
    scaled = np.column_stack([(terms - mean) / spread, np.ones(len(terms))])
    ridge = RIDGE * np.diag(np.r_[np.ones(terms.shape[1]), 0.0])
    weights = np.zeros(scaled.shape[1])
    for _ in range(30):
        share = 1 / (1 + np.exp(-np.clip(scaled @ weights, -30, 30)))
        slope = scaled.T @ (wanted - share) - ridge @ weights
        bend = (scaled * (share * (1 - share))[:, None]).T @ scaled + ridge
        step = np.linalg.solve(bend, slope)
        weights += step
        if np.abs(step).max() < 1e-6:
            break
    return weights[:-1] / spread, float(weights[-1] - (weights[:-1] / spread) @ mean)


def _line_of(box: planted.Box, lines: list[PlacedLine]) -> missing_boxes.Line | None:
    """Return the line that covers most of a box, and lies in it."""
    fitting = [
        (planted.covered(box.bounds, place), at)
        for at, (_, place) in enumerate(lines)
        if planted.covered(place, box.bounds) >= INSIDE and planted.covered(box.bounds, place) >= COVERED
    ]
    return lines[max(fitting)[1]][0] if fitting else None


def _lines(numbered: list[tuple[int, missing_boxes.Line]]) -> Lines:
    return Lines(
        np.array([missing_boxes.terms(line) for _, line in numbered]).reshape(-1, len(missing_boxes.WEIGHTS)),
        np.array([number for number, _ in numbered], np.int64),
        np.array([missing_boxes.is_print(line) for _, line in numbered], np.bool_),
        np.array([line["known"] for _, line in numbered], np.float64),
    )


if __name__ == "__main__":
    main()
