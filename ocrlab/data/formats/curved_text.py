"""Texts of more than four points: Total-Text, SCUT-CTW1500 in its three forms, and lines of 2N numbers.

    Total-Text   x: [[115 503 494 115]], y: [[322 346 426 404]], ornt: [u'm'], transcriptions: [u'nauGHTY']
    CTW1500      x1,y1,...,x14,y14,####transcription       as tests are annotated; ####### is ### and does not count
                 left,top,right,bottom,dx1,dy1,...,dx14,dy14     first release: offsets from left and top, 32 numbers
                 <image file=NAME><box left= top= width= height=><label>text</label><segs>x1,y1,...</segs></box></image>
    2N numbers   x1,y1,...,xN,yN,transcription             N may change from line to line

Sources: Chng and Chan 2017, Total-Text; Liu et al. 2017, Curve-Text-Detector.
"""

from __future__ import annotations

import ast
import re
from itertools import takewhile
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from ocrlab.data.annotations import LIMIT, Boxes, PageError
from ocrlab.data.field_parsing import flat_points
from ocrlab.geometry import Polygon

MARK = "####"  # ends the numbers of a line, where the transcription could be one itself
DO_NOT_CARE = "#"  # Total-Text's orientation and transcription of what does not count
RECORD = re.compile(
    r"x:\s*\[\[?(.*?)\]\]?\s*,\s*y:\s*\[\[?(.*?)\]\]?\s*,\s*ornt:\s*\[(.*?)\]\s*,\s*transcriptions:\s*\[(.*)\]"
)
TOTAL_TEXT = "x: [[x1 x2 ...]], y: [[y1 y2 ...]], ornt: [u'c'], transcriptions: [u'text']"
CTW_XML = "<Annotations><image file=NAME><box ...><label>text</label><segs>x1,y1,...,xN,yN</segs></box>..."
CLOSED, FAR = 1.5, 1.5  # lengths, relative to the side across and to the longest step before

Floats = NDArray[np.float64]


def total_text(text: str, file: Path) -> Boxes:
    """Return the boxes of a Total-Text file; a record may run over several lines. Raises PageError with the line."""
    boxes = Boxes()
    records: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("x:"):
            records.append((number, line))
        elif line.strip():
            if not records:
                raise PageError("not a record", file=file, line=number, got=repr(line[:80]), need=TOTAL_TEXT)
            records[-1] = records[-1][0], f"{records[-1][1]} {line}"
    for number, record in records:
        match = RECORD.fullmatch(record.strip())
        try:
            if not match:
                raise ValueError
            x, y = ([float(word) for word in re.split(r"[\s,]+", match[axis].strip()) if word] for axis in (1, 2))
            orientation, words = (ast.literal_eval(f"[{match[part]}]") for part in (3, 4))
            polygon = flat_points([n for xy in zip(x, y, strict=True) for n in xy], "the outline")
        except (ValueError, SyntaxError, RecursionError):  # PageError is a ValueError
            got = repr(record[:80])
            raise PageError("a record is damaged", file=file, line=number, got=got, need=TOTAL_TEXT) from None
        transcription = ",".join(map(str, words))
        boxes.add(polygon, transcription, DO_NOT_CARE in orientation or transcription in (DO_NOT_CARE, ""))
    return boxes


def ctw_xml(text: str, file: Path) -> Boxes:
    """Return the boxes of a CTW1500 training annotation; raises PageError."""
    if "<!DOCTYPE" in text or "<!ENTITY" in text:  # entities can grow without bound, and no annotation needs them
        raise PageError("defines XML entities", file=file, got="<!DOCTYPE", need=CTW_XML)
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise PageError("is not XML", file=file, line=error.position[0], got=str(error), need=CTW_XML) from error
    images = [root] if root.tag == "image" else root.findall("image")
    if len(images) != 1:
        got = f"<{root.tag}>, {len(images)} images"
        raise PageError("is not one page of CTW1500", file=file, got=got, need=CTW_XML)

    def read(box: ElementTree.Element) -> tuple[Polygon, str, bool]:
        numbers = [_number(word) for word in (box.findtext("segs") or "").strip().rstrip(",").split(",")]
        return flat_points(numbers, "segs"), (box.findtext("label") or "").strip(), False

    try:
        return Boxes().read("box {}", enumerate(images[0].findall("box")), read)
    except PageError as error:
        raise error.within(file=file) from None


def outlines(lines: list[str]) -> list[tuple[Polygon, str]] | None:
    """Return outline and transcription of each line of a text file, or None if none has other than four points."""
    split = [line.split(",") for line in lines]
    counts = [len(list(takewhile(is_number, fields))) for fields in split]
    if all(count == len(fields) == 32 for count, fields in zip(counts, split, strict=True)):
        offsets = [_offsets(np.array(fields, np.float64)) for fields in split]
        if all(polygon is not None for polygon in offsets):
            return [(polygon, "") for polygon in offsets if polygon is not None]
    pairs, longer = [], False
    for fields, count in zip(split, counts, strict=True):
        text = ",".join(fields[count:])
        if text.startswith(MARK) and count >= 6 and count % 2 == 0 and count != 8:
            text = text.removeprefix(MARK)
        elif count < 8:
            return None
        else:
            count = 2 * _outline_length(np.array(fields[: count - count % 2], np.float64).reshape(-1, 2))
            text = ",".join(fields[count:])
        longer |= count != 8
        points = np.array(fields[:count], np.float64).reshape(-1, 2)
        if not (abs(points) <= LIMIT).all():
            return None
        pairs.append((points.astype(np.float32), text))
    return pairs if longer else None


def _outline_length(points: Floats) -> int:
    """Return how many points of a line, four or more, are its outline: a transcription can be made of numbers too.

    Four points that close a box are one: the way back to the first is about as long as the side across. Of a longer
    outline they are most of one edge. It ends before a step much longer than those it has made.
    """
    steps = np.hypot(*np.diff(points, axis=0).T)
    if np.hypot(*(points[3] - points[0])) <= CLOSED * steps[1]:
        return 4
    longest = np.maximum.accumulate(steps)
    far = np.flatnonzero(steps[3:] > FAR * longest[2:-1])
    return int(far[0]) + 4 if len(far) else len(points)


def _offsets(row: Floats) -> Polygon | None:
    """Return the 14 points of a line of CTW1500's first release, or None if the numbers are something else."""
    corner, size, points = row[:2], row[2:4] - row[:2], row[4:].reshape(14, 2)
    inside = (points >= -2).all() and (points <= size + 2).all()  # pixels: its rectangles are not always tight
    return (points + corner).astype(np.float32) if inside and (size > 0).all() else None


def is_number(word: str) -> bool:
    """Return whether a field of a line is a number."""
    return isinstance(_number(word), float)


def _number(word: str) -> float | str:
    """Return a word as a number, or as it is."""
    try:
        return float(word)
    except ValueError:
        return word
