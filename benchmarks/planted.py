"""Defects planted by seed into annotated pages, and natural ones: what audit.py scores the data doctor on.

A page's boxes are edited in memory and written with a copy of its image; the originals are only read. A defect keeps
the boxes that it touched, so that their line numbers are those of the written file, whatever was planted around them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ocrlab.data.annotations import read_text
from ocrlab.data.image_io import read_header

KINDS = ("shifted", "swapped", "duplicated", "missing", "reversed")
MOST = 4  # defects on one page
SHIFT = (0.5, 2.0)  # text heights; after it the box covers at most SAME of its own text
SAME = 0.5
LENGTHS = 1.5  # swapped texts differ in length by this factor
JITTER = 3  # pixels by which the sides of a duplicate may move
TRIES = 20_000

Ints = NDArray[np.int64]


@dataclass(eq=False)
class Box:
    """One line of an annotation file: corners (4, 2) in whole pixels, and the transcription."""

    corners: Ints
    text: str

    @property
    def bounds(self) -> tuple[int, int, int, int]:
        """Return left, top, right, bottom in pixels."""
        (left, top), (right, bottom) = self.corners.min(axis=0).tolist(), self.corners.max(axis=0).tolist()
        return left, top, right, bottom


@dataclass(eq=False)
class Page:
    """One page with its boxes in the order of the file, and the rectangles where something has been planted."""

    name: str
    image: Path
    size: tuple[int, int]  # width, height
    boxes: list[Box]
    taken: list[tuple[int, int, int, int]] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Defect:
    """What was planted: the boxes to be named, and `place` (4, 2), where the text is that lost its box."""

    kind: str
    page: Page
    boxes: tuple[Box, ...]
    place: Ints
    grade: str  # how hard: distance, difference in length, ...

    @property
    def lines(self) -> set[int]:
        """Return the line numbers, from 1, of the boxes in the file as it is written; none for a missing one."""
        return {
            number for number, box in enumerate(self.page.boxes, 1) if any(box is planted for planted in self.boxes)
        }


def read(folder: Path) -> list[Page]:
    """Read the pages of one split folder with images/ and gts/, in order of name."""
    pages = []
    for text in sorted((folder / "gts").glob("gt_*.txt")):
        image = folder / "images" / f"{text.stem.removeprefix('gt_')}.jpg"
        header = read_header(image)
        rows = [line.split(",", 8) for line in read_text(text).splitlines() if line.strip()]
        boxes = [Box(np.array([int(value) for value in row[:8]]).reshape(4, 2), row[8]) for row in rows]
        pages.append(Page(image.stem, image, (header.width, header.height), boxes))
    return pages


def write(pages: Sequence[Page], folder: Path) -> None:
    """Write pages as images/ and gts/ into a new split folder."""
    for sub in ("images", "gts"):
        (folder / sub).mkdir(parents=True)
    for page in pages:
        shutil.copy(page.image, folder / "images")
        lines = [",".join(map(str, [*box.corners.ravel().tolist(), box.text])) + "\n" for box in page.boxes]
        (folder / "gts" / f"gt_{page.name}.txt").write_text("".join(lines), encoding="utf-8")


def plant(pages: list[Page], each: int, seed: int) -> list[Defect]:
    """Change the boxes of `pages` and return `each` defects of every kind; the same seed gives the same defects.

    Raises RuntimeError if the pages have no room for so many.
    """
    rng = np.random.default_rng(seed)
    wanted = rng.permutation(np.repeat(KINDS, each)).tolist()
    defects: list[Defect] = []
    for _ in range(TRIES):
        if not wanted:
            return defects
        page = pages[rng.integers(len(pages))]
        room = [box for box in page.boxes if _free(page, box)]
        if len(room) < 2 or sum(defect.page is page for defect in defects) >= MOST:
            continue
        defect = PLANTS[wanted[-1]](page, room, rng)
        if defect:
            defects.append(defect)
            wanted.pop()
    raise RuntimeError(f"No room for {len(wanted)} of {each * len(KINDS)} defects on {len(pages)} pages.")


def _shifted(page: Page, room: list[Box], rng: np.random.Generator) -> Defect | None:
    """Move a box in any direction, so far that it no longer covers its text."""
    box = room[rng.integers(len(room))]
    heights, angle = rng.uniform(*SHIFT), rng.uniform(0, 2 * np.pi)
    place, height = box.corners, min(_sides(box))
    step = np.rint(heights * height * np.array([np.cos(angle), np.sin(angle)])).astype(int)
    moved = Box(place + step, box.text)
    inside = (moved.corners >= 0).all() and (moved.corners <= page.size).all()
    if not inside or covered(box.bounds, moved.bounds) > SAME or not _free(page, moved, alone=False):
        return None
    page.taken += [box.bounds, moved.bounds]
    box.corners = moved.corners
    return Defect("shifted", page, (box,), place, "by less than a height" if heights < 1 else "by 1 to 2 heights")


def _swapped(page: Page, room: list[Box], rng: np.random.Generator) -> Defect | None:
    """Exchange the transcriptions or the positions of two boxes."""
    a, b = (room[i] for i in rng.choice(len(room), 2, replace=False))
    short, long = sorted((len(a.text), len(b.text)))
    if short == 0 or long < LENGTHS * short:
        return None
    page.taken += [a.bounds, b.bounds]
    if rng.random() < 0.5:
        a.text, b.text = b.text, a.text
    else:
        a.corners, b.corners = b.corners, a.corners
    grade = "lengths differ less than 2 times" if long < 2 * short else "lengths differ 2 times or more"
    return Defect("swapped", page, (a, b), a.corners, grade)


def _duplicated(page: Page, room: list[Box], rng: np.random.Generator) -> Defect:
    """Write a box a second time somewhere in the file, exactly or with its sides moved by 1 to JITTER pixels."""
    box = room[rng.integers(len(room))]
    exact = rng.random() < 0.5
    moves = np.zeros(4, int) if exact else rng.integers(1, JITTER + 1, 4) * rng.choice((-1, 1), 4)
    left, top, right, bottom = (np.array(box.bounds) + moves).tolist()
    left, top = max(left, 0), max(top, 0)
    right, bottom = min(max(right, left + 2), page.size[0]), min(max(bottom, top + 2), page.size[1])
    again = Box(box.corners if exact else _corners(left, top, right, bottom), box.text)
    page.boxes.insert(int(rng.integers(len(page.boxes) + 1)), again)
    page.taken.append(box.bounds)
    return Defect("duplicated", page, (box, again), box.corners, "exactly" if exact else f"1 to {JITTER} px off")


def _missing(page: Page, room: list[Box], rng: np.random.Generator) -> Defect:
    """Take the line of a box out of the file."""
    box = room[rng.integers(len(room))]
    page.boxes.remove(box)
    page.taken.append(box.bounds)
    return Defect(
        "missing", page, (), box.corners, "1 or 2 characters" if len(box.text) < 3 else "3 characters or more"
    )


def _reversed(page: Page, room: list[Box], rng: np.random.Generator) -> Defect:
    """Write the points of a box counter-clockwise, or from another corner on, or both."""
    box = room[rng.integers(len(room))]
    turn = int(rng.integers(1, 8))  # 0 would leave it as it is
    order = np.roll([0, 1, 2, 3], turn % 4) if turn < 4 else np.roll([0, 3, 2, 1], turn % 4)
    page.taken.append(box.bounds)
    box.corners = box.corners[order]
    return Defect("reversed", page, (box,), box.corners, "other first corner" if turn < 4 else "counter-clockwise")


PLANTS: dict[str, Callable[[Page, list[Box], np.random.Generator], Defect | None]] = {
    "shifted": _shifted,
    "swapped": _swapped,
    "duplicated": _duplicated,
    "missing": _missing,
    "reversed": _reversed,
}


def covered(first: Sequence[float], second: Sequence[float]) -> float:
    """Return which part of the rectangle `first` (left, top, right, bottom) the rectangle `second` covers."""
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    area = (first[2] - first[0]) * (first[3] - first[1])
    return max(width, 0) * max(height, 0) / area if area else 0.0


def _free(page: Page, box: Box, alone: bool = True) -> bool:
    """Return whether nothing is planted where a box lies and, if `alone`, whether no other box covers half of it."""
    if min(_sides(box)) < 4 or any(covered(box.bounds, taken) or covered(taken, box.bounds) for taken in page.taken):
        return False
    return not alone or all(covered(box.bounds, taken.bounds) < SAME for taken in page.boxes if taken is not box)


def _sides(box: Box) -> tuple[int, int]:
    left, top, right, bottom = box.bounds
    return right - left, bottom - top


def _corners(left: int, top: int, right: int, bottom: int) -> Ints:
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)])


@dataclass(frozen=True)
class Natural:
    """A defect that was there: its page, what it is, the lines that may be named (none: the page), its twin page."""

    page: str
    what: str
    lines: frozenset[int] = frozenset()
    twin: str | None = None


PAIRS = (("012", "015"), ("016", "018"), ("074", "624"), ("076", "625"), ("277", "452"))  # sroie/NOTES.md
BROKEN = "427"


def natural(data: Path, folder: Path) -> list[Natural]:
    """Build one split of the uncleaned pages, the identical pairs and the broken JPEG of SROIE; return its defects.

    The uncleaned annotations and the broken JPEG are taken as they are. The broken JPEG is larger than the page of the
    set, whose boxes are scaled to it.
    """
    for sub in ("images", "gts"):
        (folder / sub).mkdir(parents=True)
    listed = json.loads((data / "defects" / "defects.json").read_text(encoding="utf-8"))["defects"]
    for name in {defect["id"] for defect in listed}:
        _copy(data, name, data / "defects" / "gts_uncleaned", folder)
    for name in (name for pair in PAIRS for name in pair):
        _copy(data, name, data / "train" / "gts", folder)
    _broken(data, folder)
    defects = [Natural(entry["id"], entry["type"], _lines(data, entry)) for entry in listed]
    defects += [Natural(first, "identical pages", twin=second) for first, second in PAIRS]
    return [*defects, Natural(BROKEN, "bad Huffman code")]


def _copy(data: Path, name: str, gts: Path, folder: Path) -> None:
    image = next(data / split / "images" / f"{name}.jpg" for split in ("train", "val") if _has(data / split, name))
    shutil.copy(image, folder / "images")
    shutil.copy(gts / f"gt_{name}.txt", folder / "gts")


def _has(split: Path, name: str) -> bool:
    return (split / "images" / f"{name}.jpg").is_file()


def _broken(data: Path, folder: Path) -> None:
    raw = data / "defects" / "raw_images" / f"{BROKEN}.jpg"
    shutil.copy(raw, folder / "images")
    scale = read_header(raw).width / read_header(data / "train" / "images" / raw.name).width
    lines = []
    for line in read_text(data / "train" / "gts" / f"gt_{BROKEN}.txt").splitlines():
        fields = line.split(",", 8)
        lines.append(",".join([*(str(round(int(value) * scale)) for value in fields[:8]), fields[8]]) + "\n")
    (folder / "gts" / f"gt_{BROKEN}.txt").write_text("".join(lines), encoding="utf-8")


def _lines(data: Path, defect: dict[str, str]) -> frozenset[int]:
    """Return the lines of a listed defect, from 1: its own and, of a pair, the other's."""
    whole = read_text(data / "defects" / "raw_csv" / f"{defect['id']}.csv").splitlines()
    return frozenset({int(defect["line"])} | {whole.index(defect["other"]) + 1 for _ in range("other" in defect)})
