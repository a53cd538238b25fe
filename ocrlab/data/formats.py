"""Annotations -> samples: `load` reads one split of a data folder, judges every polygon once, and says what is wrong.

Which format it is, recognise.py tells by the content; a new one is one function in one file, and a line there.

A box whose polygon is degenerate is dropped and counted; its page stays. A page with a line that cannot be read is left
out whole: nobody knows where that box was, and a page without it would teach that there is no text. An empty annotation
is a page without text. A missing transcription is not `###`: such a box counts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import shapely
from numpy.typing import NDArray

from ocrlab import geometry
from ocrlab.data import folder, recognise
from ocrlab.data.icdar import read_icdar, write_icdar
from ocrlab.data.images import read_header, read_image
from ocrlab.data.page import Boxes, Page, PageError, Problem
from ocrlab.errors import DataError
from ocrlab.geometry import Polygon

__all__ = ["Boxes", "Index", "PageError", "Problem", "Sample", "load", "read_icdar", "read_image", "write_icdar"]

SLACK = 0.02  # of the long side: annotations may stick out of the page so far before it looks turned


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One page ready for use; polygons are clipped and ordered, in pixels of the image as it will be decoded."""

    name: str  # unique in its split: the file name without suffix, for a JSON with the folders before it
    image: Path
    polygons: tuple[Polygon, ...]  # N arrays (P, 2) of xy
    ignored: NDArray[np.bool_]  # (N,)
    texts: tuple[str, ...]  # N; "" where there is no transcription
    annotation: Path | None
    width: int  # of the decoded image
    height: int


@dataclass(slots=True)
class Index:
    """The pages of one split: `dropped` counts boxes left out by reason, `problems` names the pages left out."""

    samples: list[Sample]
    dropped: Counter[str]
    problems: list[Problem]
    source: Path  # what was loaded
    split: str


def load(
    path: Path | str,
    split: str,
    *,
    exif: bool = False,
    strict: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Index:
    """Load one split of a data folder (the layouts are in folder.py), or one JSON; every polygon is judged here, once.

    Image headers are read, pixels are not; `exif` must be the value that the images will be read with. A bad page
    becomes a Problem and is left out; with `strict` it raises PageError. Raises DataError if there is no such folder or
    split, if the JSON cannot be read, or if no page is left. `progress(done, pages)` is called after each page.
    """
    path = Path(path).expanduser()
    readers, errors, notes = opened(path, split)
    samples: dict[str, Sample] = {}
    dropped: Counter[str] = Counter()
    for number, read in enumerate(readers, 1):
        try:
            page = read()
            if page.name in samples:
                raise PageError(
                    f"page {page.name!r} is here twice", file=page.annotation, line=page.line, need="one entry"
                )
            samples[page.name] = _judge(page, exif, dropped)
        except PageError as error:
            errors.append(error)
        if strict and errors:
            raise errors[0]
        if progress:
            progress(number, len(readers))
    if not samples:
        got = f"{len(errors)} bad pages, the first being {errors[0]}" if errors else "an empty list of pages"
        raise DataError(f"No page of split {split!r} in {path} can be used", got=got.rstrip("."), need="one good page")
    return Index(list(samples.values()), dropped, notes + [error.problem for error in errors], path, split)


def opened(path: Path, split: str) -> tuple[list[recognise.Reader], list[PageError], list[Problem]]:
    """Return one function a page as it is annotated, the errors known already, and notes; raises DataError."""
    try:
        source = folder.find(path, split)
        readers, errors, notes = recognise.pages(source, split)
    except OSError as error:
        raise DataError(f"{error.filename or path} cannot be read", got=error.strerror) from error
    notes = [source.note, *notes] if source.note else notes
    return readers, errors, [Problem(source.annotations, None, note) for note in notes]


def splits(path: Path) -> list[str]:
    """Return the splits of a data folder or of a file for many pages, sorted; none if it knows no splits."""
    found = folder.splits(path)
    if found:
        return found
    annotations = folder.find(path, "train").annotations
    return [] if annotations.is_dir() else recognise.splits(annotations)


def _judge(page: Page, exif: bool, dropped: Counter[str]) -> Sample:
    """Make a Sample of a page and add to `dropped`; raises PageError if the boxes fit only the turned image."""
    header = read_header(page.image)
    width, height = header.size(exif)
    boxes = page.boxes
    if boxes.size not in (None, (header.width, header.height), (header.height, header.width)):
        need, got = (f"{w} x {h} pixels" for w, h in ((header.width, header.height), boxes.size or (0, 0)))
        raise PageError("its annotation is for another resolution", file=page.image, got=got, need=need)
    if _looks_turned(boxes.polygons, width, height):
        tag = f"{width} x {height} pixels, EXIF orientation {header.orientation}"
        do = "Turn the image, or correct its annotation"
        if header.turned:
            do = "Set exif=false" if exif else "Set exif=true, if the other pages allow it"
        what = "its annotation fits only the image turned by 90 degrees"
        raise PageError(what, file=page.image, got=tag, need="boxes inside the page", do=do)
    kept: list[tuple[Polygon, bool, str]] = []
    good = _unchanged(boxes.polygons, width, height)
    for polygon, ignored, text, known in zip(boxes.polygons, boxes.ignored, boxes.texts, good, strict=True):
        judged, reason = (polygon, "") if known else geometry.judge(polygon, width, height)
        if judged is None:
            dropped[reason] += 1
        else:
            kept.append((judged, ignored, text))
    return Sample(
        name=page.name,
        image=page.image,
        polygons=tuple(polygon for polygon, _, _ in kept),
        ignored=np.array([ignored for _, ignored, _ in kept], bool),
        texts=tuple(text for _, _, text in kept),
        annotation=page.annotation,
        width=width,
        height=height,
    )


def _unchanged(polygons: Sequence[Polygon | None], width: int, height: int) -> NDArray[np.bool_]:
    """Tell which polygons `geometry.judge` would give back as they are: for 10,000 pages it takes a minute.

    These are the simple outlines inside the page, clockwise, of some area, and quads only from their top left on.
    """
    known = np.zeros(len(polygons), bool)
    groups: dict[int, list[int]] = defaultdict(list)
    for index, polygon in enumerate(polygons):
        groups[0 if polygon is None else len(polygon)].append(index)
    for count, places in groups.items():
        if count < 3:
            continue
        p = np.array([polygons[place] for place in places], np.float64)  # (N, P, 2)
        low, high = p.min(axis=1), p.max(axis=1)
        span = high - low
        edges = np.roll(p, -1, axis=1) - p
        from_first = p - p[:, :1]
        area = _cross(from_first[:, 1:-1], from_first[:, 2:]).sum(axis=1) / 2
        good = (low >= 0).all(axis=1) & (high <= np.array([width, height])).all(axis=1) & (span >= 1).all(axis=1)
        good &= (area >= 1) & (area >= 1e-8 * np.square(span).sum(axis=1)) & (edges != 0).any(axis=2).all(axis=1)
        if count == 4:
            good &= (_cross(np.roll(edges, 1, axis=1), edges) > 0).all(axis=1) & _from_top_left(p, edges)
        else:
            good[good] = shapely.is_valid(shapely.polygons(p[good]))
        known[places] = good
    return known


def _from_top_left(p: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Tell which quads (N, 4, 2) start where `geometry.order` lets them start."""
    rightward = edges[:, :, 0] - np.roll(edges[:, :, 0], 2, axis=1)
    slack = 1e-6 * np.abs(edges).sum(axis=(1, 2))
    best = rightward >= rightward.max(axis=1, keepdims=True) - slack[:, None]
    return np.where(best, p[:, :, 1], np.inf).argmin(axis=1) == 0


def _cross(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def _looks_turned(polygons: Iterable[Polygon | None], width: int, height: int) -> bool:
    """Tell whether boxes leave the page, but would lie inside it if width and height were swapped."""
    points = [polygon for polygon in polygons if polygon is not None and len(polygon)]
    if not points:
        return False
    every = np.concatenate(points)
    slack = SLACK * max(width, height)
    (left, top), (right, bottom) = every.min(0), every.max(0)
    inside = min(left, top) >= -slack and right <= height + slack and bottom <= width + slack
    return bool(inside and (right > width + slack or bottom > height + slack))
