"""Which format an annotation has, recognised by its content, and the pages that it holds.

A new format is one function, in a file of its own, and one line below. Of a file for many pages the function returns
an `Entry` a page and notes for the user, of a page its boxes and, where it has one, the name of its image.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from ocrlab.data.annotations import Boxes, Entry, Page, PageError, page_errors, read_text
from ocrlab.data.field_parsing import Lines, kind, parse
from ocrlab.data.folder_layouts import Source
from ocrlab.data.formats import coco, curved_text, icdar, json_pages
from ocrlab.data.page_files import locate, pair
from ocrlab.errors import DataError

Reader = Callable[[], Page]  # reads one page, or raises PageError
Format = tuple[str, Callable[[Any], bool], Callable[..., Any], str]

# name, whether an object is of it, the function, an example: one file for many pages
SETS: tuple[Format, ...] = (
    ("UFO", lambda data: isinstance(data.get("images"), dict), json_pages.ufo, json_pages.UFO),
    ("COCO", lambda data: isinstance(data.get("images"), list), coco.coco, coco.COCO),
    ("COCO-Text", lambda data: "imgs" in data and "anns" in data, coco.coco_text, coco.COCO_TEXT),
)
# one object a page: a file of its own, or a line of JSON lines
PAGES: tuple[Format, ...] = (
    ("ocrlab's page", lambda data: bool(data.keys() & set(json_pages.LISTS)), json_pages.page, json_pages.PAGE),
    ("LabelMe", lambda data: "shapes" in data, json_pages.labelme, json_pages.LABELME),
    (
        "CORD",
        lambda data: bool(data.keys() & {"valid_line", "ground_truth", "gt_parse"}),
        json_pages.cord,
        json_pages.CORD,
    ),
)
# text, by how it starts; else it is ICDAR text
TEXTS: dict[str, Callable[[str, Path], Boxes]] = {"<": curved_text.ctw_xml, "x:": curved_text.total_text}


@dataclass(frozen=True)
class FileReader:
    """Reads the page of one annotation file; `image` is the one of its name, where there is one."""

    source: Source
    image: Path | None
    file: Path

    def __call__(self) -> Page:
        image, file, name = self.image, self.file, None
        text = read_text(file)
        if file.suffix.lower() != ".json":
            start = text.lstrip("\ufeff \t\n")
            read = next((read for prefix, read in TEXTS.items() if start.startswith(prefix)), icdar.icdar)
            with page_errors(file):
                boxes = read(text, file)
        else:
            with page_errors(file):
                name, boxes = single_page(parse(text))
        if image and isinstance(name, str) and PurePosixPath(name.replace("\\", "/")).name == image.name:
            leads_away = ".." in name or name[:1] == "/" or name[1:2] == ":"
            name = name if leads_away else image.name
        if name is not None or image is None:
            try:
                image = locate(name, self.source, beside=file.parent)
            except PageError as error:
                if image is None or "does not exist" not in str(error):
                    raise error.within(file=file) from None
        return Page(self.page_name(image), image, file, None, boxes)

    def page_name(self, image: Path) -> str:
        """Return the name of a page: that of its image below the folder of images."""
        return image.relative_to(self.source.images[0]).with_suffix("").as_posix()


def pages(source: Source, split: str) -> tuple[list[Reader], list[PageError], list[str]]:
    """Return one function a page, the errors that are known already, and notes; raises DataError."""
    file = source.annotations
    if file.is_dir():
        return (*_folder(source), [])
    text = read_text(file, lines=True)
    try:
        text.encode()  # a bad byte, which only lines survive
        data = parse(text)
    except UnicodeEncodeError:
        if not _is_lines(text):
            read_text(file)  # raises, and says which byte
        return _lines(source, text), [], []
    except PageError as error:
        if not _is_lines(text):
            raise error.within(file=file) from None
        return _lines(source, text), [], []
    if isinstance(data, list) or (_fitting(PAGES, data) and not _fitting(SETS, data)):
        return [partial(_row, source, None, row) for row in (data if isinstance(data, list) else [data])], [], []
    with page_errors(file):
        entries, notes = _recognised(SETS, data)(data, lines := Lines(text))
    chosen = [entry for entry in entries if entry.split == split]
    names = sorted({entry.split for entry in entries if entry.split})
    if chosen:
        source.note = None  # the file knows the splits itself
    elif len(names) > 1:
        got = f"splits {', '.join(names)}"
        raise DataError(f"{file} has no split {split!r}", got=got, need="one of them", do="Choose one of them")
    return [partial(_entry, source, lines, entry) for entry in chosen or entries], [], notes


def _lines(source: Source, text: str) -> list[Reader]:
    """Return one function a page of JSON lines."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    return [partial(_row, source, number, line) for number, line in lines]


def splits(file: Path) -> list[str]:
    """Return the splits that a file for many pages names itself, sorted."""
    text = read_text(file, lines=True)
    data = parse(text) if not _is_lines(text) else None
    matches = _fitting(SETS, data)
    entries = matches[0][2](data, Lines(text))[0] if len(matches) == 1 else []
    return sorted({entry.split for entry in entries if entry.split})


def _folder(source: Source) -> tuple[list[Reader], list[PageError]]:
    """Return the pages of a folder with one annotation a page."""
    pairs, errors, alone = pair(source)
    readers: list[Reader] = [FileReader(source, image, file) for image, file in pairs]
    used = set()
    for file in alone:  # a JSON that names another image than its own name does
        try:
            read = FileReader(source, None, file)
            used.add(read().image)
            readers.append(read)
        except PageError as error:
            errors.append(error)
    return readers, [error for error in errors if error.file not in used]


def _row(source: Source, number: int | None, row: Any) -> Page:
    """Read a page that is a line of JSON lines, or an object in a list, which has no number."""
    with page_errors(source.annotations, number):
        if number is not None:
            row.encode()
        name, boxes = single_page(row if number is None else parse(row))
    image = locate(name, source, number, beside=source.annotations.parent)
    return Page(_page_name(name, image, source), image, source.annotations, number, boxes)


def _entry(source: Source, lines: Lines, entry: Entry) -> Page:
    file, name = source.annotations, entry.image
    try:
        image = locate(name, source)
    except PageError as error:
        raise error.within(file=file, line=lines.of(name) if isinstance(name, str) else None) from None
    try:
        with page_errors(file):
            return Page(_page_name(name, image, source), image, file, None, entry.read())
    except PageError as error:
        raise error.within(f"page {name!r}: ", file=file) from None


def single_page(data: Any) -> tuple[Any, Boxes]:
    """Return image name and boxes of an object that is one page."""
    sets = _fitting(SETS, data)
    if sets and not _fitting(PAGES, data):
        what, do = f"this is {sets[0][0]}, one file for many pages", "Give the path of this file itself"
        raise PageError(what, got=kind(data), need="one page", do=do)
    name, boxes = _recognised(PAGES, data)(data)
    return name, boxes


def _recognised(formats: tuple[Format, ...], data: Any) -> Callable[..., Any]:
    """Return the function of the only format that fits; raises PageError with what was given and what is known."""
    matches = _fitting(formats, data)
    if len(matches) == 1:
        return matches[0][2]
    what = f"could be {' or '.join(row[0] for row in matches)}" if matches else "a format that is not known"
    need = "; ".join(f"{name} {example}" for name, _, _, example in formats)
    do = "Remove what does not belong to it" if matches else "Convert it to one of them"
    raise PageError(what, got=kind(data), need=need, do=do)


def _fitting(formats: tuple[Format, ...], data: Any) -> list[Format]:
    return [row for row in formats if row[1](data)] if isinstance(data, dict) else []


def _is_lines(text: str) -> bool:
    """Return whether a text is JSON lines: its first line is an object by itself, and others follow."""
    first, _, rest = text.lstrip().partition("\n")
    return first.startswith("{") and first.rstrip().endswith("}") and bool(rest.strip())


def _page_name(name: str, image: Path, source: Source) -> str:
    """Return the name of a page: that of its image as the annotation has it, never a way out of the folder."""
    path = PurePosixPath(name.replace("\\", "/"))
    path = PurePosixPath(os.path.relpath(image, source.root)) if ".." in path.parts else path
    return path.with_suffix("").as_posix()
