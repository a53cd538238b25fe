"""Contact sheets: each finding as a crop of its page with its box drawn and labelled, many to a picture, paged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrlab.data.annotations import PageError
from ocrlab.data.audit.finding import ERROR, WARN, Finding
from ocrlab.data.audit.page_image import Image
from ocrlab.data.audit.raw_annotations import Raw, pages
from ocrlab.data.image_io import read_image

CELL = (380, 200)  # width and height of a crop, pixels
LABEL, GAP, COLUMNS, ROWS = 50, 8, 4, 7  # height of the words above a crop, space between, crops in a picture
COLOURS = {ERROR: (200, 30, 30), WARN: (210, 120, 0)}  # RGB
OTHER, NEIGHBOUR = (40, 90, 200), (150, 190, 150)
FONT, SIZE = cv2.FONT_HERSHEY_SIMPLEX, 0.42


def sheets(path: Path | str, findings: Sequence[Finding], splits: Sequence[str] | None = None) -> Iterator[Image]:
    """Yield pictures (H, W, 3) RGB with COLUMNS x ROWS findings each, in their order; every page is read once.

    `path` and `splits` are those that were checked.
    """
    at: dict[tuple[str, str], list[int]] = {}
    for number, finding in enumerate(findings):
        at.setdefault((finding.split, finding.page), []).append(number)
    cells: dict[int, Image] = {}
    for read in pages(path, splits):
        raw = read()
        numbers = at.pop((raw.split, raw.name), [])
        if numbers:
            image = _image(raw)
            cells |= {number: cell(findings[number], raw, image) for number in numbers}
    whole = [cells[number] for number in sorted(cells)]
    for start in range(0, len(whole), COLUMNS * ROWS):
        yield _grid(whole[start : start + COLUMNS * ROWS])


def cell(finding: Finding, raw: Raw, image: Image | None) -> Image:
    """Return the picture of one finding: two lines of words, and below them its place on the page."""
    shown = np.full((CELL[1] + LABEL, CELL[0], 3), 255, np.uint8)
    where = f"{finding.split}/{finding.page}" + (f":{finding.box}" if finding.box else "")
    lines = [f"{finding.kind}  {where}", *_wrapped(finding.why)]
    for number, line in enumerate(lines[:3]):
        colour = COLOURS.get(finding.severity, (90, 90, 90)) if number == 0 else (0, 0, 0)
        size = SIZE if number == 0 else SIZE * 0.85
        plain = line.encode("ascii", "replace").decode()
        cv2.putText(shown, plain, (2, 13 + 16 * number), FONT, size, colour, 1, cv2.LINE_AA)
    if image is None:
        cv2.putText(shown, "no image", (10, LABEL + CELL[1] // 2), FONT, SIZE, (90, 90, 90), 1, cv2.LINE_AA)
    else:
        crop = _crop(finding, raw, image)
        shown[LABEL : LABEL + crop.shape[0], : crop.shape[1]] = crop
    return shown


def _crop(finding: Finding, raw: Raw, image: Image) -> Image:
    """Return the surroundings of a finding, at most CELL in size; the whole page where it is about that."""
    height, width = image.shape[:2]
    low, high = np.zeros(2), np.array([width, height], np.float64)
    points = None if finding.polygon is None else np.array(finding.polygon, np.float64)
    if points is not None and len(points):
        low, high = points.min(axis=0), points.max(axis=0)
        reach = np.maximum(min(high - low) * 1.5, 24) + np.zeros(2)
        limit = np.array([width - 1.0, height - 1.0])
        low, high = np.clip(low - reach, 0, limit), np.clip(high + reach, 1, limit + 1)
        high = np.maximum(high, low + 1)
    x, y = np.floor(low).astype(int)
    right, bottom = np.ceil(high).astype(int)
    scale = float(min(CELL[0] / (right - x), CELL[1] / (bottom - y), 4))
    size = (max(1, round((right - x) * scale)), max(1, round((bottom - y) * scale)))
    way = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    crop = np.ascontiguousarray(cv2.resize(image[y:bottom, x:right], size, interpolation=way), np.uint8)
    other = int(finding.other.rpartition(":")[2]) if finding.box and finding.other and ":" in finding.other else None
    for box in raw.boxes:
        if box.polygon is not None and np.isfinite(box.polygon).all() and box.line != finding.box:
            _draw(crop, (box.polygon - (x, y)) * scale, OTHER if box.line == other else NEIGHBOUR, 1)
    if points is not None:
        _draw(crop, (points - (x, y)) * scale, COLOURS.get(finding.severity, (90, 90, 90)), 2)
    return crop


def _draw(crop: Image, points: NDArray[np.floating], colour: tuple[int, int, int], thick: int) -> None:
    near = np.clip(np.rint(points), -10_000, 10_000).astype(np.int32)
    if len(near):
        cv2.polylines(crop, [near], isClosed=True, color=colour, thickness=thick, lineType=cv2.LINE_AA)


def _wrapped(text: str) -> list[str]:
    """Break words into lines that fit above a crop."""
    lines, line = [], ""
    for word in text.split():
        if len(line) + len(word) > 60:
            lines.append(line)
            line = ""
        line += word + " "
    return [*lines, line]


def _grid(cells: list[Image]) -> Image:
    rows = -(-len(cells) // COLUMNS)
    high, wide = CELL[1] + LABEL + GAP, CELL[0] + GAP
    whole = np.full((rows * high, min(COLUMNS, len(cells)) * wide, 3), 235, np.uint8)
    for number, picture in enumerate(cells):
        y, x = high * (number // COLUMNS), wide * (number % COLUMNS)
        whole[y : y + picture.shape[0], x : x + picture.shape[1]] = picture
    return whole


def _image(raw: Raw) -> Image | None:
    if raw.image is None:
        return None
    try:
        return read_image(raw.image)
    except PageError:
        return None
