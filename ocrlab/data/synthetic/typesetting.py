"""Letters on paper: where each glyph goes, the exact boxes of the texts, and the ink itself.

Boxes come from the font's own tables in font units, not from the rasteriser, so that annotations do not change with
the version of FreeType. Every glyph is then drawn at the place which those tables give it, without kerning.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

import matplotlib
import numpy as np
from fontTools.ttLib import TTFont
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Box = tuple[float, float, float, float]  # x0, y0, x1, y1, y down
SCALE = 2  # pixels of the ink plane per pixel of paper
FINER = 2  # letters are drawn larger than the plane and reduced, so that hinting moves them by little
MARGIN = 0.07  # of the em, between ink and box; as loose as the boxes of SROIE

# Computer Modern carries no creation date, and fontTools warns each time.
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


@cache
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


@cache
def _font(path: Path, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)


def length(text: str, font: str, size: float, stretch: float = 1.0) -> float:
    """Return the advance width of `text` in pixels of paper."""
    metrics = face(font)
    return sum(metrics.advance[letter] for letter in text) * size * stretch / metrics.units


def box(piece: Piece) -> Box:
    """Return the box of a piece: its ink and the margin, in pixels of paper."""
    metrics = face(piece.font)
    across, down, margin = piece.size * piece.stretch / metrics.units, piece.size / metrics.units, MARGIN * piece.size
    starts = accumulate((metrics.advance[letter] for letter in piece.text), initial=0)
    inked = [
        (pen, metrics.ink[letter]) for pen, letter in zip(starts, piece.text, strict=False) if letter in metrics.ink
    ]
    left, right = min(pen + x0 for pen, (x0, *_) in inked), max(pen + x1 for pen, (_, _, x1, _) in inked)
    low, high = min(y0 for _, (_, y0, *_) in inked), max(y1 for _, (*_, y1) in inked)
    return (
        piece.x + left * across - margin,
        piece.y - high * down - margin,
        piece.x + right * across + margin,
        piece.y - low * down + margin,
    )


def draw(piece: Piece, plane: NDArray[np.uint8]) -> None:
    """Add the ink of the piece to `plane`, (H, W) uint8 with SCALE pixels per pixel of paper, 255 is full ink."""
    metrics = face(piece.font)
    size = round(piece.size * SCALE * FINER)  # an even number, as sizes are multiples of half a pixel
    strip = Image.new("L", (round(length(piece.text, piece.font, size)) + size, 2 * size))
    brush = ImageDraw.Draw(strip)
    pen = 0
    for letter in piece.text:
        if letter in metrics.ink:  # half an em of space on the left, one and a half above the baseline
            at = (size // 2 + round(pen * size / metrics.units), size + size // 2)
            brush.text(at, letter, fill=255, font=_font(metrics.path, size), anchor="ls")
        pen += metrics.advance[letter]
    across, down = round(strip.width * piece.stretch / FINER), 2 * size // FINER
    ink = np.asarray(strip.resize((across, down), Image.Resampling.BILINEAR))
    left = round(piece.x * SCALE - size / 2 * across / strip.width)
    top = round(piece.y * SCALE) - down * 3 // 4
    y, x = max(top, 0), max(left, 0)
    target = plane[y : max(top + down, 0), x : max(left + across, 0)]
    source = ink[y - top :, x - left :][: target.shape[0], : target.shape[1]]
    if piece.inverse:
        np.minimum(target, 255 - source, out=target)
    else:
        np.maximum(target, source, out=target)
