"""What an annotated page is worth: its polygons clipped and ordered, or dropped by reason, or the page refused."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import shapely
from numpy.typing import NDArray

from ocrlab import geometry
from ocrlab.data.annotations import Page, PageError, Problem
from ocrlab.data.image_io import Header
from ocrlab.data.shards.tar_member import Member
from ocrlab.geometry import Polygon

SLACK = 0.02  # of the long side: annotations may stick out of the page so far before it looks turned


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One page ready for use; polygons are clipped and ordered, in pixels of the image as it will be decoded."""

    name: str  # unique in its split: the file name without suffix, for a JSON with the folders before it
    image: Path | Member
    polygons: tuple[Polygon, ...]  # N arrays (P, 2) of xy
    ignored: NDArray[np.bool_]  # (N,)
    texts: tuple[str, ...]  # N; "" where there is no transcription
    annotation: Path | None
    width: int  # of the decoded image
    height: int


@dataclass(slots=True)
class Index:
    """The pages of one split: `dropped` counts boxes left out by reason, `problems` names the pages left out."""

    samples: Sequence[Sample]  # of shards each is made when it is asked for
    dropped: Counter[str]
    problems: list[Problem]
    source: Path  # what was loaded
    split: str

    @property
    def left_out(self) -> int:
        """How many pages the problems cost; a shard that is cut off counts as one, as nobody knows how many it held."""
        return sum(problem.lost for problem in self.problems)


def judge(page: Page, header: Header, exif: bool, dropped: Counter[str]) -> Sample:
    """Make a Sample of a page and add to `dropped`; raises PageError if the boxes fit only the turned image."""
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
    rows: list[tuple[Polygon, bool, str]] = []
    good = _unchanged(boxes.polygons, width, height)
    for polygon, ignored, text, unchanged in zip(boxes.polygons, boxes.ignored, boxes.texts, good, strict=True):
        judged, reason = (polygon, "") if unchanged else geometry.judge(polygon, width, height)
        if judged is None:
            dropped[reason] += 1
        else:
            rows.append((judged, ignored, text))
    polygons, flags, texts = zip(*rows, strict=True) if rows else ((), (), ())
    return Sample(page.name, page.image, polygons, np.array(flags, bool), texts, page.annotation, width, height)


def _unchanged(polygons: Sequence[Polygon | None], width: int, height: int) -> NDArray[np.bool_]:
    """Tell which polygons `geometry.judge` would give back as they are: for 10,000 pages it takes a minute.

    These are the simple outlines inside the page, clockwise, of some area, and quads only from their top left on.
    """
    unchanged = np.zeros(len(polygons), bool)
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
        unchanged[places] = good
    return unchanged


def _from_top_left(p: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Tell which quads (N, 4, 2) start where `geometry.order` lets them start."""
    rightward = edges[:, :, 0] - np.roll(edges[:, :, 0], 2, axis=1)
    slack = 1e-6 * np.abs(edges).sum(axis=(1, 2))
    best = rightward >= rightward.max(axis=1, keepdims=True) - slack[:, None]
    return np.where(best, p[:, :, 1], np.inf).argmin(axis=1) == 0


def _cross(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def _looks_turned(polygons: Iterable[Polygon | None], width: int, height: int) -> bool:
    """Return whether boxes leave the page, but would lie inside it if width and height were swapped."""
    points = [polygon for polygon in polygons if polygon is not None and len(polygon)]
    if not points:
        return False
    every = np.concatenate(points)
    slack = SLACK * max(width, height)
    (left, top), (right, bottom) = every.min(0), every.max(0)
    inside = min(left, top) >= -slack and right <= height + slack and bottom <= width + slack
    return bool(inside and (right > width + slack or bottom > height + slack))
