"""Pages as they were written, nothing judged and nothing left out: every box keeps its line, every bad line its reason.

The layouts are those of folder_layouts.py. A folder with none of them is taken as loose files, folder by folder: text
files of boxes find their image by name beside them, in images/ or in the data set around them; images without a text
file are only decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from ocrlab.data import folder_layouts
from ocrlab.data.annotations import IGNORED, Page, PageError, read_text
from ocrlab.data.folder_layouts import SUFFIXES
from ocrlab.data.formats import reader as format_reader
from ocrlab.data.formats.icdar import icdar
from ocrlab.data.page_files import pair
from ocrlab.data.shards.dataset import Readers
from ocrlab.data.shards.tar_member import Member
from ocrlab.errors import DataError
from ocrlab.geometry import Polygon

TEXTS = (".txt", ".csv")


@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """One line of an annotation: `polygon` (P, 2) may hold NaN, and is None where a JSON says null."""

    line: int
    polygon: Polygon | None
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


def pages(path: Path | str, splits: Sequence[str] | None = None) -> list[Callable[[], Raw]]:
    """Return one function a page, that reads its annotation and never raises; raises DataError if nothing is there.

    Without `splits`, all that the folder holds.
    """
    path = Path(path).expanduser()
    try:
        return [
            reader for split in splits or format_reader.splits(path) or [path.stem] for reader in _split(path, split)
        ]
    except PageError:  # the layout is known, and its one annotation file is what is wrong
        raise
    except DataError:
        readers = _loose(path) if path.is_dir() and not splits else []
        if not readers:
            raise
        return readers
    except OSError as error:
        raise DataError(f"{error.filename or path} cannot be read", got=error.strerror) from error


def read_lines(path: Path, raw: Raw) -> None:
    """Read an ICDAR text file into `raw`; in a file with bad lines the others are read, and each bad one is a fault."""
    try:
        data, text = path.read_bytes(), read_text(path)
    except (PageError, OSError) as error:
        raw.faults.append((getattr(error, "line", None), _message(error)))
        return
    if b"\r\n" in data and data.count(b"\n") > data.count(b"\r\n"):
        raw.notes.append("mixed line ends: CRLF and LF")
    if data.startswith(b"\xef\xbb\xbf"):
        raw.notes.append("starts with a byte-order mark")
    lines = [(number, line.removeprefix("\ufeff")) for number, line in enumerate(text.split("\n"), 1)]
    lines = [(number, line) for number, line in lines if line.strip()]
    try:
        boxes = icdar(text, path)
    except PageError:  # it says no more than the first bad line
        for number, line in lines:
            _add(raw, number, line)
    else:
        columns = zip(lines, boxes.polygons, boxes.texts, boxes.ignored, strict=True)
        raw.boxes = [Box(number, polygon, words, ignored) for (number, _), polygon, words, ignored in columns]


def _add(raw: Raw, number: int, line: str) -> None:
    fields = line.split(",", 8)
    try:
        values = np.array([float(value) for value in fields[:8]], np.float32)
    except ValueError:
        values = np.array([])
    if len(values) < 8:
        got = f"{len(fields)} fields" if len(fields) < 8 else "a field that is not a number"
        raw.faults.append((number, f"{got} where 8 numbers and a text are needed: {line[:60]!r}"))
        return
    text = "".join(fields[8:])
    raw.boxes.append(Box(number, values.reshape(4, 2), text, text.strip() == IGNORED))


def _split(path: Path, split: str) -> list[Callable[[], Raw]]:
    """Return the pages of one split of a known layout."""
    pages: list[Callable[[], Raw]]
    readers, errors, _ = format_reader.open_pages(path, split)
    if isinstance(readers, Readers):
        pages = [partial(_unpaired, error, split) for error in errors]
        return pages + [partial(_from_page, read, split, None, readers.tar(n)) for n, read in enumerate(readers)]
    source = folder_layouts.find(path, split)
    files: list[tuple[Path, Path]] = pair(source)[0] if source.annotations.is_dir() else []
    pages = [partial(_unpaired, error, split) for error in errors]
    for number, read in enumerate(readers):
        image, file = files[number] if number < len(files) else (None, source.annotations)
        if image is not None and file.suffix.lower() in TEXTS:
            name = image.relative_to(source.images[0]).with_suffix("").as_posix()
            pages.append(partial(_from_text, name, split, image, file))
        else:
            pages.append(partial(_from_page, read, split, image, file))
    return pages


def _from_text(name: str, split: str, image: Path | None, text: Path) -> Raw:
    raw = Raw(name, split, image, text)
    read_lines(text, raw)
    return raw


def _from_page(read: Callable[[], Page], split: str, image: Path | None, file: Path) -> Raw:
    try:
        page = read()
    except PageError as error:
        return Raw(image.stem if image else file.stem, split, image, file, faults=[(error.line, _message(error))])
    boxes = zip(page.boxes.polygons, page.boxes.texts, page.boxes.ignored, strict=True)
    return Raw(page.name, split, page.image, page.annotation, [Box(n, *box) for n, box in enumerate(boxes, 1)])


def _unpaired(error: PageError, split: str) -> Raw:
    """Turn an image without annotation, or the other way round, into a page with that fault."""
    file = Path(str(error.file or "unknown"))
    if file.suffix.lower() in SUFFIXES:
        return Raw(file.stem, split, file, None, faults=[(None, _message(error))])
    return Raw(file.stem.removeprefix("gt_"), split, None, file, lost=_message(error))


def _loose(path: Path) -> list[Callable[[], Raw]]:
    """Return the pages of a folder of loose files and of the folders in it."""
    readers: list[Callable[[], Raw]] = []
    for place in (path, *sorted(entry for entry in path.iterdir() if entry.is_dir())):
        files = sorted(file for file in place.iterdir() if file.is_file())
        texts = [file for file in files if file.suffix.lower() in TEXTS]
        stems = {file.stem.removeprefix("gt_") for file in texts}
        for file in texts:
            name = file.stem.removeprefix("gt_")
            readers.append(partial(_from_text, name, place.name, _image_of(name, place, path), file))
        images = [file for file in files if file.suffix.lower() in SUFFIXES and file.stem not in stems]
        readers += [partial(Raw, image.stem, place.name, image, None) for image in images]
    return readers


def _image_of(name: str, place: Path, path: Path) -> Path | None:
    """Return the image of a loose text file: beside it, in images/, or in a split of the data set around `path`."""
    parents = [place, place / "images", path / "images", *sorted(path.absolute().parent.glob("*/images"))]
    for parent in parents:
        for suffix in sorted(SUFFIXES):
            if (parent / f"{name}{suffix}").is_file():
                return parent / f"{name}{suffix}"
    return None


def _message(error: Exception) -> str:
    return str(error.problem.message if isinstance(error, PageError) else error)
