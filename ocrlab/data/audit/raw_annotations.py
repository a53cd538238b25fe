"""Pages as they were written, nothing judged and nothing left out: every box keeps its line, every bad line its reason.

The layouts are those of folder_layouts.py. A folder with none of them is taken as loose files, folder by folder: text
files of boxes find their image by name beside them, in images/ or in the data set around them; images without a text
file are only decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from ocrlab import safe_read
from ocrlab.data.annotations import IGNORED, MOST_BOXES, Boxes, Page, PageError, page_errors, read_text
from ocrlab.data.audit.finding import Finding
from ocrlab.data.folder_layouts import LEAVES, SUFFIXES
from ocrlab.data.formats import reader as format_reader
from ocrlab.data.formats.icdar import icdar, rows_of
from ocrlab.data.formats.recognition import FileReader
from ocrlab.data.shards.dataset import Readers
from ocrlab.data.shards.tar_member import Member
from ocrlab.errors import DataError
from ocrlab.geometry import Polygon

TEXTS = (".txt", ".csv")
NOWHERE = np.zeros((0, 2), np.float32)  # the polygon of a box whose points are null


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """One line of an annotation; `polygon` (P, 2) may hold NaN."""

    line: int
    polygon: Polygon
    text: str
    ignored: bool


@dataclass(slots=True)
class Raw:
    """One page: `faults` are the lines that cannot be read, with None for the whole page; `notes` are not mistakes."""

    name: str
    split: str
    image: Path | Member | None
    annotation: Path | None
    boxes: list[Box] = field(default_factory=list)
    faults: list[tuple[int | None, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lost: str = ""  # why there is no image

    def finding(
        self,
        kind: str,
        severity: str,
        why: str,
        box: Box | None = None,
        line: int | None = None,
        other: str | None = None,
    ) -> Finding:
        """Return a finding about the page, a line of its annotation, or one of its boxes."""
        points = None
        if box is not None:
            line, points = box.line, np.nan_to_num(box.polygon).astype(np.float64).tolist() or None
        return Finding(kind, self.name, self.split, line, points, severity, why, other)


def pages(path: Path | str, splits: Sequence[str] | None = None) -> list[Callable[[], Raw]]:
    """Return one function a page, that reads its annotation and never raises; raises DataError if nothing is there.

    Without `splits`, all that the folder holds.
    """
    path = Path(path).expanduser()
    try:
        names = splits or format_reader.splits(path) or [path.stem]
        return [reader for split in names for reader in _pages_of(path, split)]
    except PageError:  # the layout is known, and its one annotation file is what is wrong
        raise
    except DataError:
        readers = _loose(path) if path.is_dir() and not splits else []
        if not readers:
            raise
        return readers
    except OSError as error:
        raise DataError(f"{error.filename or path} cannot be read", got=error.strerror) from error


def _pages_of(path: Path, split: str) -> list[Callable[[], Raw]]:
    """Return the pages of one split of a known layout."""
    readers, errors, _ = format_reader.open_pages(path, split)
    pages: list[Callable[[], Raw]] = [partial(_unpaired, error, split) for error in errors]
    for number, read in enumerate(readers):
        image, file = (read.image, read.file) if isinstance(read, FileReader) else (None, None)
        if isinstance(readers, Readers):
            file = readers.tar(number)
        if isinstance(read, FileReader) and image and read.file.suffix.lower() in TEXTS:
            pages.append(partial(_from_text, read.page_name(image), split, image, read.file))
        else:
            pages.append(partial(_from_page, read, split, image, file))
    return pages


def _from_text(name: str, split: str, image: Path | None, text: Path) -> Raw:
    raw = Raw(name, split, image, text)
    read_lines(text, raw)
    return raw


def read_lines(path: Path, raw: Raw) -> None:
    """Read an ICDAR text file into `raw`; in a file with bad lines the others are read, and each bad one is a fault."""
    try:
        data, text = safe_read.read(path), read_text(path)
    except (PageError, OSError) as error:
        raw.faults.append((getattr(error, "line", None), _message(error)))
        return
    if b"\r\n" in data and data.count(b"\n") > data.count(b"\r\n"):
        raw.notes.append("mixed line ends: CRLF and LF")
    if data.startswith(b"\xef\xbb\xbf"):
        raw.notes.append("starts with a byte-order mark")
    try:
        boxes = icdar(text, path)
    except PageError:  # it reports no more than the first bad line
        for number, line in rows_of(text)[:MOST_BOXES]:
            fields = line.split(",", 8)
            words = "".join(fields[8:])
            try:
                with np.errstate(over="ignore"):  # 1e308 becomes infinite, which is reported
                    polygon = np.array([float(value) for value in fields[:8]], np.float32).reshape(4, 2)
                raw.boxes.append(Box(number, polygon, words, words.strip() == IGNORED))
            except ValueError:
                got = f"{len(fields)} fields" if len(fields) < 8 else "a field that is not a number"
                raw.faults.append((number, f"{got} where 8 numbers and a text are needed: {line[:60]!r}"))
        return
    raw.boxes = _boxes([number for number, _ in rows_of(text)], boxes)


def _boxes(lines: Iterable[int], boxes: Boxes) -> list[Box]:
    columns = zip(lines, boxes.polygons, boxes.texts, boxes.ignored, strict=True)
    return [Box(n, NOWHERE if polygon is None else polygon, text, ignored) for n, polygon, text, ignored in columns]


def _from_page(read: Callable[[], Page], split: str, image: Path | None, file: Path | None) -> Raw:
    try:
        with page_errors(file):
            page = read()
    except PageError as error:
        file = file or Path(str(error.file or "unknown"))
        return Raw(image.stem if image else file.stem, split, image, file, faults=[(error.line, _message(error))])
    boxes = _boxes(range(1, len(page.boxes.texts) + 1), page.boxes)
    return Raw(page.name, split, page.image, page.annotation, boxes)


def _unpaired(error: PageError, split: str) -> Raw:
    """Turn an image without annotation, or the other way round, into a page with that fault."""
    file = Path(str(error.file or "unknown"))
    if file.suffix.lower() in SUFFIXES:
        return Raw(file.stem, split, file, None, faults=[(None, _message(error))])
    return Raw(file.stem.removeprefix("gt_"), split, None, file, lost=_message(error))


def _loose(path: Path) -> list[Callable[[], Raw]]:
    """Return the pages of a folder of loose files and of the folders in it."""
    readers: list[Callable[[], Raw]] = []
    around = [path / "images", *sorted(path.absolute().parent.glob("*/images"))]
    for place in (path, *sorted(entry for entry in path.iterdir() if entry.is_dir())):
        files = sorted(file for file in place.iterdir() if file.is_file())
        linked = [file for file in files if file.is_symlink() and safe_read.leads_out(file, path, place)]
        readers += [
            partial(_unpaired, PageError(LEAVES, file=file, need="the file itself"), place.name) for file in linked
        ]
        files = [file for file in files if file not in linked]
        texts = {file: file.stem.removeprefix("gt_") for file in files if file.suffix.lower() in TEXTS}
        for file, name in texts.items():
            candidates = [
                folder / f"{name}{suffix}"
                for folder in (place, place / "images", *around)  # beside it, or in a split of the data set around
                for suffix in sorted(SUFFIXES)
            ]
            image = next((candidate for candidate in candidates if candidate.is_file()), None)
            readers.append(partial(_from_text, name, place.name, image, file))
        images = [file for file in files if file.suffix.lower() in SUFFIXES and file.stem not in texts.values()]
        readers += [partial(Raw, image.stem, place.name, image, None) for image in images]
    return readers


def _message(error: Exception) -> str:
    return str(error.problem.message if isinstance(error, PageError) else error)
