"""Pages as annotated, before anything is judged; and what can be wrong with them, as an error and as a record."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ocrlab import safe_read
from ocrlab.data.shards.tar_member import Member
from ocrlab.errors import DataError, OcrlabError, escape_name
from ocrlab.geometry import Polygon

IGNORED = "###"  # the transcription that means "do not count" (ICDAR 2015)
TOO_LARGE = "is too large for the memory that is left"
MOST_BOXES, MOST_POINTS = 20_000, 10_000  # of a page, of a box; a page with more is left out
MOST_BYTES = 500_000_000  # of one annotation file
LIMIT = 1e6  # pixels; a coordinate beyond it is a mistake

BoxReader = Callable[[Any], tuple[Polygon | None, str, bool]]  # polygon, transcription and ignore flag of one item


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with the data: in which file, at which line (from 1) if that is known, and what to do.

    `lost` is how many pages it costs: none where it is a note.
    """

    file: Path | None
    line: int | None
    message: str
    lost: int = 1

    def __str__(self) -> str:
        return _place(self.file, self.line) + self.message


class PageError(DataError):
    """A DataError that knows its file and line, so that a lenient load can record it as a Problem and go on.

    One positional argument, as Exception has it: a DataLoader worker's error is pickled, or made anew from its text.
    """

    def __init__(
        self,
        what: str,
        *,
        file: Path | Member | None = None,
        line: int | None = None,
        got: object = None,
        need: object = None,
        do: str | None = None,
    ) -> None:
        super().__init__(_place(file, line) + what, got=got, need=need, do=do)
        self.file, self.line = Path(str(file)) if isinstance(file, Member) else file, line

    @property
    def problem(self) -> Problem:
        """The same without the raise."""
        return Problem(self.file, self.line, str(self).removeprefix(_place(self.file, self.line)))

    def within(self, what: str = "", file: Path | Member | None = None, line: int | None = None) -> PageError:
        """Return this error with `what`, the part of the file that it is about, in front, and with its place."""
        return PageError(what + self.problem.message.rstrip("."), file=file or self.file, line=line or self.line)


@contextlib.contextmanager
def page_errors(file: Path | Member | None, line: int | None = None) -> Iterator[None]:
    """Raise PageError for whatever is raised while one page is read or judged, so that it costs no other page.

    A parser of a stranger's file raises what nobody foresaw; an error of ocrlab keeps its words, and its place if it
    has one.
    """
    try:
        yield
    except PageError as error:
        if error.file is not None or file is None:
            raise
        raise error.within(file=file, line=line) from None
    except OcrlabError as error:
        raise PageError(error.what, file=file, line=line, got=error.got, need=error.need, do=error.do) from error
    except MemoryError as error:
        raise PageError(TOO_LARGE, file=file, line=line) from error
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) else None
        got = reason or f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        what = "is not UTF-8" if isinstance(error, UnicodeError) else "cannot be read"
        raise PageError(what, file=file, line=line, got=got) from error


def _place(file: Path | Member | None, line: int | None) -> str:
    """Return `file:line: `, the form that terminals and editors turn into a link."""
    place = f"{file}:{line}: " if line else f"{file}: "
    return "" if file is None else escape_name(place)


@dataclass(slots=True)
class Boxes:
    """N boxes: polygons (P, 2) float32 of xy in pixels or None, transcriptions, and which do not count."""

    polygons: list[Polygon | None] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    ignored: list[bool] = field(default_factory=list)
    size: tuple[int, int] | None = None  # width and height of the image that was annotated, where the file says

    def add(self, polygon: Polygon | None, text: str = "", ignored: bool = False) -> None:
        """Append one box; the transcription `###` makes it ignored. Raises PageError for more than a page may have."""
        if polygon is not None and len(polygon) > MOST_POINTS:
            raise PageError("a box has too many points", got=f"{len(polygon):,}", need=f"at most {MOST_POINTS:,}")
        if len(self.polygons) >= MOST_BOXES:
            raise PageError("too many boxes", need=f"at most {MOST_BOXES:,} on a page")
        self.polygons.append(polygon)
        self.texts.append(text)
        self.ignored.append(ignored or text.strip() == IGNORED)

    def read(
        self,
        label: str,
        items: Iterable[tuple[Any, Any]],
        read: BoxReader,
        line: Callable[[Any], int | None] = lambda key: None,
    ) -> Boxes:
        """Append `read(item)` for all pairs of key and item; a PageError gets `label`, formatted with the key."""
        for key, item in items:
            try:
                self.add(*read(item))
            except PageError as error:
                raise error.within(f"{label.format(key)}: ", line=line(key)) from None
        return self


@dataclass(slots=True)
class Page:
    """Where a page and its annotation are, and what the annotation says; `line` is known where a page is one line."""

    name: str
    image: Path | Member
    annotation: Path
    line: int | None
    boxes: Boxes


class Entry(NamedTuple):
    """One page of a file that annotates many: the name of its image, a function that reads its boxes, its split."""

    image: Any  # as the file has it: not yet known to be a usable name
    read: Callable[[], Boxes]
    split: str | None = None  # where the file itself says so


def read_text(path: Path, *, lines: bool = False) -> str:
    """Read UTF-8 text without byte-order mark and with plain line ends; raises PageError with the bad byte's line.

    In JSON `lines` a bad byte becomes half a surrogate pair, and costs its line only.
    """
    try:
        data = safe_read.read(path, MOST_BYTES)
    except OSError as error:
        got = error.strerror or str(error)
        raise PageError("cannot be read", file=path, got=got, need="a readable file") from error
    if lines and data.lstrip()[:1] == b"{":
        return _plain(data.decode("utf-8-sig", "surrogateescape"))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PageError("is not UTF-8", file=path, line=line, need="UTF-8", **_encoding(data, error.start)) from error
    return _plain(text)


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _encoding(data: bytes, at: int) -> dict[str, str]:
    """Say which byte is not UTF-8, what the text around it would be in other encodings, and how to convert it.

    Nothing is guessed silently: the same bytes are Chinese, Korean and accented Latin, and each of them is text.
    """
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return {"got": f"byte 0x{data[at]:02x}, UTF-16", "do": "Convert it: iconv -f UTF-16 -t UTF-8"}
    line = data[data.rfind(b"\n", 0, at) + 1 :].split(b"\n", 1)[0].rstrip(b"\r")
    meant = {}
    for name in ("GB18030", "CP949", "LATIN1"):
        with contextlib.suppress(UnicodeDecodeError):
            data.decode(name)
            meant[name] = line.decode(name).rsplit(",", 1)[-1][:30]
    guesses = ", ".join(f"{text!r} in {name}" for name, text in meant.items())
    do = f"Convert it: iconv -f {next(iter(meant))} -t UTF-8, or whichever encoding it is"
    return {"got": f"byte 0x{data[at]:02x}, {guesses}", "do": do}
