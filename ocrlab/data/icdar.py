"""ICDAR 2015 text: one file a page, one box a line, `x1,y1,x2,y2,x3,y3,x4,y4,transcription`; SROIE writes the same.

The transcription may hold commas; `###` means do not count (Karatzas et al. 2015, Robust Reading, challenge 4).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrlab import geometry
from ocrlab.data.page import LIMIT, Boxes, PageError, read_text
from ocrlab.geometry import Polygon

NEED = "8 numbers, then the transcription: x1,y1,x2,y2,x3,y3,x4,y4,text"


def read_icdar(path: Path | str) -> Boxes:
    """Read one file (UTF-8, byte-order mark and CRLF allowed; an empty one is a page without text).

    Raises PageError with the line of the first box that cannot be read.
    """
    path = Path(path)
    boxes = Boxes()
    places: list[tuple[int, str]] = []
    rows: list[list[float]] = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        line = line.removeprefix("\ufeff")  # also in the middle, where files were joined
        if not line.strip():
            continue
        fields = line.split(",", 8)
        try:
            row = [float(text) for text in fields[:8]]
        except ValueError:
            raise _bad(path, number, line) from None
        if len(row) < 8:
            raise _bad(path, number, line)
        rows.append(row)
        places.append((number, line))
        boxes.add(None, "".join(fields[8:]))
    points = np.array(rows, np.float64).reshape(-1, 8)
    wrong = ~(abs(points) <= LIMIT).all(axis=1)  # not `> LIMIT`, which NaN passes
    if wrong.any():
        raise _bad(path, *places[wrong.argmax()])
    boxes.polygons = list(points.astype(np.float32).reshape(-1, 4, 2))
    return boxes


def write_icdar(
    path: Path | str, polygons: Iterable[NDArray[Any]], texts: Sequence[str] | None = None, *, decimals: int = 0
) -> None:
    """Write one file: a quad a line and, with `texts`, the transcription behind it.

    The format knows only quads in whole pixels: any other polygon (P, 2) becomes its smallest rectangle; `decimals`
    other than 0 is for annotations that must be exact. Raises ValueError if there is not one text for each polygon.
    """
    quads = [_quad(np.asarray(polygon, np.float32)) for polygon in polygons]
    # No comma without a text: an evaluator of boxes alone takes lines of 8 numbers and no others.
    texts = [""] * len(quads) if texts is None else texts
    ends = ["," + " ".join(text.splitlines()) if text else "" for text in texts]
    lines = []
    for quad, end in zip(quads, ends, strict=True):
        values = (np.round(quad, decimals) + 0.0).ravel()  # + 0.0: no "-0"
        lines.append(",".join(f"{value:.{decimals}f}" for value in values) + end + "\n")
    Path(path).write_text("".join(lines), encoding="utf-8", errors="replace", newline="\n")


def _quad(polygon: Polygon) -> Polygon:
    """Return a polygon (P, 2) as 4 points: itself, or its smallest rectangle, clockwise from the top left."""
    return polygon if len(polygon) == 4 else geometry.order(cv2.boxPoints(cv2.minAreaRect(polygon)))


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
