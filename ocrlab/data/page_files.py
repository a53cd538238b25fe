"""Which image belongs to which annotation: by the names of both files, or by the name that an annotation holds.

A name in an annotation is a path relative to it, or to images/ or img/ beside it, and never leads outside the data
folder. Where nothing has that name, Windows' backslashes, another case (IMG_1.JPG), another Unicode form (a Mac's zip)
and sub-folders are tried, in this order; a name that then fits several files is refused.
"""

from __future__ import annotations

import os
import unicodedata
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path, PurePosixPath, PureWindowsPath

from ocrlab.data.annotations import PageError
from ocrlab.data.folder_layouts import FOREIGN, PAGE_SUFFIXES, SUFFIXES, Source, files
from ocrlab.errors import DataError

Key = Callable[[str, str], str]  # from stem and suffix of an image to the stem of its annotation
PATTERNS: tuple[Key, ...] = (
    lambda stem, suffix: _prefixed("gt_", stem),  # ICDAR
    lambda stem, suffix: stem,
    lambda stem, suffix: _prefixed("poly_gt_", stem),  # Total-Text
    lambda stem, suffix: stem + suffix,  # NAME.jpg.txt
    lambda stem, suffix: _prefixed("000", stem),  # CTW1500, test
)


def pair(source: Source) -> tuple[list[tuple[Path, Path]], list[PageError], list[Path]]:
    """Match images with their annotations; return the pairs, what has no partner as errors, and the JSONs without.

    A sub-folder is part of the name, the case of letters is not where the names do not differ by it alone. A JSON
    without an image of its name can still name one itself. Raises DataError if there are no images.
    """
    folder, texts = source.images[0], source.annotations
    images = {_key(file, folder): file for file in files(folder) if file.suffix.lower() in SUFFIXES}
    if not images:
        raise DataError(f"{folder} holds no images", need=f"files ending in {', '.join(sorted(SUFFIXES))}")
    annotations = [file for file in files(texts) if file.suffix.lower() in PAGE_SUFFIXES]
    if not annotations:
        _refuse_foreign(texts)
    by_stem: dict[str, list[Path]] = defaultdict(list)
    for file in annotations:
        by_stem[_stem(file, texts)].append(file)
    claims = _claims(images, by_stem)
    errors = _unclaimed(images, claims, source)
    for stem, group in by_stem.items():
        claimed = claims.get(stem, [])
        if len(group) > 1 and claimed:
            got = ", ".join(file.name for file in group)
            errors.append(PageError("has several annotations", file=claimed[0], got=got, need="one"))
        elif len(claimed) > 1:
            names = ", ".join(image.name for image in claimed)
            do = "Rename or remove the others"
            errors.append(PageError("belongs to several images", file=group[0], got=names, need="one", do=do))
        elif not claimed:
            errors += [] if group[0].suffix.lower() == ".json" else [_without_image(group[0], stem, images, folder)]
    good = {stem: claimed[0] for stem, claimed in claims.items() if len(claimed) == 1 == len(by_stem[stem])}
    alone = [file for stem, group in by_stem.items() if stem not in claims for file in group]
    return (
        sorted((image, by_stem[stem][0]) for stem, image in good.items()),
        errors,
        [file for file in alone if file.suffix.lower() == ".json"],
    )


def _claims(images: dict[str, Path], by_stem: dict[str, list[Path]]) -> dict[str, list[Path]]:
    """Return which images claim which annotation; a pattern further down gets only what is left."""
    claims: dict[str, list[Path]] = {}
    left = dict(images)
    for fold in (str, str.casefold):
        folded = defaultdict(list)
        for stem in by_stem:
            folded[fold(stem)].append(stem)
        for pattern in PATTERNS:
            new: dict[str, list[Path]] = defaultdict(list)
            for key, image in list(left.items()):
                suffix = image.suffix
                wanted = folded.get(fold(pattern(key.removesuffix(suffix), suffix)), [])
                if len(wanted) == 1 and wanted[0] not in claims:
                    new[wanted[0]].append(left.pop(key))
            claims |= new
    return claims


def _unclaimed(images: dict[str, Path], claims: dict[str, list[Path]], source: Source) -> list[PageError]:
    used = {image for claimed in claims.values() for image in claimed}
    errors = []
    for image in images.values():
        if image not in used:
            need = source.annotations / f"gt_{image.stem}.txt"
            do = "If the page has no text, make that file, empty; else it was forgotten"
            errors.append(PageError("has no annotation", file=image, need=need, do=do))
    return errors


def _without_image(file: Path, stem: str, images: dict[str, Path], folder: Path) -> PageError:
    """Return what is wrong with an annotation that no image has claimed: there is none, or it has another one."""
    for key, image in images.items():
        if stem in {pattern(key.removesuffix(image.suffix), image.suffix) for pattern in PATTERNS}:
            got, do = f"another one of {image.name} too", "Remove the one that is wrong"
            return PageError("is an annotation too many", file=file, got=got, need="one for each image", do=do)
    need = folder / f"{Path(stem).name.removeprefix('gt_')}.jpg"
    return PageError("belongs to no image", file=file, need=f"{need} (or png, ...)")


def _refuse_foreign(folder: Path) -> None:
    for suffix, what in FOREIGN.items():
        if any(file.suffix.lower() == suffix for file in files(folder)):
            raise DataError(f"{folder} cannot be read", got=what, need=f"files ending in {', '.join(PAGE_SUFFIXES)}")


def _prefixed(prefix: str, stem: str) -> str:
    """Return the name with a prefix before its last part."""
    folder, slash, name = stem.rpartition("/")
    return f"{folder}{slash}{prefix}{name}"


def _stem(file: Path, folder: Path) -> str:
    return _key(file, folder).removesuffix(file.suffix)


def _key(file: Path, folder: Path) -> str:
    # A zip packed on a Mac spells accents and Hangul as NFD.
    return unicodedata.normalize("NFC", file.relative_to(folder).as_posix())


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
