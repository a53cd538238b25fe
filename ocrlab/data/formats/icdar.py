"""ICDAR text: one file a page, one box a line.

    x1,y1,x2,y2,x3,y3,x4,y4,transcription      ICDAR 2015 and 2019 SROIE; the transcription may hold commas
    left,top,right,bottom,"transcription"      ICDAR 2013; also with blanks instead of the commas
    x1,y1,...,xN,yN,transcription              curved text, see curved_text.py

`###` means do not count (Karatzas et al. 2015, Robust Reading, challenge 4). What a file has is told by its lines.
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
from ocrlab.data.annotations import LIMIT, Boxes, PageError, read_text
from ocrlab.data.formats import curved_text
from ocrlab.geometry import Polygon

NEED = "8 numbers, then the transcription: x1,y1,x2,y2,x3,y3,x4,y4,text"
NUMBER = r"\s*([-+]?\d+(?:\.\d*)?)\s*"
RECTANGLE = re.compile(rf"{NUMBER}[,\s]{NUMBER}[,\s]{NUMBER}[,\s]{NUMBER}(?:[,\s]\s*(.*))?")
LONGER = re.compile(r"\s*[-+.\d#]")  # how a transcription starts that could be a fifth point

Row = tuple[int, str]  # line number and line


def read_icdar(path: Path | str) -> Boxes:
    """Read one file (UTF-8, byte-order mark and CRLF allowed; an empty one is a page without text).

    Raises PageError with the line of the first box that cannot be read.
    """
    return icdar(read_text(Path(path)), Path(path))


def icdar(text: str, file: Path) -> Boxes:
    """Return the boxes of ICDAR text; raises PageError, see `read_icdar`."""
    boxes = Boxes()
    rows: list[list[float]] = []
    lines = [(number, line.removeprefix("\ufeff")) for number, line in enumerate(text.split("\n"), 1)]
    lines = [(number, line) for number, line in lines if line.strip()]  # the mark also stands where files were joined
    broken, longer = None, False
    for number, line in lines:
        fields = line.split(",", 8)
        try:
            row = [float(word) for word in fields[:8]]
        except ValueError:
            row = []
        if len(row) < 8:
            broken = broken or (number, line)
            continue
        longer = longer or (len(fields) > 8 and LONGER.match(fields[8]) is not None)
        rows.append(row)
        boxes.add(None, "".join(fields[8:]))
    if broken or longer:
        other = curved_text.outlines([line for _, line in lines]) or (None if rows else _rectangles(lines))
        if other:
            return _boxes(other)
    if broken:
        raise _bad(file, *broken)
    points = np.array(rows, np.float64).reshape(-1, 8)
    wrong = ~(abs(points) <= LIMIT).all(axis=1)  # not `> LIMIT`, which NaN passes
    if wrong.any():
        raise _bad(file, *lines[wrong.argmax()])
    boxes.polygons = list(points.astype(np.float32).reshape(-1, 4, 2))
    return boxes


def write_icdar(
    path: Path | str, polygons: Iterable[NDArray[Any]], texts: Sequence[str] | None = None, *, decimals: int = 0
) -> None:
    """Write what `text_of` returns; raises ValueError if there is not one text for each polygon, and OSError."""
    text = text_of(polygons, texts, decimals=decimals)
    Path(path).write_text(text, encoding="utf-8", errors="replace", newline="\n")


def text_of(polygons: Iterable[NDArray[Any]], texts: Sequence[str] | None = None, *, decimals: int = 0) -> str:
    """Return the text of one file: a quad a line and, with `texts`, the transcription behind it.

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


def _rectangles(lines: Sequence[Row]) -> list[tuple[Polygon, str]] | None:
    """Return the boxes of ICDAR 2013 lines, or None if some line is none: it has to name two opposite corners."""
    pairs = []
    for _, line in lines:
        row = RECTANGLE.fullmatch(line)
        if not row:
            return None
        left, top, right, bottom = map(float, row.groups()[:4])
        text = (row[5] or "").strip()
        more = [word for word in text.split(",")[:4] if curved_text.is_number(word)]
        if not (left < right <= LIMIT and top < bottom <= LIMIT) or len(more) >= 3:  # a damaged quad
            return None
        if len(text) >= 2 and text[0] == text[-1] == '"':
            text = text[1:-1].replace('\\"', '"')
        pairs.append((field_parsing.rectangle(left, top, right, bottom), text))
    return pairs


def _boxes(pairs: Sequence[tuple[Polygon, str]]) -> Boxes:
    boxes = Boxes()
    for polygon, text in pairs:
        boxes.add(polygon, text)
    return boxes


def _bad(path: Path, number: int, line: str) -> PageError:
    """Say what is wrong with a line that could not be read."""
    fields = line.split(",", 8)[:8]
    got = repr(line if len(line) <= 80 else line[:80] + "...")
    for index, text in enumerate(fields):
        try:
            value = float(text)
        except ValueError:
            what = f"field {index + 1} is not a number"
            break
        if not abs(value) <= LIMIT:
            what = f"field {index + 1} is not a position in pixels"
            break
    else:
        what = f"{len(fields)} fields are too few"
    return PageError(what, file=path, line=number, got=got, need=NEED)
