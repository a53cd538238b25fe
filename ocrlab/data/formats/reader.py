"""Annotations -> samples: `load` reads one split of a data folder, judges every polygon once, and says what is wrong.

Which format it is, recognition.py tells by the content; a new one is one function in one file, and a line there.

A box whose polygon is degenerate is dropped and counted; its page stays. A page with a line that cannot be read is left
out whole: nobody knows where that box was, and a page without it would teach that there is no text. An empty annotation
is a page without text. A missing transcription is not `###`: such a box counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from ocrlab.data import folder_layouts
from ocrlab.data.annotation_cleaning import Index, Sample, judge
from ocrlab.data.annotations import Boxes, PageError, Problem, page_errors
from ocrlab.data.formats import recognition
from ocrlab.data.formats.icdar import read_icdar, write_icdar
from ocrlab.data.image_io import read_header, read_image
from ocrlab.data.shards import dataset
from ocrlab.errors import DataError

HOPELESS = 10_000  # bad pages without a good one, after which no more are read

__all__ = ["Boxes", "Index", "PageError", "Problem", "Sample", "load", "read_icdar", "read_image", "write_icdar"]


def load(
    path: Path | str,
    split: str,
    *,
    exif: bool = False,
    strict: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Index:
    """Load one split of a data folder (see folder_layouts.py), or one JSON file, and check every polygon once.

    Image headers are read, pixels are not; `exif` must be the value that the images will be read with. A bad page
    becomes a Problem and is left out; with `strict` it raises PageError. Raises DataError if there is no such folder or
    split, if the JSON cannot be read, or if no page is left. `progress(done, pages)` is called after each page. Of
    shards each page is read on access: see shards.py.
    """
    path = Path(path).expanduser()
    shards = dataset.find(path, split)
    if shards:
        return dataset.load(path, split, shards, exif, strict, progress)
    readers, errors, notes = open_pages(path, split)
    samples: dict[str, Sample] = {}
    dropped: Counter[str] = Counter()
    for number, read in enumerate(readers, 1):
        try:
            with page_errors(path):
                page = read()
            if page.name in samples:
                what = f"page {page.name!r} occurs twice"
                raise PageError(what, file=page.annotation, line=page.line, need="one entry")
            with page_errors(page.image):
                samples[page.name] = judge(page, read_header(page.image), exif, dropped)
        except PageError as error:
            errors.append(error)
        if strict and errors:
            raise errors[0]
        if progress:
            progress(number, len(readers))
        if not samples and len(errors) >= HOPELESS:
            break
    if not samples:
        got = f"{len(errors):,} bad pages, the first being {errors[0]}" if errors else "an empty list of pages"
        raise DataError(f"No page of split {split!r} in {path} can be used", got=got.rstrip("."), need="one good page")
    return Index(list(samples.values()), dropped, notes + [error.problem for error in errors], path, split)


def open_pages(path: Path, split: str) -> tuple[Sequence[recognition.Reader], list[PageError], list[Problem]]:
    """Return one function a page as it is annotated, the errors known already, and notes; raises DataError."""
    try:
        shards = dataset.find(path, split)
        if shards:
            return dataset.open_readers(shards)
        source = folder_layouts.find(path, split)
        readers, errors, notes = recognition.pages(source, split)
    except OSError as error:
        raise DataError(f"{error.filename or path} cannot be read", got=error.strerror) from error
    notes = [source.note, *notes] if source.note else notes
    return readers, errors, [Problem(source.annotations, None, note, lost=0) for note in notes]


def splits(path: Path) -> list[str]:
    """Return the splits of a data folder or of a file for many pages, sorted; none if it knows no splits."""
    names = dataset.splits(path) or folder_layouts.splits(path)
    if names or dataset.find(path, "train"):
        return names
    annotations = folder_layouts.find(path, "train").annotations
    return [] if annotations.is_dir() else recognition.splits(annotations)
