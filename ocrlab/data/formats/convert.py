"""Annotated pages from one format into another, as they were annotated: nothing is clipped, ordered or judged.

All of it is written or nothing: into a folder beside the target, which gets its name at the end. What already exists
is never overwritten, and the source is only read. Image, polygon, transcription and the ignore flag are carried over.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ocrlab.data.annotations import Page, PageError, Problem, page_errors
from ocrlab.data.formats import reader, writers
from ocrlab.data.image_io import read_file, read_header
from ocrlab.data.shards import tar_scan, writer
from ocrlab.data.shards.tar_member import Member
from ocrlab.errors import DataError

Images = Literal["copy", "link", "none"]
WRITERS = writers.FORMATS | {"shards": writer.to_shards}
PLACES = writers.PLACES | {"shards": "{split}"}
LEFT_OUT = "pages, left out for a problem named below"
CUT_OFF = "shards that cannot be read to their end; nobody knows how many pages that held"


@dataclass
class Conversion:
    """What was written: pages by split, boxes, what the new format could not hold, and what was left out and why."""

    folder: Path
    pages: dict[str, int] = field(default_factory=dict)
    boxes: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)


def convert(
    source: Path | str,
    target: Path | str,
    to: str,
    *,
    splits: Sequence[str] = (),
    images: Images = "copy",
    quads: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Conversion:
    """Write the pages of a data folder, or of one annotation file, as a new folder in format `to` (see writers.py).

    Without `splits`, all are converted. `images` are copied, linked (hard links: the same file under a second
    name) or left where they are. With `quads` every polygon becomes one of 4 points. A page that cannot be read is a
    problem and left out. Raises DataError if the target exists or lies in the source, or if no page is left.
    """
    source, target = Path(source).expanduser(), Path(target).expanduser()
    _check(source, target, to, images)
    result = Conversion(target)
    with write_whole(target) as folder:
        for split in list(splits) or reader.splits(source) or ["train"]:
            readers, errors, notes = reader.open_pages(source, split)
            result.problems += [*notes, *(error.problem for error in errors)]
            result.lost[LEFT_OUT] += sum(note.lost for note in notes)
            for error in errors:
                shard = error.file is not None and (error.file.suffix == ".tar" or tar_scan.is_packed(Path(error.file)))
                result.lost[CUT_OFF if shard else LEFT_OUT] += 1
            place = folder / PLACES[to].format(split=split)
            place.mkdir(parents=True, exist_ok=True)
            result.pages[split] = 0
            how = images if to != "shards" else "none"  # they are put into the tars
            records = _records(readers, split, place, how, quads, result, progress)
            WRITERS[to](records, folder, split, result.lost)
            if to == "shards" and result.pages[split]:
                reader.open_pages(folder, split)  # makes the index
        if not any(result.pages.values()):
            got = str(result.problems[0]) if result.problems else "an empty list of pages"
            raise DataError(f"No page of {source} can be converted", got=got.rstrip("."), need="one good page")
    return result


def _check(source: Path, target: Path, to: str, images: Images) -> None:
    if to not in WRITERS:
        raise DataError("Unknown format to write", got=to, need=f"one of {', '.join(WRITERS)}")
    if to == "shards" and images != "copy":
        raise DataError("Shards hold the images themselves", got=f"--images {images}", need="--images copy")
    if not source.exists():
        reader.open_pages(source, "train")  # says what is there instead
    home = (source if source.is_dir() else source.parent).resolve()
    if target.resolve().is_relative_to(home):
        raise DataError(f"{target} lies inside {home}", need="a folder outside the source, which stays as it is")


def pages_lost(result: Conversion) -> bool:
    """Return whether pages of the source are missing in what was written."""
    return bool(result.lost[LEFT_OUT] or result.lost[CUT_OFF])


def _refuse_existing(target: Path, but: Path | None = None) -> None:
    if os.path.lexists(target) and (not target.is_dir() or any(part != but for part in target.iterdir())):
        do = "Name another one; nothing is overwritten"
        raise DataError(f"{target} already exists", need="a new or empty folder", do=do)


@contextmanager
def write_whole(target: Path) -> Iterator[Path]:
    """Yield a folder to write into, that becomes `target` if all goes well and is removed if not.

    Raises DataError where it cannot, or where `target` is there and not an empty folder.
    """
    _refuse_existing(target)
    is_there = target.is_dir()  # and stays: it may be the working folder, or where a disk is mounted
    place = target if is_there else target.parent
    try:
        place.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=place))
    except OSError as error:
        what = f"{place.absolute()} cannot be written"
        raise DataError(what, got=error.strerror, need="a folder that you may write to") from error
    try:
        yield folder
        mask = os.umask(0o077)
        os.umask(mask)
        folder.chmod(0o777 & ~mask)
        _refuse_existing(target, but=folder)  # another process may have made it meanwhile
        if is_there:
            for part in list(folder.iterdir()):
                part.rename(target / part.name)
        else:
            folder.rename(target)
    except OSError as error:
        raise DataError(
            f"{target} cannot be written", got=error.strerror, need="free space and permission to write"
        ) from error
    finally:
        if folder.exists():
            shutil.rmtree(folder)


def _records(
    readers: Sequence[Callable[[], Page]],
    split: str,
    place: Path,
    images: Images,
    quads: bool,
    result: Conversion,
    progress: Callable[[int, int], None] | None,
) -> Iterator[writers.Record]:
    """Yield each page that can be read, its image in its place, and count it in `result`."""
    names: set[str] = set()
    for number, read in enumerate(readers, 1):
        try:
            with page_errors(None):
                page = read()
            if page.name in names:
                raise PageError(f"page {page.name!r} occurs twice", file=page.annotation, need="one entry")
            with page_errors(page.image):
                header = read_header(page.image)
            names.add(page.name)
            file = page.name + page.image.suffix
            _place_image(page.image, place / file, images)
            record = writers.record(page, file, (header.width, header.height), quads, result.lost)
            result.pages[split] += 1
            result.boxes += len(record.boxes)
            yield record
        except PageError as error:
            result.problems.append(error.problem)
            result.lost[LEFT_OUT] += 1
        if progress:
            progress(number, len(readers))


def _place_image(image: Path | Member, place: Path, how: Images) -> None:
    if how == "none":
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    if how == "copy":
        place.write_bytes(read_file(image))
        return
    do = "Use --images copy"
    if isinstance(image, Member):
        raise DataError(f"{image} cannot be linked to", got="a file inside a tar", do=do)
    try:
        os.link(os.path.realpath(image), place)
    except OSError as error:
        raise DataError(f"{image} cannot be linked to from {place.parent}", got=error.strerror, do=do) from error
