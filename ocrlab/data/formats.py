"""Annotations -> samples: `load` reads one split of a data folder, judges every polygon once, and says what is wrong.

A new annotation format is one file beside icdar.py and jsons.py that returns `Boxes`, and a line in `_pages`.

A box whose polygon is degenerate is dropped and counted; its page stays. A page with a line that cannot be read is left
out whole: nobody knows where that box was, and a page without it would teach that there is no text. An empty annotation
is a page without text. A missing transcription is not `###`: such a box counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ocrlab import geometry
from ocrlab.data.folder import Source, find, pair
from ocrlab.data.icdar import read_icdar, write_icdar
from ocrlab.data.images import read_header, read_image
from ocrlab.data.jsons import line_pages, ufo_pages
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
    try:
        source = find(path, split)
        readers, errors = _pages(source)
    except OSError as error:
        raise DataError(f"{error.filename or path} cannot be read", got=error.strerror) from error
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
    notes = [Problem(source.annotations, None, source.note)] if source.note else []
    return Index(list(samples.values()), dropped, notes + [error.problem for error in errors], path, split)


def _pages(source: Source) -> tuple[list[Callable[[], Page]], list[PageError]]:
    """Return one function a page, that reads it or raises PageError, and the errors that are known already."""
    if source.annotations.is_dir():
        pairs, errors = pair(source)
        return [partial(_icdar_page, image, text) for image, text in pairs], errors
    read = line_pages if source.annotations.suffix.lower() == ".jsonl" else ufo_pages
    return read(source), []


def _icdar_page(image: Path, text: Path) -> Page:
    return Page(image.stem, image, text, None, read_icdar(text))


def _judge(page: Page, exif: bool, dropped: Counter[str]) -> Sample:
    """Make a Sample of a page and add to `dropped`; raises PageError if the boxes fit only the turned image."""
    header = read_header(page.image)
    width, height = header.size(exif)
    boxes = page.boxes
    if _looks_turned(boxes.polygons, width, height):
        tag = f"{width} x {height} pixels, EXIF orientation {header.orientation}"
        do = "Turn the image, or correct its annotation"
        if header.turned:
            do = "Set exif=false" if exif else "Set exif=true, if the other pages allow it"
        what = "its annotation fits only the image turned by 90 degrees"
        raise PageError(what, file=page.image, got=tag, need="boxes inside the page", do=do)
    kept: list[tuple[Polygon, bool, str]] = []
    good = _upright(boxes.polygons, width, height)
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


def _upright(polygons: Iterable[Polygon | None], width: int, height: int) -> list[bool]:
    """Tell which polygons are upright rectangles inside the page, clockwise from the top left.

    `geometry.judge` gives these back as they are, but takes seconds for the 30,000 of a receipt set.
    """
    other = np.zeros((4, 2), np.float32)
    quads = np.array([other if p is None or p.shape != (4, 2) else p for p in polygons], np.float32).reshape(-1, 4, 2)
    (left, top), (right, bottom) = quads[:, 0].T, quads[:, 2].T
    upright = np.stack([left, top, right, top, right, bottom, left, bottom], axis=1).reshape(-1, 4, 2)
    inside = (left >= 0) & (top >= 0) & (right <= width) & (bottom <= height)
    large = (right - left >= 2) & (bottom - top >= 2)
    return list((quads == upright).all(axis=(1, 2)) & inside & large)


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
