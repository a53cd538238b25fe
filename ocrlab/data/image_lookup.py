"""The file of an image that an annotation names: found as it is written, or nearly so, and never outside the folder.

A name is a path relative to the annotation, or to images/ or img/ beside it. Where nothing has that name, Windows'
backslashes, another case (IMG_1.JPG), another Unicode form (a Mac's zip) and sub-folders are tried, in this order; a
name that then fits several files is refused.
"""

from __future__ import annotations

import os
import unicodedata
from collections import defaultdict
from pathlib import Path, PurePosixPath, PureWindowsPath

from ocrlab.data.annotations import PageError
from ocrlab.data.folder_layouts import Source

NEED = "a path relative to the annotation, inside the data folder"


def locate(name: object, source: Source, line: int | None = None, beside: Path | None = None) -> Path:
    """Return the file of the image called `name`; raises PageError if it is missing, not unique, or outside.

    `beside` is the folder of the annotation where each page has its own: there a name may lead up and down again.
    """
    if not isinstance(name, str) or not name.strip() or "\0" in name:
        raise _error("the name of an image is not usable", source, line, got=repr(name))
    relative = name if "\\" not in name or _is_file(source, name) else name.replace("\\", "/")
    plain = relative
    if beside is not None and _inside(source, beside / relative):
        relative = os.path.relpath(os.path.normpath(beside / relative), source.root)
    path = PurePosixPath(relative)
    if path.is_absolute() or ".." in path.parts or PureWindowsPath(name).drive:
        raise _error(f"image {name!r} leaves the data folder", source, line, do="Correct the path: no '..' in it")
    file = _find(relative, source)
    if file is None and ".." not in PurePosixPath(plain).parts:  # of LabelMe a bare name often lies in images/
        file = _find(plain, source)
    if file is None:
        searched = ", ".join(map(str, source.images))
        got = f"nothing by that name in {searched}"
        raise _error(f"image {name!r} does not exist", source, line, got=got, need="the image file")
    if len(file) > 1:
        got = ", ".join(map(str, file[:3]))
        raise _error(f"image {name!r} could be one of several files", source, line, got=got, need="its sub-folder too")
    real = os.path.realpath(file[0])
    if not any(os.path.commonpath((real, root)) == root for root in _roots(source)):
        raise _error(f"image {name!r} is a link that leaves the data folder", source, line, need="the file itself")
    return file[0]


def _find(name: str, source: Source) -> list[Path] | None:
    """Return the files that a name can mean: one where it is exact, else all that fit nearly as well."""
    for form in dict.fromkeys((name, unicodedata.normalize("NFC", name), unicodedata.normalize("NFD", name))):
        for folder in source.images:
            if os.path.isfile(folder / form):
                return [folder / form]
    if not source.listing:
        source.listing.update(_listing(source))
    wanted = _fold(str(PurePosixPath(name)))
    return source.listing.get(wanted) or source.listing.get(f"*/{wanted}")


def _listing(source: Source) -> dict[str, list[Path]]:
    """Return all files of the data folder by their folded path below an image folder, and by `*/` their last parts."""
    paths_by_name: dict[str, list[Path]] = defaultdict(list)
    visited: set[str] = set()
    for root in source.images:
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(name for name in folders if name[0] != ".")
            for name in sorted(names):
                file = Path(folder, name)
                paths_by_name[_fold(str(file.relative_to(root)))].append(file)
                real = os.path.realpath(file)
                if real not in visited:
                    visited.add(real)
                    parts = _fold(str(file)).split("/")
                    for depth in range(1, min(4, len(parts))):
                        paths_by_name["*/" + "/".join(parts[-depth:])].append(file)
    return dict(paths_by_name)


def _fold(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _is_file(source: Source, name: str) -> bool:
    return any(os.path.isfile(folder / name) for folder in source.images)


def _inside(source: Source, path: Path) -> bool:
    root = os.path.normpath(source.root.absolute())
    return os.path.commonpath((os.path.normpath(path.absolute()), root)) == root


def _roots(source: Source) -> list[str]:
    """Return the real places of the image folders: a folder that is a link is the user's own choice."""
    if not source.real:
        source.real.extend(os.path.realpath(folder) for folder in (*source.images, source.root))
    return source.real


def _error(
    what: str, source: Source, line: int | None, *, got: object = None, need: str = NEED, do: str | None = None
) -> PageError:
    return PageError(what, file=source.annotations, line=line, got=got, need=need, do=do)
