"""COCO's run-length masks: down the columns, background first; as numbers, or packed into a string.

A packed count is written in groups of 5 bits, lowest first, each in one character from '0' on whose sixth bit says that
another follows; the highest bit of the last group is the sign; from the fourth count on it is the difference to the
count two before. Source: the COCO API's mask code (Lin et al. 2014, Microsoft COCO).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import shapely
from numpy.typing import NDArray

from ocrlab.data import field_parsing
from ocrlab.data.annotations import LIMIT, PageError
from ocrlab.geometry import Polygon

MOST_RUNS = 100_000  # a text of a 10,000 pixel page has some thousands; more is noise, whose outline takes minutes
SLACK = 0.75  # pixels by which the outline may cut the corners of the pixels: the steps of a slanted edge become a line
NEED = '{"size": [height, width], "counts": [background, text, background, ...] or the same packed into a string}'


def rle_polygons(mask: Any) -> list[Polygon]:
    """Return the outlines (P, 2) float32 of a run-length mask, one for each part that hangs together, without holes.

    The outline runs along the edges of the pixels. Raises PageError for counts that do not fill the size.
    """
    size, counts = mask.get("size"), mask.get("counts")
    good = isinstance(size, list) and len(size) == 2 and all(type(n) is int and 0 < n <= LIMIT for n in size)
    if not good:
        raise PageError("the size of a run-length mask is not usable", got=field_parsing.kind(size), need=NEED)
    runs = unpack(counts) if isinstance(counts, str) else counts
    if not isinstance(runs, list) or not all(type(n) is int and n >= 0 for n in runs):
        raise PageError("the counts of a run-length mask are not usable", got=field_parsing.kind(counts), need=NEED)
    height, width = size
    if sum(runs) != height * width:
        got = f"{sum(runs)} pixels for {height} x {width}"
        raise PageError("a run-length mask does not fill its size", got=got, need=f"{height * width} pixels")
    if len(runs) > MOST_RUNS:
        do = "Draw the text as a polygon"
        raise PageError("a run-length mask is too ragged", got=f"{len(runs)} runs", need=f"at most {MOST_RUNS}", do=do)
    ends = np.cumsum(np.array(runs, np.int64))
    shape = shapely.union_all(_blocks(ends[:-1:2], ends[1::2], height))
    shape = shapely.normalize(shape)  # starts at a corner: before GEOS 3.12 the first point is never taken out
    parts = shapely.get_parts(shapely.simplify(shape, SLACK))
    rings = [shapely.get_coordinates(part.exterior)[:-1] for part in parts if part.geom_type == "Polygon"]
    return [np.asarray(ring, np.float32) for ring in rings]


def unpack(packed: str) -> list[int]:
    """Return the counts that COCO's string form holds; raises PageError for a character it does not use."""
    counts: list[int] = []
    value = shift = 0
    for letter in packed:
        bits = ord(letter) - 48
        if not 0 <= bits < 64:
            raise PageError("a packed run-length mask is damaged", got=f"the character {letter!r}", need="'0' to 'o'")
        value |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            value -= (1 << shift) if bits & 16 else 0
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value = shift = 0
    if shift:
        raise PageError("a packed run-length mask is cut off", got=f"{len(packed)} characters", need="all of them")
    return counts


def _blocks(starts: NDArray[np.int64], ends: NDArray[np.int64], height: int) -> NDArray[Any]:
    """Return runs start..end-1 down the columns of an image as rectangles: first column, whole columns, last column."""
    some = ends > starts
    starts, ends = starts[some], ends[some]
    first, last = starts // height, (ends - 1) // height
    top, bottom = starts % height, (ends - 1) % height + 1
    single_column = first == last
    whole = last > first + 1
    return np.concatenate(
        [
            shapely.box(first, top, first + 1, np.where(single_column, bottom, height)),
            shapely.box(first[whole] + 1, 0, last[whole], height),
            shapely.box(last[~single_column], 0, last[~single_column] + 1, bottom[~single_column]),
        ]
    )
