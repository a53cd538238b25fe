"""Which format an annotation has, told by what is in it, and the pages that it holds.

A new format is one function, in a file of its own, and one line below. Of a file for many pages the function returns
`Contents`, of a page its boxes and, where it says so, the name of its image.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from ocrlab.data import field_parsing
from ocrlab.data.annotations import Boxes, Contents, Document, Entry, Page, PageError, read_text
from ocrlab.data.folder_layouts import Source
from ocrlab.data.formats import coco, curved_text, icdar, json_pages
from ocrlab.data.page_files import locate, pair
from ocrlab.errors import DataError

Reader = Callable[[], Page]  # reads one page, or raises PageError
F = TypeVar("F")

# name, whether an object is of it, the function, an example: one file for many pages
SETS: tuple[tuple[str, Callable[[Any], bool], Callable[[Document], Contents], str], ...] = (
    ("UFO", lambda data: isinstance(data.get("images"), dict), json_pages.ufo, json_pages.UFO),
    ("COCO", lambda data: isinstance(data.get("images"), list), coco.coco, coco.COCO),
    ("COCO-Text", lambda data: "imgs" in data and "anns" in data, coco.coco_text, coco.COCO_TEXT),
)
# one object a page: a file of its own, or a line of JSON lines
PAGES: tuple[tuple[str, Callable[[Any], bool], Callable[[dict[str, Any]], tuple[Any, Boxes]], str], ...] = (
    ("ocrlab's page", lambda data: any(key in data for key in json_pages.LISTS), json_pages.page, json_pages.PAGE),
    ("LabelMe", lambda data: "shapes" in data, json_pages.labelme, json_pages.LABELME),
    (
        "CORD",
        lambda data: "valid_line" in data or "ground_truth" in data or "gt_parse" in data,
        json_pages.cord,
        json_pages.CORD,
    ),
)
# text, by how it starts; else it is ICDAR text
TEXTS: tuple[tuple[str, Callable[[str, Path], Boxes]], ...] = (
    ("<", curved_text.ctw_xml),
    ("x:", curved_text.total_text),
)


def pages(source: Source, split: str) -> tuple[list[Reader], list[PageError], list[str]]:
    """Return one function a page, the errors that are known already, and notes; raises DataError."""
    if source.annotations.is_dir():
        return (*_folder(source), [])
    text = read_text(source.annotations)
    try:
        data = field_parsing.parse(text)
    except PageError as error:
        if not _is_lines(text):
            raise _in(error, source.annotations) from None
        lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        return [partial(_line, source, number, line) for number, line in lines], [], []
    if isinstance(data, list):
        return [partial(_record, source, None, row) for row in data], [], []
    if isinstance(data, dict) and not _fitting(SETS, data) and _fitting(PAGES, data):
        return [partial(_record, source, None, data)], [], []
    document = Document(source.annotations, text, data)
    try:
        contents = _only_match(SETS, data)[2](document)
    except PageError as error:
        raise _in(error, source.annotations) from None
    entries = [entry for entry in contents.entries if entry.split == split]
    names = sorted({entry.split for entry in contents.entries if entry.split})
    if entries:
        source.note = None  # the file knows the splits itself
    elif len(names) > 1:
        got, file = f"splits {', '.join(names)}", source.annotations
        raise DataError(f"{file} has no split {split!r}", got=got, need="one of them", do="Choose one of them")
    return [partial(_entry, source, document, entry) for entry in entries or contents.entries], [], contents.notes


def splits(file: Path) -> list[str]:
    """Return the splits that a file for many pages names itself, sorted."""
    text = read_text(file)
    data = field_parsing.parse(text) if not _is_lines(text) else None
    fitting = _fitting(SETS, data) if isinstance(data, dict) else []
    entries = fitting[0][2](Document(file, text, data)).entries if len(fitting) == 1 else []
    return sorted({entry.split for entry in entries if entry.split})


def _folder(source: Source) -> tuple[list[Reader], list[PageError]]:
    """Return the pages of a folder with one annotation a page."""
    pairs, errors, alone = pair(source)
    readers: list[Reader] = [partial(_file, source, image, file) for image, file in pairs]
    used = set()
    for file in alone:  # a JSON that names another image than its own name does
        try:
            page = _file(source, None, file)
            used.add(page.image)
            readers.append(partial(_same, page))
        except PageError as error:
            errors.append(error)
    return readers, [error for error in errors if error.file not in used]


def _same(page: Page) -> Page:
    return page


def _file(source: Source, image: Path | None, file: Path) -> Page:
    """Read the annotation of one page; `image` is the one of its name."""
    text = read_text(file)
    if file.suffix.lower() != ".json":
        start = text.lstrip("\ufeff \t\n")
        read = next((read for prefix, read in TEXTS if start.startswith(prefix)), icdar.icdar)
        boxes, name = read(text, file), None
    else:
        try:
            name, boxes = single_page(field_parsing.parse(text))
        except PageError as error:
            raise _in(error, file) from None
    image = _image(source, image, file, name)
    return Page(image.relative_to(source.images[0]).with_suffix("").as_posix(), image, file, None, boxes)


def _image(source: Source, image: Path | None, file: Path, name: Any) -> Path:
    """Return the image that an annotation names, or the one of its own name if that is nowhere."""
    if name is None and image:
        return image
    if image and isinstance(name, str) and PurePosixPath(name.replace("\\", "/")).name == image.name:
        name = name if ".." in name or name[:1] == "/" or name[1:2] == ":" else image.name
    try:
        path = locate(name, source, beside=file.parent)
    except PageError as error:
        if image and "does not exist" in str(error):
            return image
        raise _in(error, file) from None
    return path


def _line(source: Source, number: int, line: str) -> Page:
    try:
        data = field_parsing.parse(line)
    except PageError as error:
        raise _in(error, source.annotations, number) from None
    return _record(source, number, data)


def _record(source: Source, number: int | None, data: Any) -> Page:
    try:
        name, boxes = single_page(data)
    except PageError as error:
        raise _in(error, source.annotations, number) from None
    image = locate(name, source, number, beside=source.annotations.parent)
    return Page(_stem(name, image, source), image, source.annotations, number, boxes)


def _entry(source: Source, document: Document, entry: Entry) -> Page:
    try:
        image = locate(entry.image, source)
    except PageError as error:
        line = field_parsing.line_of(document.text, entry.image) if isinstance(entry.image, str) else None
        raise _in(error, source.annotations, line) from None
    try:
        return Page(_stem(entry.image, image, source), image, source.annotations, None, entry.read())
    except PageError as error:
        raise _in(error, source.annotations, what=f"page {entry.image!r}: ") from None


def single_page(data: Any) -> tuple[Any, Boxes]:
    """Return image name and boxes of an object that is one page."""
    if isinstance(data, dict) and _fitting(SETS, data) and not _fitting(PAGES, data):
        name = _fitting(SETS, data)[0][0]
        do = "Give the path of this file itself"
        raise PageError(
            f"this is {name}, one file for many pages", got=field_parsing.kind(data), need="one page", do=do
        )
    return _only_match(PAGES, data)[2](data)


def _only_match(table: Iterable[F], data: Any) -> F:
    """Return the only line of SETS or PAGES that fits; raises PageError that says what was seen, and what is known."""
    rows: list[Any] = list(table)
    matches = _fitting(rows, data) if isinstance(data, dict) else []
    if len(matches) == 1:
        return matches[0]  # type: ignore[no-any-return]
    formats = "; ".join(f"{name} {example}" for name, _, _, example in rows)
    what = f"could be {' or '.join(row[0] for row in matches)}" if matches else "a format that is not known"
    do = "Remove what does not belong to it" if matches else "Convert it to one of them"
    raise PageError(what, got=field_parsing.kind(data), need=formats, do=do)


def _fitting(table: Iterable[Any], data: dict[str, Any]) -> list[Any]:
    return [row for row in table if row[1](data)]


def _is_lines(text: str) -> bool:
    """Tell whether a text is JSON lines: its first line is an object by itself, and others follow."""
    first, _, rest = text.lstrip().partition("\n")
    return first.startswith("{") and first.rstrip().endswith("}") and bool(rest.strip())


def _in(error: PageError, file: Path, line: int | None = None, what: str = "") -> PageError:
    """Return an error with the file that it is about."""
    bare = error.problem.message if error.file else str(error)
    return PageError(what + bare.rstrip("."), file=file, line=line or error.line)


def _stem(name: str, image: Path, source: Source) -> str:
    """Return the name of a page: that of its image as the annotation has it, never a way out of the folder."""
    path = PurePosixPath(name.replace("\\", "/"))
    path = PurePosixPath(os.path.relpath(image, source.root)) if ".." in path.parts else path
    return path.with_suffix("").as_posix()
