"""The index of shards: where each page lies in its tar, in one file that is mapped and never loaded.

    a line of JSON (schema, shards with size and time, what was left out) | a row of 49 bytes a page | their keys

It is made by one walk over the tars, in which every page is judged once; meanwhile it takes some 150 bytes a page. Of
processes that begin together, as ranks do, one makes it and the others wait. It is written beside the tars, or, where
nobody may write there, into the user's cache folder. When a tar is there that it does not know, or one has another
size or time, it is made anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocrlab import safe_read
from ocrlab.data.annotation_cleaning import judge
from ocrlab.data.annotations import Page, PageError, Problem, page_errors
from ocrlab.data.field_parsing import parse
from ocrlab.data.folder_layouts import SUFFIXES
from ocrlab.data.formats.recognition import single_page
from ocrlab.data.image_io import Header, read_header
from ocrlab.data.shards import tar_scan
from ocrlab.data.shards.tar_member import Member
from ocrlab.errors import DataError
from ocrlab.records import SCHEMA
from ocrlab.run_folder import heartbeat
from ocrlab.run_folder.atomic_files import write_bytes

ROW = np.dtype(
    [
        *((name, "<u8") for name in ("image_at", "annotation_at", "key_at")),
        *((name, "<u4") for name in ("image_size", "annotation_size", "shard", "width", "height")),
        *(("key_size", "<u2"), ("suffix", "u1"), ("orientation", "u1"), ("usable", "u1")),
    ]
)
ENDINGS = tuple(sorted(SUFFIXES))
UPRIGHT, TURNED = 1, 2  # usable with exif=false, with exif=true
HEAD = 65536  # bytes in which nearly every image says its size
NAMED, LONGEST = 1000, 500  # problems that are stored by name, and characters of each
Progress = Callable[[int, int], None]


@dataclass
class ShardIndex:
    """An open index: `rows` (N,) of ROW and `keys` (bytes,) are mapped from `file`; `about` is its first line."""

    file: Path
    tars: list[Path]
    about: dict[str, Any]
    rows: NDArray[Any]
    keys: NDArray[np.uint8]

    def key(self, page: int) -> str:
        """Return the key of a page: its name in the tar, without the suffix."""
        row = self.rows[page]
        start = int(row["key_at"])
        return bytes(self.keys[start : start + int(row["key_size"])]).decode("utf-8", "surrogateescape")

    def page(self, page: int) -> tuple[Page, Header]:
        """Read the annotation of a page; raises PageError where it is not there any more."""
        row, key = self.rows[page], self.key(page)
        tar, suffix = self.tars[int(row["shard"])], ENDINGS[row["suffix"]]
        image = Member(tar, int(row["image_at"]), int(row["image_size"]), key + suffix)
        annotation = Member(tar, int(row["annotation_at"]), int(row["annotation_size"]), f"{key}.json")
        header = Header(int(row["width"]), int(row["height"]), int(row["orientation"]), "", True)
        return read(image, annotation, tar_scan.name_of(key)), header

    def problems(self, exif: bool) -> list[Problem]:
        """Return what was left out, by name as far as it is known."""
        bit, folder = TURNED if exif else UPRIGHT, self.tars[0].parent
        problems = [Problem(folder / file, None, why) for file, why, bits in self.about["problems"] if bits & bit]
        more = self.about["left_out"][exif] - len(problems)
        return problems + ([Problem(self.file, None, f"{more} more pages are left out", more)] if more > 0 else [])


def read(image: Member, annotation: Member, name: str) -> Page:
    """Read one page; raises PageError."""
    file = Path(str(annotation))
    with page_errors(file):
        data = parse(annotation.read_bytes().decode("utf-8-sig"))
        if isinstance(data, dict) and "image" not in data:
            data["image"] = image.name  # the tar says which one it is
        return Page(name, image, file, None, single_page(data)[1])


def open_index(files: Sequence[Path], name: str, progress: Progress | None = None) -> ShardIndex:
    """Return the index of these tars, made anew where there is none that fits; raises DataError.

    `progress(done, tars)` is called after each tar of a new one.
    """
    folder = files[0].parent
    digest = hashlib.sha256(os.path.realpath(folder / name).encode()).hexdigest()[:24]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    places = [folder / name, cache / "ocrlab" / "shards" / f"{digest}.index"]
    index = _fitting(places, files)
    if index is not None:
        return index
    with _alone(folder):
        index = _fitting(places, files)  # another process may have made it meanwhile
        for place in places if index is None else ():
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                build(files, place, progress)
                return load(place, folder)
            except OSError as error:
                if place == places[-1]:
                    raise DataError(f"The index of {folder} cannot be written", got=str(error)) from error
    assert index is not None, "the last place raises"
    return index


def _fitting(places: Sequence[Path], files: Sequence[Path]) -> ShardIndex | None:
    for place in places:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            index = load(place, files[0].parent)
            if index.about["shards"] == describe_shards(files):
                return index
    return None


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time make an index in a folder; without effect where the file system has no locks."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, lock)
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    heartbeat.beat(phase="load")
                    time.sleep(0.2)
        yield


def load(file: Path, folder: Path) -> ShardIndex:
    """Map an index; raises OSError, ValueError or KeyError where it is of another program or is cut off."""
    with safe_read.open_file(file) as opened:
        line = opened.readline(64 * 2**20)
    about = json.loads(line)
    if about["schema"] != SCHEMA or file.stat().st_size != len(line) + about["pages"] * ROW.itemsize + about["keys"]:
        raise ValueError(f"{file} is not an index of this ocrlab")
    files = [folder / name for name, _, _ in about["shards"]]
    if not about["pages"]:
        return ShardIndex(file, files, about, np.empty(0, ROW), np.empty(0, np.uint8))
    rows = np.memmap(file, ROW, "r", len(line), (about["pages"],))
    keys = np.memmap(file, np.uint8, "r", len(line) + rows.nbytes, (about["keys"],))
    return ShardIndex(file, files, about, rows, keys)


def describe_shards(files: Sequence[Path]) -> list[list[Any]]:
    """Return name, size and time of tars: when one differs, the index is not of them."""
    return [[file.name, (stat := file.stat()).st_size, stat.st_mtime_ns] for file in files]


@dataclass
class _Builder:
    """The pages so far: their rows and their keys, in order, and what was left out."""

    rows: bytearray = field(default_factory=bytearray)
    keys: dict[bytes, None] = field(default_factory=dict)
    keys_size: int = 0
    usable: list[int] = field(default_factory=lambda: [0, 0])
    left_out: list[int] = field(default_factory=lambda: [0, 0])
    dropped: list[Counter[str]] = field(default_factory=lambda: [Counter(), Counter()])
    problems: list[tuple[str, str, int]] = field(default_factory=list)

    def leave_out(self, file: str, why: str, bits: int = UPRIGHT | TURNED) -> None:
        for number, bit in enumerate((UPRIGHT, TURNED)):
            self.left_out[number] += bool(bits & bit)
        if len(self.problems) < NAMED:
            self.problems.append((file[-LONGEST:], why[:LONGEST], bits))  # a hostile name may have megabytes

    def add(self, pair: tar_scan.Pair, shard: int, tar: Path) -> None:
        """Judge one page and write its row."""
        key, image, annotation = pair.key.encode("utf-8", "surrogateescape"), pair.image, pair.annotation
        place = f"{tar.name}/{pair.key.encode('utf-8', 'replace').decode()}"
        wrong = pair.wrong
        if not wrong and key in self.keys:  # two pages of one name cannot be distinguished
            wrong = "occurs twice; only the first entry counts"
        elif not wrong and len(key) >= 2**16:
            wrong = "has too long a name"
        if not wrong and annotation is None:
            wrong = f"has no annotation: {pair.key}.json"
        if wrong or image is None or annotation is None:
            self.leave_out(place, wrong or f"has no image: {pair.key}.jpg")
            return
        try:
            page = read(image, annotation, tar_scan.name_of(pair.key))
            with page_errors(image):
                header = _header(image)
        except PageError as error:
            self.leave_out(place, error.problem.message)
            return
        usable = 0
        for exif, bit in ((False, UPRIGHT), (True, TURNED)):
            dropped: Counter[str] = Counter()
            try:
                with page_errors(image):
                    judge(page, header, exif, dropped)
            except PageError as error:
                self.leave_out(place, error.problem.message, bit)
                continue
            self.dropped[exif] += dropped
            self.usable[exif] += 1
            usable |= bit
        if usable:
            sizes = (image.size, annotation.size, shard, header.width, header.height)
            small = (len(key), ENDINGS.index(image.suffix.lower()), header.orientation, usable)
            self.rows += np.array((image.at, annotation.at, self.keys_size, *sizes, *small), ROW).tobytes()
            self.keys[key] = None
            self.keys_size += len(key)


def _header(image: Member) -> Header:
    """Return what the first bytes of an image say, or all of them where those are not enough; raises PageError."""
    with contextlib.suppress(PageError):
        return read_header(image, first=HEAD)
    return read_header(image)


def build(files: Sequence[Path], out: Path, progress: Progress | None = None) -> None:
    """Walk over tars and write their index, whole or not at all; raises OSError, DataError where none is a tar."""
    pages, shards = _Builder(), describe_shards(files)
    for number, tar in enumerate(files):
        try:
            for pair in tar_scan.pairs(tar):
                pages.add(pair, number, tar)
                heartbeat.beat(phase="load", sample=pair.key)
        except PageError as error:
            pages.leave_out(tar.name, error.problem.message)
        except DataError as error:
            if len(files) == 1:
                raise
            pages.leave_out(tar.name, str(error))
        if progress:
            progress(number + 1, len(files))
    about = {"schema": SCHEMA, "id": secrets.token_hex(8), "shards": shards, "pages": len(pages.keys)}
    about |= {"keys": pages.keys_size, "usable": pages.usable, "left_out": pages.left_out}
    about |= {"dropped": pages.dropped, "problems": pages.problems}
    write_bytes(out, b"".join([json.dumps(about).encode(), b"\n", pages.rows, *pages.keys]))
