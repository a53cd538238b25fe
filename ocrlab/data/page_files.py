"""Which image belongs to which annotation: by the names of both files, or by the name that an annotation holds.

A name in an annotation is a path relative to it, or to images/ or img/ beside it, and never leads outside the data
folder. Where nothing has that name, Windows' backslashes, another case (IMG_1.JPG), another Unicode form (a Mac's zip)
and sub-folders are tried, in this order; a name that then fits several files is refused.
"""

from __future__ import annotations

import os
import unicodedata
from collections import defaultdict
from pathlib import Path, PurePosixPath, PureWindowsPath

from ocrlab.data.annotations import PageError
from ocrlab.data.folder_layouts import LEAVES, PAGE_SUFFIXES, SUFFIXES, Source, files, folded, foreign
from ocrlab.errors import DataError

# The stem of an annotation by its image: ICDAR; the same; Total-Text; NAME.jpg.txt; the test part of CTW1500.
PATTERNS = ("gt_{0}", "{0}", "poly_gt_{0}", "{0}{1}", "000{0}")


def pair(source: Source) -> tuple[list[tuple[Path, Path]], list[PageError], list[Path]]:
    """Match images with their annotations; return the pairs, what has no partner as errors, and the JSONs without.

    A sub-folder is part of the name, the case of letters is not where the names do not differ by it alone. A JSON
    without an image of its name can still name one itself. Raises DataError if there are no images.
    """
    folder, texts = source.images[0], source.annotations
    images = {_key(file, folder): file for file in files(folder) if file.suffix.lower() in SUFFIXES}
    if not images:
        raise DataError(f"{folder} contains no images", need=f"files ending in {', '.join(sorted(SUFFIXES))}")
    by_stem: dict[str, list[Path]] = defaultdict(list)
    for file in files(texts):
        if file.suffix.lower() in PAGE_SUFFIXES:
            by_stem[_key(file, texts).removesuffix(file.suffix)].append(file)
    if not by_stem and (what := foreign(texts)):
        raise DataError(f"{texts} cannot be read", got=what, need=f"files ending in {', '.join(PAGE_SUFFIXES)}")
    stems = {image: _annotation_stems(key) for key, image in images.items()}
    claims = _claims(stems, list(by_stem))
    claimed_images = {image for claimed in claims.values() for image in claimed}
    errors = []
    for image in images.values():
        if image not in claimed_images:
            need = texts / f"gt_{image.stem}.txt"
            do = "If the page has no text, make that file, empty; else it was forgotten"
            errors.append(PageError("has no annotation", file=image, need=need, do=do))
    pairs, alone = [], []
    for stem, group in by_stem.items():
        claimed = claims.get(stem, [])
        if not claimed:
            alone += [file for file in group if file.suffix.lower() == ".json"]
            if group[0].suffix.lower() != ".json":
                errors.append(_without_image(group[0], stem, stems, folder))
        elif len(group) > 1:
            got = ", ".join(file.name for file in group)
            errors.append(PageError("has several annotations", file=claimed[0], got=got, need="one"))
        elif len(claimed) > 1:
            got, do = ", ".join(image.name for image in claimed), "Rename or remove the others"
            errors.append(PageError("belongs to several images", file=group[0], got=got, need="one", do=do))
        else:
            links = [file for file in (claimed[0], group[0]) if file.is_symlink() and source.is_left_by(file)]
            errors += [PageError(LEAVES, file=link, need="the file itself", do=LINKED) for link in links]
            pairs += [] if links else [(claimed[0], group[0])]
    return sorted(pairs), errors, alone


def _key(file: Path, folder: Path) -> str:
    # A zip packed on a Mac spells accents and Hangul as NFD.
    return unicodedata.normalize("NFC", file.relative_to(folder).as_posix())


def _annotation_stems(key: str) -> list[str]:
    """Return the stems that the annotation of an image may have, by PATTERNS."""
    path = PurePosixPath(key)
    return [path.with_name(pattern.format(path.stem, path.suffix)).as_posix() for pattern in PATTERNS]


def _claims(stems: dict[Path, list[str]], annotations: list[str]) -> dict[str, list[Path]]:
    """Return which images claim which annotation; a pattern further down gets only what is left."""
    claims: dict[str, list[Path]] = {}
    left = dict(stems)
    for fold in (str, str.casefold):
        by_fold = defaultdict(list)
        for stem in annotations:
            by_fold[fold(stem)].append(stem)
        for pattern in range(len(PATTERNS)):
            new: dict[str, list[Path]] = defaultdict(list)
            for image, names in list(left.items()):
                wanted = by_fold.get(fold(names[pattern]), [])
                if len(wanted) == 1 and wanted[0] not in claims:
                    new[wanted[0]].append(image)
                    del left[image]
            claims |= new
    return claims


def _without_image(file: Path, stem: str, stems: dict[Path, list[str]], folder: Path) -> PageError:
    """Return what is wrong with an annotation that no image has claimed: there is none, or it has another one."""
    image = next((image for image, names in stems.items() if stem in names), None)
    if image is not None:
        got, do = f"another one of {image.name} too", "Remove the one that is wrong"
        return PageError("is a surplus annotation", file=file, got=got, need="one for each image", do=do)
    need = folder / f"{Path(stem).name.removeprefix('gt_')}.jpg"
    return PageError("belongs to no image", file=file, need=f"{need} (or png, ...)")


LINKED = "Copy the file there, or link the whole folder"
NEED = "a path relative to the annotation, inside the data folder"


def locate(name: object, source: Source, line: int | None = None, beside: Path | None = None) -> Path:
    """Return the file of the image called `name`; raises PageError if it is missing, not unique, or outside.

    `beside` is the folder of the annotation where each page has its own: there a name may lead up and down again.
    """

    def error(what: str, need: str = NEED, got: str | None = None, do: str | None = None) -> PageError:
        return PageError(what, file=source.annotations, line=line, got=got, need=need, do=do)

    if not isinstance(name, str) or not name.strip() or "\0" in name:
        raise error("the name of an image is not usable", got=repr(name))
    literal = "\\" not in name or any(os.path.isfile(folder / name) for folder in source.images)
    plain = relative = name if literal else name.replace("\\", "/")
    if beside is not None:
        root, target = (os.path.normpath(path.absolute()) for path in (source.root, beside / plain))
        if os.path.commonpath((root, target)) == root:
            relative = os.path.relpath(os.path.normpath(beside / plain), source.root)
    path = PurePosixPath(relative)
    if path.is_absolute() or ".." in path.parts or PureWindowsPath(name).drive:
        raise error(f"image {name!r} leaves the data folder", do="Correct the path: no '..' in it")
    matches = _matches(relative, source)
    if not matches and ".." not in PurePosixPath(plain).parts:  # of LabelMe a bare name often lies in images/
        matches = _matches(plain, source)
    if not matches:
        got = f"nothing by that name in {', '.join(map(str, source.images))}"
        raise error(f"image {name!r} does not exist", "the image file", got)
    if len(matches) > 1:
        got = ", ".join(map(str, matches[:3]))
        raise error(f"image {name!r} could be one of several files", "its sub-folder too", got)
    if source.is_left_by(matches[0]):
        raise error(f"image {name!r} {LEAVES}", "the file itself")
    return matches[0]


def _matches(name: str, source: Source) -> list[Path]:
    """Return the files that a name can mean: one where it is exact, else all that fit nearly as well."""
    for form in dict.fromkeys((name, unicodedata.normalize("NFC", name), unicodedata.normalize("NFD", name))):
        for folder in source.images:
            if os.path.isfile(folder / form):
                return [folder / form]
    wanted = folded(str(PurePosixPath(name)))
    return source.files_by_name.get(wanted) or source.files_by_name.get(f"*/{wanted}") or []
