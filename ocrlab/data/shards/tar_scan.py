"""What lies where in a tar: one walk over its headers, by the standard library, which knows GNU, PAX and old ones.

Nothing is ever extracted. The files of one page have one name up to the first dot of its last part (WebDataset):
`shop/0001.jpg` and `shop/0001.json` are the page `shop/0001`. They need not lie beside each other.
"""

from __future__ import annotations

import errno
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ocrlab import safe_read
from ocrlab.data.annotations import PageError
from ocrlab.data.folder_layouts import SUFFIXES
from ocrlab.data.shards.tar_member import Member
from ocrlab.errors import DataError

PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
PACKED_NAMES = (".tar.gz", ".tgz", ".tar.zst", ".tar.zstd", ".tar.bz2", ".tar.xz")
LARGEST = 2**31 - 1  # bytes of a page's file
BROKEN = "has a header that makes no sense; the pages from there on are left out"
END = 1024  # zero bytes, with which every tar ends


@dataclass(slots=True)
class Pair:
    """The files of one page, as far as they are there, and what is wrong with them."""

    key: str
    image: Member | None = None
    annotation: Member | None = None
    wrong: str = ""


def key_of(name: str) -> str:
    """Return the key under which a page of that name is stored: no dot in its last part."""
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.replace("%", "%25").replace(".", "%2E")


def name_of(key: str) -> str:
    """Return the name of the page that is stored under a key."""
    folder, slash, last = key.rpartition("/")
    return folder + slash + last.replace("%2E", ".").replace("%25", "%")


def pairs(tar: Path) -> Iterator[Pair]:
    """Yield the pages of a tar in the order of their first files, at the end of the walk; raises DataError.

    A tar that is cut off gives the pages before the cut, and then raises PageError.
    """
    by_name: dict[str, Pair] = {}
    cut: PageError | None = None
    try:
        for info in _headers(tar):
            _sort(by_name, info, tar)
    except PageError as error:
        cut = error
    yield from by_name.values()
    if cut:
        raise cut


def is_packed(file: Path) -> bool:
    """Return whether a file has the name of a compressed tar."""
    return file.name.lower().endswith(PACKED_NAMES) and file.name[0] != "."


def refuse_packed(file: Path) -> None:
    """Raise DataError for a compressed tar, of which no page can be read without all before it."""
    with safe_read.open_file(file) as opened:
        start = opened.read(8)
    kind = next((kind for magic, kind in PACKED.items() if start.startswith(magic)), None)
    if kind or is_packed(file):
        unpack = {"gzip": "gunzip", "zstd": "zstd -d", "bzip2": "bunzip2", "xz": "unxz"}.get(kind or "", "unpack")
        raise DataError(
            f"{file} is a compressed tar",
            got=kind or "a name that says so",
            need="a plain .tar: pages are read in random order, and compression does not shrink JPEG further",
            do=f"{unpack} {file.name}",
        )


def _headers(tar: Path) -> Iterator[tarfile.TarInfo]:
    """Yield the headers of a tar; raises PageError where they end too soon, DataError if it is none."""
    walked = None
    try:
        refuse_packed(tar)
        with tarfile.open(tar, "r:", errors="surrogateescape") as opened:
            walked = opened
            for info in opened:
                if opened.offset < info.offset_data:  # it would be read again and again
                    raise PageError(BROKEN, file=tar, got=f"a file of {info.size} bytes", do="Build it again")
                yield info
                opened.members.clear()  # type: ignore[attr-defined]  # it would keep all of them
            assert opened.fileobj is not None, "a file that was just read"
            opened.fileobj.seek(opened.offset)  # of the first block of zeros
            rest = opened.fileobj.read(END + 64 * tarfile.RECORDSIZE)
        if len(rest) < tarfile.BLOCKSIZE:
            got = "a tar that is cut off between two files"
            raise PageError("has no end mark", file=tar, got=got, do="Copy it again")
        if rest.strip(b"\0"):  # as of `cat a.tar b.tar`
            do = "Put its parts into files of their own, or use `tar --concatenate`"
            raise PageError("goes on after its end mark", file=tar, got="several tars in one file", do=do)
    except DataError:
        raise
    except (tarfile.TarError, EOFError) as error:
        if walked is None or not walked.offset:
            raise DataError(f"{tar} is not a tar", got=str(error) or "an empty file", need="a whole .tar") from None
        do = "Copy it again; its last pages are missing"
        raise PageError("is cut off", file=tar, got=str(error), do=do) from None
    except (ValueError, ArithmeticError, LookupError, RecursionError) as error:  # of what the headers say
        raise PageError(BROKEN, file=tar, got=f"{type(error).__name__}: {error}"[:200], do="Build it again") from None
    except OSError as error:
        if walked is not None and error.errno == errno.EINVAL:  # a place before its beginning
            raise PageError(BROKEN, file=tar, got="a file of fewer than 0 bytes", do="Build it again") from None
        raise DataError(f"{tar} cannot be read", got=error.strerror or str(error), need="a whole .tar") from error


def _sort(by_name: dict[str, Pair], info: tarfile.TarInfo, tar: Path) -> None:
    """Put one file to its page."""
    path = PurePosixPath(info.name)  # without the "./" of `tar cf x.tar .`
    stem, dot, end = path.name.partition(".")
    kind = f".{end.lower()}"
    if info.isdir() or not stem or not dot or (kind not in SUFFIXES and kind != ".json"):
        return  # folders, hidden files, and what other tools keep beside a page
    pair = by_name.setdefault(str(path.parent / stem), Pair(str(path.parent / stem)))
    place = "annotation" if kind == ".json" else "image"
    if pair.wrong:
        return
    if path.is_absolute() or ".." in path.parts:
        pair.wrong = f"{info.name!r} leads out of the folder"
    elif not info.isreg() or info.sparse is not None:
        pair.wrong = f"{info.name!r} is a link or has holes; pack the file itself: tar --hard-dereference -h"
    elif info.size > LARGEST:
        pair.wrong = f"{info.name!r} has {info.size:,} bytes, more than any page"
    elif getattr(pair, place) is not None:
        pair.wrong = f"it has two files of a kind: {getattr(pair, place).inside!r} and {info.name!r}"
    else:
        setattr(pair, place, Member(tar, info.offset_data, info.size, str(path)))
