"""Data folders: which layout a folder has, and where the pages of a split are.

    FOLDER/SPLIT/images/NAME.jpg + FOLDER/SPLIT/gts/gt_NAME.txt      ICDAR text, one file a page (NAME.txt also works)
    FOLDER/SPLIT.json, FOLDER/SPLIT/*.json, FOLDER/*/SPLIT.json      UFO; images lie beside it, in images/ or in img/
    the same with .jsonl                                             JSON lines

A folder that knows no splits (`FOLDER/images` + `FOLDER/gts`, or a lone JSON; also the path of a JSON itself) gives the
same pages to every split, and `Source.note` says so. Only the folder is looked at here, never what is inside a file.
"""

from __future__ import annotations

import difflib
import os
import unicodedata
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from ocrlab.data.images import SUFFIXES
from ocrlab.data.page import PageError
from ocrlab.errors import DataError

JSON_SUFFIXES = (".json", ".jsonl")
SPLIT_NAMES = frozenset({"train", "val", "valid", "validation", "dev", "test"})  # never a JSON for another split


@dataclass(frozen=True, slots=True)
class Source:
    """Where the pages of one split are."""

    annotations: Path  # a folder of text files, or one JSON
    images: tuple[Path, ...]  # folders, searched in this order
    note: str | None = None  # what a user should know about this choice


def find(path: Path, split: str) -> Source:
    """Recognise the layout of a data folder, or of one JSON; raises DataError that says what is there instead."""
    if path.is_file():
        if path.suffix.lower() not in JSON_SUFFIXES:
            raise DataError(f"{path} is not a data set", got="a file", need="a folder or a .json")
        return _beside(path, path.parent, split, unsplit=True)
    if not path.is_dir():
        raise DataError(f"Data folder {path} does not exist", need="a folder with pages", do=_near(path))
    if _has_text(path / split):
        return Source(path / split / "gts", (path / split / "images",))
    found = [path / f"{split}{suffix}" for suffix in JSON_SUFFIXES if (path / f"{split}{suffix}").is_file()]
    found = found or _jsons(path / split)
    found = found or [file for folder in _folders(path) for file in _jsons(folder) if file.stem == split]
    if found:
        return _beside(_only(found, split), path, split)
    return _unsplit(path, split)


def pair(source: Source) -> tuple[list[tuple[Path, Path]], list[PageError]]:
    """Match the images of a text layout with their annotation files, by name; what has no partner is an error."""
    folder = source.images[0]
    images = [file for file in _files(folder) if file.suffix.lower() in SUFFIXES]
    if not images:
        raise DataError(f"{folder} holds no images", need=f"files ending in {', '.join(sorted(SUFFIXES))}")
    texts = {_stem(file): file for file in _files(source.annotations) if file.suffix.lower() == ".txt"}
    claims: dict[Path, list[Path]] = defaultdict(list)
    errors: list[PageError] = []
    for image in images:
        text = texts.get(f"gt_{_stem(image)}") or texts.get(_stem(image))
        if text:
            claims[text].append(image)
        else:
            need = source.annotations / f"gt_{image.stem}.txt"
            do = "If the page has no text, make that file, empty"
            errors.append(PageError("has no annotation", file=image, need=need, do=do))
    for text in texts.values():
        if text not in claims:
            need = folder / f"{text.stem.removeprefix('gt_')}.jpg"
            errors.append(PageError("belongs to no image", file=text, need=f"{need} (or png, ...)"))
        elif len(claims[text]) > 1:
            names = ", ".join(image.name for image in claims[text])
            do = "Rename or remove the others"
            errors.append(PageError("belongs to several images", file=text, got=names, need="one", do=do))
    pairs = [(claimed[0], text) for text, claimed in claims.items() if len(claimed) == 1]
    return pairs, errors


def locate(name: object, source: Source, line: int | None) -> Path:
    """Return the file of an image that a JSON names at `line`; raises PageError if it is missing or outside."""
    error = partial(PageError, file=source.annotations, line=line)
    if not isinstance(name, str) or not name or "\0" in name:
        raise error("the name of an image is not usable", got=repr(name), need="a path relative to the JSON")
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts:
        raise error(f"image {name!r} leaves the data folder", need="a path relative to the JSON, without ..")
    for form in dict.fromkeys((name, unicodedata.normalize("NFC", name), unicodedata.normalize("NFD", name))):
        for folder in source.images:
            file = folder / form
            if os.path.isfile(file):
                real = file.resolve()
                if not any(real.is_relative_to(root.resolve()) for root in source.images):
                    raise error(f"image {name!r} is a link that leaves the data folder", need="the file itself")
                return file
    searched = ", ".join(map(str, source.images))
    raise error(f"image {name!r} does not exist", got=f"nothing by that name in {searched}", need="the image file")


def splits(path: Path) -> list[str]:
    """Return the names of the splits that a data folder seems to hold, sorted."""
    folders = [folder.name for folder in _folders(path) if _has_text(folder) or len(_jsons(folder)) == 1]
    return sorted({*folders, *(file.stem for file in _jsons(path) if file.stem in SPLIT_NAMES)})


def _unsplit(path: Path, split: str) -> Source:
    """Use a folder without splits for any split, or say what is there."""
    known = splits(path)
    if _has_text(path):
        return Source(path / "gts", (path / "images",), _shared(path, split))
    jsons = [file for file in _jsons(path) if file.stem not in SPLIT_NAMES]
    if jsons and not known:
        return _beside(_only(jsons, split), path, split, unsplit=True)
    half = path / split
    if (half / "images").is_dir() or (half / "gts").is_dir():
        there, lacking = ("images", "gts") if (half / "images").is_dir() else ("gts", "images")
        raise DataError(f"{half} has {there}/ but no {lacking}/", need=f"{half / lacking}, or a JSON beside the images")
    near = difflib.get_close_matches(split, known, 1)
    raise DataError(
        f"{path} has no split {split!r}",
        got=f"splits {', '.join(known)}" if known else f"a folder with {_listing(path)}",
        need=f"{split}/images + {split}/gts, or {split}.json beside its images",
        do=f"The nearest is {near[0]}" if near else ("Choose one of them" if known else None),
    )


def _beside(file: Path, path: Path, split: str, *, unsplit: bool = False) -> Source:
    """Return the source for a JSON: images lie beside it, in images/ or in img/, or one folder SPLIT further down."""
    folders = [
        base / sub / below
        for base in dict.fromkeys((file.parent, path))
        for sub in ("", "images", "img")
        for below in ("", split)
    ]
    roots = tuple(folder for folder in dict.fromkeys(folders) if folder.is_dir())
    return Source(file, roots, _shared(file, split) if unsplit else None)


def _shared(path: Path, split: str) -> str | None:
    if split == "train" or split in (path.stem, path.name):
        return None
    return (
        f"has no splits, so {split!r} gets the same pages as every other split: a score on them shows no generalisation"
    )


def _only(found: list[Path], split: str) -> Path:
    if len(found) > 1:
        raise DataError(
            f"Several files could be the annotation of split {split!r}",
            got=", ".join(map(str, found)),
            need="one",
            do=f"Name it {split}.json, or give its path as the data folder",
        )
    return found[0]


def _has_text(folder: Path) -> bool:
    return (folder / "images").is_dir() and (folder / "gts").is_dir()


def _folders(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _files(folder: Path) -> list[Path]:
    return sorted(Path(entry.path) for entry in os.scandir(folder) if entry.is_file() and entry.name[0] != ".")


def _jsons(folder: Path) -> list[Path]:
    return [file for file in _files(folder) if file.suffix.lower() in JSON_SUFFIXES] if folder.is_dir() else []


def _stem(file: Path) -> str:
    return unicodedata.normalize("NFC", file.stem)  # a zip packed on a Mac spells accents and Hangul as NFD


def _listing(path: Path) -> str:
    names = sorted(entry.name + "/" * entry.is_dir() for entry in path.iterdir())
    return (", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")) or "nothing"


def _near(path: Path) -> str:
    """Say which folder was probably meant, by the nearest parent that exists."""
    absolute = path.absolute()
    parent = next(folder for folder in absolute.parents if folder.is_dir())
    missing = absolute.relative_to(parent).parts[0]
    near = difflib.get_close_matches(missing, [folder.name for folder in _folders(parent)], 1)
    return f"The nearest is {parent / near[0]}" if near else f"{parent} has no {missing}"
