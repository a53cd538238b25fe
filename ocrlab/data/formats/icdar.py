"""ICDAR text: one file a page, one box a line.

    x1,y1,x2,y2,x3,y3,x4,y4,transcription      ICDAR 2015 and 2019 SROIE; the transcription may hold commas
    left,top,right,bottom,"transcription"      ICDAR 2013; also with blanks instead of the commas
    x1,y1,...,xN,yN,transcription              curved text, see curved_text.py

`###` means do not count (Karatzas et al. 2015, Robust Reading, challenge 4). A file's lines decide its form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrlab import geometry
from ocrlab.data import field_parsing
from ocrlab.data.annotations import LIMIT, MOST_BOXES, Boxes, PageError, read_text
from ocrlab.data.formats import curved_text
from ocrlab.geometry import Polygon

NEED = "8 numbers, then the transcription: x1,y1,x2,y2,x3,y3,x4,y4,text"
NUMBER = r"\s*([-+]?\d+(?:\.\d*)?)\s*"
RECTANGLE = re.compile(rf"{NUMBER}[,\s]{NUMBER}[,\s]{NUMBER}[,\s]{NUMBER}(?:[,\s]\s*(.*))?")
LONGER = re.compile(r"\s*[-+.\d#]")  # how a transcription starts that could be a fifth point


def read_icdar(path: Path | str) -> Boxes:
    """Read one file (UTF-8, byte-order mark and CRLF allowed; an empty one is a page without text).

    Raises PageError with the line of the first box that cannot be read.
    """
    return icdar(read_text(Path(path)), Path(path))


def rows_of(text: str) -> list[tuple[int, str]]:
    """Return number and content of the lines that are not blank; files that were joined have marks in between."""
    lines = [(number, line.removeprefix("\ufeff")) for number, line in enumerate(text.split("\n"), 1)]
    return [(number, line) for number, line in lines if line.strip()]


def icdar(text: str, file: Path) -> Boxes:
    """Return the boxes of ICDAR text; raises PageError, see `read_icdar`."""
    boxes = Boxes()
    quads: list[list[float]] = []
    broken, longer = None, False
    lines = rows_of(text)
    for number, line in lines:
        fields = line.split(",", 8)
        try:
            quad = [float(word) for word in fields[:8]]
        except ValueError:
            quad = []
        if len(quad) < 8:
            broken = broken or (number, line)
            continue
        longer = longer or (len(fields) > 8 and LONGER.match(fields[8]) is not None)
        quads.append(quad)
        boxes.add(None, "".join(fields[8:]))
    if broken or longer:
        outlines = curved_text.outlines([line for _, line in lines]) or (None if quads else _rectangles(lines))
        if outlines:
            boxes = Boxes()
            for polygon, transcription in outlines:
                boxes.add(polygon, transcription)
            return boxes
    if broken:
        raise _bad_line(file, *broken)
    points = np.array(quads, np.float64).reshape(-1, 8)
    wrong = ~(abs(points) <= LIMIT).all(axis=1)  # not `> LIMIT`, which NaN passes
    if wrong.any():
        raise _bad_line(file, *lines[wrong.argmax()])
    if len(points) > MOST_BOXES:
        raise PageError("too many boxes", file=file, got=f"{len(points):,}", need=f"at most {MOST_BOXES:,} on a page")
    boxes.polygons = list(points.astype(np.float32).reshape(-1, 4, 2))
    return boxes


def _rectangles(lines: Sequence[tuple[int, str]]) -> list[tuple[Polygon, str]] | None:
    """Return the boxes of ICDAR 2013 lines, or None if some line does not name two opposite corners."""
    pairs = []
    for _, line in lines:
        row = RECTANGLE.fullmatch(line)
        if not row:
            return None
        left, top, right, bottom = map(float, row.groups()[:4])
        text = (row[5] or "").strip()
        more = sum(map(curved_text.is_number, text.split(",")[:4]))
        if not (left < right <= LIMIT and top < bottom <= LIMIT) or more >= 3:  # a damaged quad
            return None
        if len(text) >= 2 and text[0] == text[-1] == '"':
            text = text[1:-1].replace('\\"', '"')
        pairs.append((field_parsing.rectangle(left, top, right, bottom), text))
    return pairs


def _bad_line(path: Path, number: int, line: str) -> PageError:
    """Say what is wrong with a line that could not be read."""
    fields = line.split(",", 8)[:8]
    what = f"{len(fields)} fields are too few"
    for index, field in enumerate(fields, 1):
        try:
            if not abs(float(field)) <= LIMIT:
                what = f"field {index} is not a position in pixels"
                break
        except ValueError:
            what = f"field {index} is not a number"
            break
    got = repr(line if len(line) <= 80 else line[:80] + "...")
    return PageError(what, file=path, line=number, got=got, need=NEED)


def write_icdar(
    path: Path | str, polygons: Iterable[NDArray[Any]], texts: Sequence[str] | None = None, *, decimals: int = 0
) -> None:
    """Write what `text_of` returns; raises ValueError if there is not one text for each polygon, and OSError."""
    text = text_of(polygons, texts, decimals=decimals)
    Path(path).write_text(text, encoding="utf-8", errors="replace", newline="\n")


def text_of(polygons: Iterable[NDArray[Any]], texts: Sequence[str] | None = None, *, decimals: int = 0) -> str:
    """Return the text of one file: a quad a line and, with `texts`, the transcription after it.

    The format knows only quads in whole pixels: any other polygon (P, 2) becomes its smallest rectangle; `decimals`
    other than 0 is for annotations that must be exact. Raises ValueError if there is not one text for each polygon.
    """
    quads = [as_quad(np.asarray(polygon, np.float32)) for polygon in polygons]
    # No comma without a text: an evaluator of boxes alone takes lines of 8 numbers and no others.
    texts = [""] * len(quads) if texts is None else texts
    ends = ["," + " ".join(text.splitlines()) if text else "" for text in texts]
    lines = []
    for quad, end in zip(quads, ends, strict=True):
        values = (np.round(quad, decimals) + 0.0).ravel()  # + 0.0: no "-0"
        lines.append(",".join(f"{value:.{decimals}f}" for value in values) + end + "\n")
    return "".join(lines)


def as_quad(polygon: Polygon) -> Polygon:
    """Return a polygon (P, 2) as 4 points: itself, or its smallest rectangle, clockwise from the top left."""
    return polygon if len(polygon) == 4 else geometry.order(cv2.boxPoints(cv2.minAreaRect(polygon)))
