"""Data folders of shards, for millions of pages: tars of KEY.jpg + KEY.json, as WebDataset has them.

    FOLDER/SPLIT/*.tar, FOLDER/SPLIT-000000.tar ..., or FOLDER/*.tar and one FILE.tar, which know no splits

KEY.json is a page in one of recognition.py. The tars are not compressed: a page is a range of bytes, read at random
through an index (shard_index.py) that is mapped, so that a million pages are opened as fast as a hundred.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ocrlab.data import folder_layouts
from ocrlab.data.annotation_cleaning import Index, Sample, judge
from ocrlab.data.annotations import PageError, Problem
from ocrlab.data.folder_layouts import SUFFIXES
from ocrlab.data.formats.recognition import Reader
from ocrlab.data.shards import shard_index, tar_scan
from ocrlab.data.shards.shard_index import Progress, ShardIndex
from ocrlab.errors import DataError

NUMBERED = re.compile(r"(?P<split>.*?)[-_.]?\d+\.tar")
INDEX = "index.ocrlab"


@dataclass(frozen=True)
class ShardFiles:
    """The tars of a split, the name of their index, and what a user should know about this choice."""

    tars: list[Path]
    index: str
    note: str | None = None

    @property
    def packed(self) -> list[PageError]:
        """An error for each compressed tar beside the plain ones: nobody knows how many pages it holds."""
        places = dict.fromkeys(tar.parent for tar in self.tars)
        files = [file for place in places for file in sorted(place.iterdir()) if tar_scan.is_packed(file)]
        return [PageError("is left out: it is compressed", file=file, do="Unpack it, or remove it") for file in files]

    @property
    def notes(self) -> list[Problem]:
        """The note as a list, which is empty without one."""
        return [Problem(self.tars[0], None, self.note, lost=0)] if self.note else []


def find(path: Path, split: str) -> ShardFiles | None:
    """Return the shards of a split, or None where the folder is of another layout; raises DataError for packed ones."""
    if path.is_file():
        if path.suffix.lower() != ".tar" and not tar_scan.is_packed(path):
            return None
        tar_scan.refuse_packed(path)
        return ShardFiles([path], f"{path.name}.{INDEX}", folder_layouts.shared(path, split))
    inside = path / split
    if here := _tars(inside):
        folder_layouts.refuse_links_out(here, path)
        return ShardFiles(here, INDEX)
    every = _tars(path)
    here = [tar for tar in every if _split_of(tar) == split or tar.stem == split]
    folder_layouts.refuse_links_out(every, path)
    if here:
        return ShardFiles(here, f"{split}.{INDEX}")
    if every and not splits(path):
        return ShardFiles(every, INDEX, folder_layouts.shared(path, split))
    return None


def splits(path: Path) -> list[str]:
    """Return the splits that a folder of shards holds, sorted; none if it knows no splits."""
    if not path.is_dir():
        return []
    inside = [entry.name for entry in path.iterdir() if entry.is_dir() and entry.name[0] != "." and _tars(entry)]
    names = {_split_of(tar) or tar.stem for tar in _tars(path)}
    return sorted({*inside, *(name for name in names if name in folder_layouts.SPLIT_NAMES)})


def load(path: Path, split: str, shards: ShardFiles, exif: bool, strict: bool, progress: Progress | None) -> Index:
    """Open one split; raises DataError if no page of it can be used, PageError for a bad page with `strict`."""
    index = shard_index.open_index(shards.tars, shards.index, progress)
    problems = [error.problem for error in shards.packed] + index.problems(exif)
    if strict and problems:
        raise PageError(problems[0].message.rstrip("."), file=problems[0].file)
    if not index.about["usable"][exif]:
        got = f"{index.about['left_out'][exif]} bad pages, the first being {problems[0]}" if problems else "no pages"
        raise DataError(f"No page of split {split!r} in {path} can be used", got=got, need="one good page")
    return Index(Samples(index, exif), Counter(index.about["dropped"][exif]), shards.notes + problems, path, split)


def open_readers(shards: ShardFiles) -> tuple[Readers, list[PageError], list[Problem]]:
    """Return one function a page, the errors known already, and notes, as `reader.open_pages` does."""
    index = shard_index.open_index(shards.tars, shards.index)
    problems = index.problems(exif=False)
    errors = shards.packed + [PageError(p.message.rstrip("."), file=p.file) for p in problems if p.lost == 1]
    return Readers(index), errors, shards.notes + [problem for problem in problems if problem.lost > 1]


class Readers(Sequence[Reader]):
    """One function a page, made when it is asked for."""

    def __init__(self, index: ShardIndex) -> None:
        self.pages = index

    def __len__(self) -> int:
        return len(self.pages.rows)

    def __getitem__(self, place: Any) -> Any:
        if not 0 <= place < len(self):
            raise IndexError(f"page {place} of {len(self)}")
        return lambda: self.pages.page(place)[0]

    def tar(self, place: int) -> Path:
        """Return the tar that a page is in."""
        return self.pages.tars[int(self.pages.rows[place]["shard"])]


class Samples(Sequence[Sample]):
    """The usable pages of a split, each read and judged when it is asked for; raises PageError for one that is gone.

    It holds no pages: a worker gets the file's name (spawn) or the mapping (fork), and memory does not grow with use.
    """

    def __init__(self, index: ShardIndex, exif: bool, chosen: NDArray[np.intp] | None = None) -> None:
        self.pages, self.exif = index, exif
        if chosen is None and index.about["usable"][exif] < len(index.rows):
            chosen = np.flatnonzero(index.rows["usable"] & (shard_index.TURNED if exif else shard_index.UPRIGHT))
        self.chosen = chosen  # None: all

    def __len__(self) -> int:
        return len(self.pages.rows) if self.chosen is None else len(self.chosen)

    @overload
    def __getitem__(self, place: int) -> Sample: ...
    @overload
    def __getitem__(self, place: slice) -> list[Sample]: ...
    def __getitem__(self, place: int | slice) -> Sample | list[Sample]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        page, header = self.pages.page(self._row(place))
        return judge(page, header, self.exif, Counter())

    def name_at(self, place: int) -> str:
        """Return the name of a page, which the index knows."""
        return tar_scan.name_of(self.pages.key(self._row(place)))

    def take(self, places: Sequence[int]) -> Samples:
        """Return some of the pages, as lazy as these."""
        rows = np.arange(len(self)) if self.chosen is None else self.chosen
        return Samples(self.pages, self.exif, rows[np.asarray(places, np.intp)])

    def __reduce__(self) -> tuple[Any, ...]:
        index = self.pages
        return _reopen, (index.file, index.tars[0].parent, index.about["id"], self.exif, self.chosen)

    def _row(self, place: int) -> int:
        if not -len(self) <= place < len(self):
            raise IndexError(f"page {place} of {len(self)}")
        place %= len(self)
        return place if self.chosen is None else int(self.chosen[place])


def _reopen(file: Path, place: Path, stamp: str, exif: bool, chosen: NDArray[np.intp] | None) -> Samples:
    """Open an index in another process; raises DataError where it is another one by now."""
    try:
        index = shard_index.load(file, place)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"The index {file} cannot be read", got=str(error), do="Start again") from error
    if index.about["id"] != stamp:
        raise DataError(f"The index {file} was rebuilt meanwhile", do="Start again")
    return Samples(index, exif, chosen)


def _tars(place: Path) -> list[Path]:
    """Return the tars of a folder, sorted, none if it is one of images; raises DataError if all it has is packed."""
    if not place.is_dir() or folder_layouts.has_images(place):
        return []
    entries = sorted(entry for entry in place.iterdir() if entry.name[0] != ".")
    files = [entry for entry in entries if entry.is_file()]
    if any(entry.suffix.lower() in SUFFIXES for entry in files):
        return []
    tars = [entry for entry in files if entry.suffix.lower() == ".tar"]
    packed = [entry for entry in files if tar_scan.is_packed(entry)]
    if packed and not tars and len(files) == len(entries):  # beside folders it is what these were unpacked from
        tar_scan.refuse_packed(packed[0])
    return tars


def _split_of(tar: Path) -> str | None:
    match = NUMBERED.fullmatch(tar.name)
    return match["split"] or None if match else None
