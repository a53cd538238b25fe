"""The index of shards: where each page lies in its tar, in one file that is mapped and never loaded.

    a line of JSON (schema, shards with size and time, what was left out) | a row of 49 bytes a page | their keys

It is made by one walk over the tars, in which every page is judged once; it holds what lies in one tar at a time (half
a KB a page), and 8 bytes a page of all. Of processes that begin together, as ranks do, one makes it and the others
wait. It is written beside them, or, where nobody may write there, into the user's cache folder. When a tar is there
that it does not know, or one has another size or time, it is made anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ocrlab.data.annotation_cleaning import judge
from ocrlab.data.annotations import Boxes, Page, PageError, Problem
from ocrlab.data.field_parsing import parse
from ocrlab.data.folder_layouts import SUFFIXES
from ocrlab.data.formats.known_formats import single_page
from ocrlab.data.image_io import Header, read_header
from ocrlab.data.shards import tar_scan
from ocrlab.data.shards.tar_member import Member
from ocrlab.errors import DataError
from ocrlab.records import SCHEMA
from ocrlab.run_folder import heartbeat

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
NAMED, LONGEST = 1000, 500  # problems that are kept by name, and characters of each
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
        bit = TURNED if exif else UPRIGHT
        problems = [
            Problem(self.tars[0].parent / file, None, why) for file, why, bits in self.about["problems"] if bits & bit
        ]
        more = self.about["left_out"][exif] - len(problems)
        note = f"{more} more pages are left out" if more > 0 else ""
        return problems + ([Problem(self.file, None, note)] if note else [])


def read(image: Member, annotation: Member, name: str) -> Page:
    """Read one page; raises PageError."""
    try:
        text = annotation.read_bytes().decode("utf-8-sig")
        data = parse(text)
        if isinstance(data, dict) and "image" not in data:
            data["image"] = image.name  # the tar says which one it is
        boxes: Boxes = single_page(data)[1]
    except OSError as error:
        raise PageError("cannot be read", file=_path(annotation), got=error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise PageError("is not UTF-8", file=_path(annotation), got=str(error), need="UTF-8") from error
    except PageError as error:
        raise PageError(str(error).rstrip("."), file=_path(annotation), line=error.line) from None
    return Page(name, image, _path(annotation), None, boxes)


def open_index(files: Sequence[Path], name: str, progress: Progress | None = None) -> ShardIndex:
    """Return the index of these tars, made anew where there is none that fits; raises DataError.

    `progress(done, tars)` is called after each tar of a new one.
    """
    places = [files[0].parent / name, _cached(files[0].parent / name)]
    index = _fitting(places, files)
    if index is not None:
        return index
    with _alone(files[0].parent):
        return _fitting(places, files) or _build(places, files, progress)  # somebody may have made it meanwhile


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
            while not _locked(lock):
                heartbeat.beat(phase="load")
                time.sleep(0.2)
        yield


def _locked(lock: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _build(places: Sequence[Path], files: Sequence[Path], progress: Progress | None) -> ShardIndex:
    for number, place in enumerate(places):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            build(files, place, progress)
            break
        except OSError as error:
            if number == len(places) - 1:
                raise DataError(f"The index of {files[0].parent} cannot be written", got=str(error)) from error
    return load(place, files[0].parent)


def load(file: Path, folder: Path) -> ShardIndex:
    """Map an index; raises OSError, ValueError or KeyError where it is none of ours or is cut off."""
    with open(file, "rb") as opened:
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
class _Counts:
    """What is known of the pages so far."""

    pages: int = 0
    keys: int = 0
    hashes: array[int] = field(default_factory=lambda: array("Q"))
    usable: list[int] = field(default_factory=lambda: [0, 0])
    left_out: list[int] = field(default_factory=lambda: [0, 0])
    dropped: list[Counter[str]] = field(default_factory=lambda: [Counter(), Counter()])
    problems: list[tuple[str, str, int]] = field(default_factory=list)

    def leave_out(self, file: str, why: str, bits: int = UPRIGHT | TURNED) -> None:
        for number, bit in enumerate((UPRIGHT, TURNED)):
            self.left_out[number] += bool(bits & bit)
        if len(self.problems) < NAMED:
            self.problems.append((file[-LONGEST:], why[:LONGEST], bits))  # a hostile name may have megabytes


def build(files: Sequence[Path], out: Path, progress: Progress | None = None) -> None:
    """Walk over tars and write their index, whole or not at all; raises OSError, and DataError for what is no tar."""
    counts, shards = _Counts(), describe_shards(files)
    with tempfile.TemporaryFile(dir=out.parent) as rows, tempfile.TemporaryFile(dir=out.parent) as keys:
        for number, tar in enumerate(files):
            try:
                for pair in tar_scan.pairs(tar):
                    _add(pair, number, tar, counts, rows, keys)
                    heartbeat.beat(phase="load", sample=pair.key)
            except PageError as error:
                counts.leave_out(tar.name, error.problem.message)
            if progress:
                progress(number + 1, len(files))
        _refuse_twice(counts, rows, keys, files)
        about = {"schema": SCHEMA, "id": secrets.token_hex(8), "shards": shards, "pages": counts.pages}
        about |= {"keys": counts.keys, "usable": counts.usable, "left_out": counts.left_out}
        about |= {"dropped": counts.dropped, "problems": counts.problems}
        _write(out, json.dumps(about).encode() + b"\n", rows, keys)


def _add(pair: tar_scan.Pair, shard: int, tar: Path, counts: _Counts, rows: BinaryIO, keys: BinaryIO) -> None:
    """Judge one page and write its row."""
    key = pair.key.encode("utf-8", "surrogateescape")
    lacks = "annotation" if pair.annotation is None else "image" if pair.image is None else ""
    wrong = pair.wrong or ([f"has no {lacks}: {pair.key}.{'json' if lacks[0] == 'a' else 'jpg'}"] if lacks else [])
    if wrong or pair.image is None or pair.annotation is None or len(key) >= 2**16:
        counts.leave_out(f"{tar.name}/{_shown(pair.key)}", wrong[0] if wrong else "has too long a name")
        return
    try:
        page = read(pair.image, pair.annotation, tar_scan.name_of(pair.key))
        header = _header(pair.image)
    except PageError as error:
        counts.leave_out(f"{tar.name}/{_shown(pair.key)}", error.problem.message)
        return
    usable = 0
    for exif, bit in ((False, UPRIGHT), (True, TURNED)):
        dropped: Counter[str] = Counter()
        try:
            judge(page, header, exif, dropped)
        except PageError as error:
            counts.leave_out(f"{tar.name}/{_shown(pair.key)}", error.problem.message, bit)
            continue
        counts.dropped[exif] += dropped
        counts.usable[exif] += 1
        usable |= bit
    if not usable:
        return
    image, annotation = pair.image, pair.annotation
    sizes = (image.size, annotation.size, shard, header.width, header.height)
    small = (len(key), ENDINGS.index(image.suffix.lower()), header.orientation, usable)
    rows.write(np.array((image.at, annotation.at, counts.keys, *sizes, *small), ROW).tobytes())
    keys.write(key)
    counts.pages += 1
    counts.keys += len(key)
    counts.hashes.append(int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little"))


def _header(image: Member) -> Header:
    """Return what the first bytes of an image say, or all of them where those are not enough; raises PageError."""
    with contextlib.suppress(PageError):
        return read_header(image, first=HEAD)
    return read_header(image)


def _refuse_twice(counts: _Counts, rows: BinaryIO, keys: BinaryIO, files: Sequence[Path]) -> None:
    """Make every page unusable whose key an earlier one has: two pages of one name could not be told apart."""
    hashes = np.frombuffer(counts.hashes, np.uint64) if counts.pages else np.empty(0, np.uint64)
    order = np.argsort(hashes, kind="stable")
    again = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
    if not len(again):
        return
    rows.flush()
    table = np.memmap(rows, ROW, "r+", shape=(counts.pages,))  # type: ignore[call-overload]
    for place in order[again + 1]:
        row = table[place]
        keys.seek(int(row["key_at"]))
        key = keys.read(int(row["key_size"])).decode("utf-8", "surrogateescape")
        counts.leave_out(f"{files[int(row['shard'])].name}/{_shown(key)}", "is here twice; only the first one counts")
        for exif, bit in ((False, UPRIGHT), (True, TURNED)):
            counts.usable[exif] -= bool(row["usable"] & bit)
        row["usable"] = 0
    table.flush()


def _write(out: Path, line: bytes, rows: BinaryIO, keys: BinaryIO) -> None:
    number, name = tempfile.mkstemp(prefix=f".{out.name}.", dir=out.parent)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(line)
            for part in (rows, keys):
                part.seek(0)
                while block := part.read(2**20):
                    file.write(block)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, out)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _cached(place: Path) -> Path:
    """Return where the index of a folder lies that cannot be written."""
    digest = hashlib.sha256(os.path.realpath(place).encode()).hexdigest()[:24]
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ocrlab" / "shards" / f"{digest}.index"


def _path(member: Member) -> Path:
    return Path(str(member))


def _shown(key: str) -> str:
    return key.encode("utf-8", "replace").decode()
