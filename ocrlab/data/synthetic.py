"""Synthetic receipts: seeded pages with exact polygons of lines and words, and the folder `data_samples/` made of them."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrlab.data import marks, paper, typeset
from ocrlab.data.dice import Dice
from ocrlab.data.receipt import layout
from ocrlab.errors import DataError

Quad = NDArray[np.float32]


@dataclass(frozen=True)
class Page:
    """A photographed receipt: `image` (H, W, 3) RGB uint8, and quads (4, 2) xy, clockwise from the top left, with texts."""

    image: NDArray[np.uint8]
    lines: list[Quad]
    texts: list[str]
    words: list[Quad]
    word_texts: list[str]
    jpeg: bytes


def page(seed: int, *, width: int | None = None, height: int | None = None) -> Page:
    dice = Dice(seed, 0)
    width = width or 8 * dice.whole(68, 86)
    height = height or 8 * dice.whole(104, 124)
    sheet = layout(Dice(seed, 1), round(width * dice.between(0.8, 0.96)), round(height * 0.97))
    matrix = paper.place(Dice(seed, 2), (sheet.width, sheet.height), (width, height))
    ink = marks.printed(Dice(seed, 3), sheet)
    for piece in sheet.pieces:
        typeset.draw(piece, ink)
    pen = marks.handmade(Dice(seed, 4), sheet)
    picture = paper.photograph(Dice(seed, 5), ink, pen, matrix, (width, height))
    q = dice.whole(60, 85)
    ok, coded = cv2.imencode(".jpg", picture[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, q])

    def quad(box):
        x0, y0, x1, y1 = box
        return np.array([paper.project(matrix, *p) for p in ((x0, y0), (x1, y0), (x1, y1), (x0, y1))], np.float32)
    lines = [quad(typeset.box(p)) for p in sheet.pieces]
    ws = [w for p in sheet.pieces for w in typeset.words(p)]
    return Page(cv2.imdecode(coded, cv2.IMREAD_COLOR)[:, :, ::-1], lines, [p.text for p in sheet.pieces], [quad(b) for _, b in ws], [t for t, _ in ws], coded.tobytes())
