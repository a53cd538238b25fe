"""The rules for whole pages: copies of another page, and boxes that fit another image, frame or size.

Measured on receipts: saving 14 of them again at half the size moves a picture by at most 10 of 255 bits and leaves a
correlation of 0.988 or more; of 563, two different ones come as near as 8 bits, but not above a correlation of 0.96.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrlab.data.annotations import PageError
from ocrlab.data.audit import page_image
from ocrlab.data.audit.box_alignment import Place, lies_well, look, settled
from ocrlab.data.audit.finding import ERROR, NOTE, WARN, Finding
from ocrlab.data.audit.page_image import Image, decode
from ocrlab.data.audit.raw_annotations import Box, Raw
from ocrlab.data.image_io import Header, read_file, upright
from ocrlab.data.shards.tar_member import Member
from ocrlab.geometry import Polygon

BITS, CORRELATION = 28, 0.97  # of 255, at most; at least
SAME_TEXT, SAME_FORM = 0.95, 0.6  # Jaccard index of the texts of two pages
FEWEST_TEXTS = 8  # texts a page, below which they prove nothing


@dataclass(frozen=True, slots=True, eq=False)
class PageFingerprint:
    """What is stored of a page to recognise it; without an image there are texts only."""

    name: str
    split: str
    image: str | None  # its path
    digest: str | None  # of the file
    bits: NDArray[np.uint8] | None
    thumb: NDArray[np.float32] | None
    texts: frozenset[str]


def fingerprint(raw: Raw, image: Image | None) -> PageFingerprint:
    """Return the fingerprint of a page; `image` (H, W, 3) is None where it cannot be decoded."""
    texts = frozenset(box.text.strip() for box in raw.boxes if len(box.text.strip()) > 2 and not box.ignored)
    if raw.image is None or image is None:
        return PageFingerprint(raw.name, raw.split, None, None, None, None, texts)
    digest = hashlib.sha256(read_file(raw.image)).hexdigest()
    place = os.path.realpath(str(raw.image))
    return PageFingerprint(raw.name, raw.split, place, digest, *page_image.fingerprint(image), texts)


def duplicate_pages(prints: list[PageFingerprint]) -> Iterator[Finding]:
    """Yield one finding a pair of pages that are alike."""
    reported: set[tuple[int, int]] = set()
    for i, j, kind, severity, why in (*_same_pictures(prints), *_same_texts(prints)):
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


def _same_pictures(prints: list[PageFingerprint]) -> Iterator[tuple[int, int, str, str, str]]:
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


def _same_texts(prints: list[PageFingerprint]) -> Iterator[tuple[int, int, str, str, str]]:
    """Yield pairs whose texts are mostly the same; only pages with a common text are compared."""
    holders: dict[str, list[int]] = {}
    for n, page in enumerate(prints):
        if len(page.texts) < FEWEST_TEXTS:
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


FEWEST = 5  # boxes, below which a page cannot be judged as a whole
POOR, GOOD = 0.5, 0.75  # share of boxes that lie well: below it the page is wrong, above it an explanation holds
SAMPLE = 200  # boxes of a page, as many tell whether they fit
MOST_MISFITS = 20  # pages that seem to be others are tried on each other
SCALES = np.exp(np.linspace(np.log(0.15), np.log(6), 120))


@dataclass(frozen=True, slots=True, eq=False)
class MisfitPage:
    """A page whose boxes do not fit its image."""

    raw: Raw
    image: Path | Member
    polygons: list[Polygon]
    share: float
    size: tuple[int, int]  # of the image, width and height


def fits(image: Image, polygons: list[Polygon]) -> float:
    """Return the share of boxes (P, 2) that lie well on an image (H, W, 3)."""
    polygons = polygons[:: -(-len(polygons) // SAMPLE) or 1]
    inside = [p for p in polygons if (p.max(axis=0) > 0).all() and (p.min(axis=0) < image.shape[1::-1]).all()]
    if len(inside) < 0.5 * len(polygons):
        return 0.0
    sheet = page_image.sheet(image, inside)
    return sum(lies_well(look(sheet, polygon)) for polygon in sheet.polygons) / max(len(polygons), 1)


def misfit_findings(
    raw: Raw, image: Image, counted: list[tuple[Box, Place | None]], well: int, misfits: list[MisfitPage]
) -> list[Finding]:
    """Return what is wrong with a page of whose `counted` boxes few lie `well`; else it goes to `misfits`."""
    polygons = [box.polygon for box, _ in counted]
    stay = sum(settled(place) for _, place in counted) / len(counted)
    if stay >= GOOD:
        why = f"{well} of its {len(counted)} boxes lie tightly on ink, {stay:.0%} at their best place: not by pixels"
        return [raw.finding("misplaced", NOTE, why)]
    explanation = _explanation(image, polygons)
    if explanation:
        return [raw.finding(explanation[0], ERROR, explanation[1])]
    if raw.image is not None:
        size = (image.shape[1], image.shape[0])
        misfits.append(MisfitPage(raw, raw.image, polygons, well / len(counted), size))
    return []


def _explanation(image: Image, polygons: list[Polygon]) -> tuple[str, str] | None:
    """Return kind and why for a page whose boxes fit it after one change to all of them; None if none helps."""
    height, width = image.shape[:2]
    if fits(image, [p[:, ::-1] for p in polygons]) >= GOOD:
        return "swapped", f"its {len(polygons)} boxes fit when x and y change places"
    for orientation, how in ((6, "turned right"), (8, "turned left"), (3, "upside down")):
        if fits(upright(image, orientation), polygons) >= GOOD:
            return "wrong_size", f"its {len(polygons)} boxes fit the image {how}"
    factor = _scale(image, polygons)
    if factor is None:
        return None
    size = f"{width / factor:.0f} x {height / factor:.0f}"
    return "wrong_size", f"its boxes fit an image of about {size}, this one is {width} x {height}"


def _scale(image: Image, polygons: list[Polygon]) -> float | None:
    """Return by what the boxes must be multiplied to lie on the ink, None if nothing does it clearly."""
    base = page_image.sheet(image, [])
    polygons = polygons[:: -(-len(polygons) // (3 * SAMPLE)) or 1]
    total = max(int(base.ink.sum()), 1)
    scores = []
    for factor in SCALES:
        mask = np.zeros(base.ink.shape, np.uint8)
        for polygon in polygons:  # one after the other: of two on each other a single call leaves a hole
            cv2.fillPoly(mask, [np.rint(np.clip(polygon * (factor * base.scale), -9999, 9999)).astype(np.int32)], 1)
        covered = mask > 0
        scores.append(float((base.ink & covered).sum() / total - covered.mean()))
    best = int(np.argmax(scores))
    if scores[best] < 0.3:
        return None
    near = SCALES[best] * np.exp(np.linspace(-0.03, 0.03, 7))
    share, factor = max(
        (fits(image, [np.asarray(p * factor, np.float32) for p in polygons]), factor) for factor in near
    )
    return float(factor) if share >= 0.6 else None


def exif(raw: Raw, image: Image, header: Header, polygons: list[Polygon]) -> tuple[Image, Finding | None]:
    """Return the image in the frame that was annotated, and what its orientation tag will do to loaders."""
    tag = header.orientation
    if tag == 1:
        return image, None
    turned = upright(image, tag)
    stored, after = (fits(view, polygons) for view in (image, turned)) if polygons else (0.0, 0.0)
    where = f"EXIF orientation {tag}, {header.width} x {header.height} px as stored: "
    if after > stored + 0.2:
        why = where + f"its boxes fit the turned image ({after:.0%} against {stored:.0%}); read it with exif=True"
        return turned, raw.finding("exif", ERROR, why)
    if stored > after + 0.2:
        why = where + f"its boxes fit the image as stored ({stored:.0%} against {after:.0%}); a loader must not turn it"
        return image, raw.finding("exif", WARN, why)
    return image, raw.finding("exif", NOTE, where + "its boxes do not tell which way is meant")


def exchanged_pages(misfits: list[MisfitPage]) -> list[Finding]:
    """Return one finding a misfit: whose boxes it bears, found by trying the misfits' boxes on its image."""
    findings = []
    for misfit in misfits:
        raw, count, share, name = misfit.raw, len(misfit.polygons), misfit.share, ""
        others = [other for other in misfits[:MOST_MISFITS] if other is not misfit]
        with contextlib.suppress(PageError):
            image, *_ = decode(misfit.image)
            share, name = max([(share, name), *((fits(image, other.polygons), other.raw.name) for other in others)])
        lie = f"{misfit.share:.0%} of its {count} boxes lie on ink as boxes do"
        low, high = (edge(np.concatenate(misfit.polygons), axis=0) for edge in (np.min, np.max))
        if name and share >= GOOD:
            findings.append(raw.finding("swapped", ERROR, f"{lie}; of those of {name} {share:.0%} do", other=name))
        elif (high > 1.1 * np.array(misfit.size)).any():
            reach, size = f"{low[0]:.0f}, {low[1]:.0f} to {high[0]:.0f}, {high[1]:.0f}", misfit.size
            why = f"its boxes reach from {reach}; the image is {size[0]} x {size[1]}"
            findings.append(raw.finding("wrong_size", ERROR, why))
        else:
            findings.append(raw.finding("misplaced", WARN, f"{lie}: another image, or all are shifted"))
    return findings
