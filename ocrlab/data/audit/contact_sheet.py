"""Contact sheets: each finding as a crop of its page with its box drawn and labelled, many to a picture, paged."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrlab.data.annotations import PageError, page_errors
from ocrlab.data.audit.finding import ERROR, WARN, Finding
from ocrlab.data.audit.page_image import Image
from ocrlab.data.audit.raw_annotations import Raw, pages
from ocrlab.data.image_io import read_image

CELL = (380, 200)  # width and height of a crop, pixels
LABEL, GAP, COLUMNS, ROWS = 50, 8, 4, 7  # height of the words above a crop, space between, crops in a picture
COLOURS = {ERROR: (200, 30, 30), WARN: (210, 120, 0)}  # RGB
GREY, OTHER, NEIGHBOUR = (90, 90, 90), (40, 90, 200), (150, 190, 150)
MOST = 20 * COLUMNS * ROWS  # findings that are drawn; all are in the answer
OUTLINED = 100  # boxes of a page whose outlines are drawn around a finding
SIZE = 0.42  # of the font


def sheets(path: Path | str, findings: Sequence[Finding], splits: Sequence[str] | None = None) -> Iterator[Image]:
    """Yield pictures (H, W, 3) RGB with COLUMNS x ROWS of the first MOST findings each; every page is read once.

    `path` and `splits` are those that were checked.
    """
    at: dict[tuple[str, str], list[int]] = {}
    for number, finding in enumerate(findings[:MOST]):
        at.setdefault((finding.split, finding.page), []).append(number)
    cells: dict[int, Image] = {}
    for read in pages(path, splits):
        if not at:
            break
        raw = read()
        numbers = at.pop((raw.split, raw.name), [])
        if numbers:
            image = None
            with contextlib.suppress(PageError), page_errors(raw.image):
                image = read_image(raw.image) if raw.image is not None else None
            cells |= {number: cell(findings[number], raw, image) for number in numbers}
    chosen = [cells[number] for number in sorted(cells)]
    high, wide = CELL[1] + LABEL + GAP, CELL[0] + GAP
    for start in range(0, len(chosen), COLUMNS * ROWS):
        part = chosen[start : start + COLUMNS * ROWS]
        sheet = np.full((-(-len(part) // COLUMNS) * high, min(COLUMNS, len(part)) * wide, 3), 235, np.uint8)
        for number, picture in enumerate(part):
            y, x = high * (number // COLUMNS), wide * (number % COLUMNS)
            sheet[y : y + picture.shape[0], x : x + picture.shape[1]] = picture
        yield sheet


def cell(finding: Finding, raw: Raw, image: Image | None) -> Image:
    """Return the picture of one finding: two lines of words, and below them its place on the page."""
    shown = np.full((CELL[1] + LABEL, CELL[0], 3), 255, np.uint8)
    where = f"{finding.split}/{finding.page}" + (f":{finding.box}" if finding.box else "")
    colour = COLOURS.get(finding.severity, GREY)
    _write(shown, f"{finding.kind}  {where}", (2, 13), SIZE, colour)
    for number, line in enumerate(textwrap.wrap(finding.why, 60)[:2], 1):
        _write(shown, line, (2, 13 + 16 * number), SIZE * 0.85, (0, 0, 0))
    if image is None:
        _write(shown, "no image", (10, LABEL + CELL[1] // 2), SIZE, GREY)
    else:
        crop = _crop(finding, raw, image)
        shown[LABEL : LABEL + crop.shape[0], : crop.shape[1]] = crop
    return shown


def _write(picture: Image, text: str, at: tuple[int, int], size: float, colour: tuple[int, int, int]) -> None:
    plain = text.encode("ascii", "replace").decode()
    cv2.putText(picture, plain, at, cv2.FONT_HERSHEY_SIMPLEX, size, colour, 1, cv2.LINE_AA)


def _crop(finding: Finding, raw: Raw, image: Image) -> Image:
    """Return the surroundings of a finding, at most CELL in size; the whole page where it is about that."""
    height, width = image.shape[:2]
    low, high = np.zeros(2), np.array([width, height], np.float64)
    points = np.array(finding.polygon or [], np.float64).reshape(-1, 2)
    if len(points):
        low, high = points.min(axis=0), points.max(axis=0)
        reach = max(min(high - low) * 1.5, 24)
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
    outlines: list[tuple[NDArray[np.floating], tuple[int, int, int], int]] = []
    for box in raw.boxes[:OUTLINED]:
        if box.line != finding.box:
            outlines.append((box.polygon, OTHER if box.line == other else NEIGHBOUR, 1))
    for outline, colour, thick in [*outlines, (points, COLOURS.get(finding.severity, GREY), 2)]:
        if len(outline) and np.isfinite(outline).all():
            near = np.clip(np.rint((outline - (x, y)) * scale), -10_000, 10_000).astype(np.int32)
            cv2.polylines(crop, [near], isClosed=True, color=colour, thickness=thick, lineType=cv2.LINE_AA)
    return crop
