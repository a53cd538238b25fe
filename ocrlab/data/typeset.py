"""Letters on paper: where each glyph goes, the exact boxes of lines and words, and the ink itself.

Boxes come from the font's own tables in font units, not from the rasteriser, so that annotations do not change with
the version of FreeType. Every glyph is then drawn at the place which those tables give it, without kerning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import matplotlib
import numpy as np
from fontTools.ttLib import TTFont
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

SCALE = 2  # pixels of the ink plane per pixel of paper
MARGIN = 0.07  # of the em, between ink and box; as loose as the boxes of SROIE

# Computer Modern carries no creation date, and fontTools says so each time.
logging.getLogger("fontTools.ttLib.tables._h_e_a_d").setLevel(logging.ERROR)


@dataclass(frozen=True)
class Face:
    """The metrics of one font in font units: advance per character and ink box (x0, y0, x1, y1), y up, where inked."""

    path: Path
    units: int
    advance: dict[str, int]
    ink: dict[str, tuple[int, int, int, int]]


@dataclass(frozen=True)
class Piece:
    """One text box: its left end `x` and baseline `y` in pixels of paper, em `size`, and horizontal `stretch`."""

    text: str
    font: str
    x: float
    y: float
    size: float
    stretch: float = 1.0
    inverse: bool = False  # light letters on a bar of ink


@lru_cache(maxsize=None)
def face(name: str) -> Face:
    """Return the metrics of a TrueType font that matplotlib ships, by file name without `.ttf`."""
    path = Path(matplotlib.get_data_path(), "fonts", "ttf", f"{name}.ttf")
    with TTFont(path, lazy=True) as tables:
        names = {chr(code): glyph for code, glyph in tables.getBestCmap().items() if 32 <= code < 127}
        widths, outlines = tables["hmtx"], tables["glyf"]
        advance = {letter: int(widths[glyph][0]) for letter, glyph in names.items()}
        shapes = {letter: outlines[glyph] for letter, glyph in names.items()}
        ink = {letter: (s.xMin, s.yMin, s.xMax, s.yMax) for letter, s in shapes.items() if s.numberOfContours}
        return Face(path, int(tables["head"].unitsPerEm), advance, ink)


@lru_cache(maxsize=256)
def _pen(path: Path, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)


def width(text: str, font: str, size: float, stretch: float = 1.0) -> float:
    """Return the advance width of `text` in pixels of paper."""
    metrics = face(font)
    return sum(metrics.advance[letter] for letter in text) * size * stretch / metrics.units


def box(piece: Piece, start: int = 0, stop: int | None = None) -> tuple[float, float, float, float]:
    """Return (x0, y0, x1, y1) in pixels of paper around the ink of the characters start..stop, with the margin."""
    metrics = face(piece.font)
    across, down = piece.size * piece.stretch / metrics.units, piece.size / metrics.units
    pen = 0
    boxes = []
    for place, letter in enumerate(piece.text[:stop]):
        if place >= start and letter in metrics.ink:
            x0, y0, x1, y1 = metrics.ink[letter]
            boxes.append((pen + x0, -y1, pen + x1, -y0))
        pen += metrics.advance[letter]
    assert boxes, f"no ink in {piece.text!r}[{start}:{stop}]"
    margin = MARGIN * piece.size
    x0, y0 = (min(corner) for corner in list(zip(*boxes, strict=True))[:2])
    x1, y1 = (max(corner) for corner in list(zip(*boxes, strict=True))[2:])
    return (
        piece.x + x0 * across - margin,
        piece.y + y0 * down - margin,
        piece.x + x1 * across + margin,
        piece.y + y1 * down + margin,
    )


def words(piece: Piece) -> Iterator[tuple[str, tuple[float, float, float, float]]]:
    """Yield each word of the piece with its box, left to right."""
    start = 0
    for word in piece.text.split(" "):
        if word:
            yield word, box(piece, start, start + len(word))
        start += len(word) + 1


def draw(piece: Piece, plane: NDArray[np.uint8]) -> None:
    """Add the ink of the piece to `plane`, (H, W) uint8 with SCALE pixels per pixel of paper, 255 is full ink."""
    metrics = face(piece.font)
    size = round(piece.size * SCALE)
    pen = _pen(metrics.path, size)
    pad = size // 2
    natural = round(width(piece.text, piece.font, size)) + 2 * pad
    strip = Image.new("L", (natural, 2 * size))
    brush = ImageDraw.Draw(strip)
    x = 0
    for letter in piece.text:
        if letter in metrics.ink:
            at = (pad + round(x * size / metrics.units), size + size // 2)
            brush.text(at, letter, fill=255, font=pen, anchor="ls")
        x += metrics.advance[letter]
    across = round(natural * piece.stretch)
    if across != natural:
        strip = strip.resize((across, 2 * size), Image.Resampling.BILINEAR)
    ink = np.asarray(strip)
    left = round(piece.x * SCALE - pad * across / natural)
    top = round(piece.y * SCALE) - size - size // 2
    y0, x0 = max(top, 0), max(left, 0)
    target = plane[y0 : top + ink.shape[0], x0 : left + ink.shape[1]]
    source = ink[y0 - top :, x0 - left :][: target.shape[0], : target.shape[1]]
    if piece.inverse:
        np.minimum(target, 255 - source, out=target)
    else:
        np.maximum(target, source, out=target)
