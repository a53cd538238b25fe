"""Images and their annotations, one file each, matched by name."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

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
