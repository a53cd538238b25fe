"""Pages that are there twice: the same file, the same picture saved anew, or the same form with the same text.

Measured on receipts: saving 14 of them anew at half the size moves a picture by at most 10 of 255 bits and leaves a
correlation of 0.988 or more; of 563, two different ones come as near as 8 bits, but not above a correlation of 0.96.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ocrlab.data.audit.finding import ERROR, NOTE, WARN, Finding

BITS, CORRELATION = 28, 0.97  # of 255, at most; at least
SAME_TEXT, SAME_FORM = 0.95, 0.6  # Jaccard index of the texts of two pages
FEWEST = 8  # texts a page, below which they prove nothing


@dataclass(frozen=True, slots=True, eq=False)
class Print:
    """What is kept of a page to know it again; without an image there are texts only."""

    name: str
    split: str
    image: str | None  # its path
    digest: str | None  # of the file
    bits: NDArray[np.uint8] | None
    thumb: NDArray[np.float32] | None
    texts: frozenset[str]


def pairs(prints: list[Print]) -> Iterator[Finding]:
    """Yield one finding a pair of pages that are alike."""
    reported: set[tuple[int, int]] = set()
    for i, j, kind, severity, why in (*_pictures(prints), *_texts(prints)):
        first, second = prints[i], prints[j]
        same_file = first.image is not None and first.image == second.image  # with two annotations
        if (i, j) in reported or same_file or (first.name, first.split) == (second.name, second.split):
            continue
        reported.add((i, j))
        if first.split != second.split:
            across = f"is in {first.split!r} and in {second.split!r}: {why}"
            worse = {WARN: ERROR}.get(severity, severity)
            yield Finding("leak", second.name, second.split, None, None, worse, across, f"{first.split}/{first.name}")
        else:
            yield Finding(kind, second.name, second.split, None, None, severity, why, first.name)


def _pictures(prints: list[Print]) -> Iterator[tuple[int, int, str, str, str]]:
    at = [n for n, page in enumerate(prints) if page.bits is not None]
    if len(at) < 2:
        return
    bits = np.unpackbits(np.array([prints[n].bits for n in at]), axis=1).astype(np.float32)
    thumbs = np.array([prints[n].thumb for n in at])
    ones = bits.sum(axis=1)
    for row, n in enumerate(at[:-1]):  # a row at a time: 10,000 pages are 10^8 pairs
        rest = slice(row + 1, None)
        apart = ones[row] + ones[rest] - 2 * (bits[rest] @ bits[row])
        alike = thumbs[rest] @ thumbs[row]
        blank = not thumbs[row].any()
        same = np.array([prints[m].digest == prints[n].digest for m in at[row + 1 :]])
        for offset in np.flatnonzero(same | ((apart <= BITS) & (alike >= CORRELATION) & (not blank))):
            m = at[row + 1 + int(offset)]
            if same[offset]:
                yield n, m, "duplicate_page", ERROR, f"the same file, byte for byte, as {prints[n].name}"
            else:
                why = f"{apart[offset]:.0f} of 255 bits apart from {prints[n].name}, correlation {alike[offset]:.3f}"
                yield n, m, "near_duplicate_page", WARN, why


def _texts(prints: list[Print]) -> Iterator[tuple[int, int, str, str, str]]:
    """Yield pairs whose texts are mostly the same; found through the texts, so that strangers are never compared."""
    holders: dict[str, list[int]] = {}
    for n, page in enumerate(prints):
        if len(page.texts) < FEWEST:
            continue
        shared: dict[int, int] = {}
        for text in page.texts:
            for other in holders.get(text, ()):
                shared[other] = shared.get(other, 0) + 1
            holders.setdefault(text, []).append(n)
        for other, common in shared.items():
            share = common / (len(page.texts) + len(prints[other].texts) - common)
            if share >= SAME_FORM:
                why = f"{common} texts are those of {prints[other].name}, Jaccard index {share:.2f}"
                yield other, n, "near_duplicate_page", WARN if share >= SAME_TEXT else NOTE, why
