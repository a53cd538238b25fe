"""Data folders: where the pages of a split are. Only names count here; recognition.py knows what a file holds.

    FOLDER/SPLIT/images/NAME.jpg + FOLDER/SPLIT/gts/gt_NAME.txt      one annotation a page: .txt, .json or .xml
    FOLDER/images/SPLIT/NAME.jpg + FOLDER/gts/SPLIT/gt_NAME.txt      the same the other way round, as Total-Text has it
    FOLDER/SPLIT/NAME.jpg + FOLDER/SPLIT/NAME.json                   the same in one folder, as LabelMe has it
    FOLDER/SPLIT.json, FOLDER/SPLIT/*.json, FOLDER/*/SPLIT.json      one file for all pages, also .jsonl; images lie
    FOLDER/SPLIT/gts/*.json                                          beside it, in images/ or in img/
Folders of images and of annotations have many names (IMAGES, TEXTS), in any case. A folder that knows no splits, and
the path of a JSON itself, give the same pages to every split, and `Source.note` says so.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ocrlab import safe_read
from ocrlab.errors import DataError

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp"})  # of images
JSON_SUFFIXES = (".json", ".jsonl")
PAGE_SUFFIXES = (".txt", ".json", ".xml")
SPLIT_NAMES = frozenset({"train", "val", "valid", "validation", "dev", "test"})  # never a JSON for another split
IMAGES = ("images", "image", "img", "imgs", "text_image", "textdet_imgs")
LEAVES = "is a link that leaves the data folder"
TEXTS = (
    *("gts", "gt", "labels", "label", "annotations", "annotation", "ann", "json", "jsons", "xml"),
    *("groundtruth", "txt_format", "text_label_curve", "labelme"),
)
TABLE = (
    "a table, whose columns have no known meaning; write one gts/NAME.txt a page from it, a line "
    "x1,y1,x2,y2,x3,y3,x4,y4,text a box, or a JSON that is read"
)
FOREIGN = {
    ".mat": "MATLAB files; Total-Text has the same as text: take its txt_format, or write it with scipy.io.loadmat",
    ".parquet": "Parquet files, which need pyarrow; save images and a metadata.jsonl from them: "
    "load_dataset(...), then image.save(name) and one line {file_name, ground_truth} a page",
    ".csv": TABLE,
    ".tsv": TABLE,
}


@dataclass
class Source:
    """Where the pages of one split are."""

    annotations: Path  # a folder of one file a page, or one file for all
    images: tuple[Path, ...]  # folders, searched in this order
    note: str | None = None  # what a user should know about this choice
    root: Path = Path()  # nothing that an annotation names may lie outside

    @cached_property
    def real_roots(self) -> list[str]:
        """The real places of the data folder and its parts: a folder that is a link is the user's own choice."""
        parts = (self.annotations,) if self.annotations.is_dir() else ()
        return [os.path.realpath(folder) for folder in (*self.images, *parts, self.root)]

    def is_left_by(self, file: Path) -> bool:
        """Return whether a file is, or is reached through, a link that leaves the data folder."""
        return safe_read.leads_out(file, *self.real_roots)

    @cached_property
    def files_by_name(self) -> dict[str, list[Path]]:
        """All files by their folded path below an image folder, and after `*/` by the last parts of their path."""
        by_name: dict[str, list[Path]] = defaultdict(list)
        visited: set[str] = set()
        for root in self.images:
            for file in files(root):
                by_name[folded(str(file.relative_to(root)))].append(file)
                real = os.path.realpath(file)
                if real not in visited:
                    visited.add(real)
                    parts = folded(str(file)).split("/")
                    for depth in range(1, min(4, len(parts))):
                        by_name["*/" + "/".join(parts[-depth:])].append(file)
        return dict(by_name)


def folded(name: str) -> str:
    """Return a name without differences of case and of Unicode form."""
    return unicodedata.normalize("NFC", name).casefold()


def find(path: Path, split: str) -> Source:
    """Recognise the layout of a data folder, or of one file; raises DataError that says what is there instead."""
    if not split or split in (".", "..") or "/" in split or "\\" in split:
        raise DataError("A split is the name of a folder inside the data folder", got=repr(split), need="train or val")
    if path.is_file():
        if path.suffix.lower() not in JSON_SUFFIXES:
            got = FOREIGN.get(path.suffix.lower(), "a file")
            raise DataError(f"{path} is not a data set", got=got, need="a folder or a .json")
        return _beside(path, path.parent, split, unsplit=True)
    if not path.is_dir():
        what = f"Data folder {path} does not exist"
        raise DataError(what, need="a folder with pages", do=_nearest(path), missing=True)
    source = _paired(path, split) or _mixed(_sub(path, split))
    if source:
        source.root = path
        return source
    annotations = [path / f"{split}{suffix}" for suffix in JSON_SUFFIXES if (path / f"{split}{suffix}").is_file()]
    annotations = annotations or _jsons_of_split(_sub(path, split))
    inner = [file for folder in _folders(path) for file in _jsons(folder)]
    annotations = annotations or [file for file in inner if file.stem == split]
    for file in (*_jsons(path), *inner) if not annotations else ():
        stem = file.stem.lower()  # instances_train2017 is for train and for train2017
        if split.lower() in re.findall(r"[a-z]+", stem) + re.findall(r"[a-z0-9]+", stem):
            annotations.append(file)
    return _beside(_only(annotations, split, path), path, split) if annotations else _unsplit(path, split)


def splits(path: Path) -> list[str]:
    """Return the names of the splits that a data folder seems to hold, sorted; none if it knows no splits."""
    if not path.is_dir():
        return []
    names = {
        entry.name
        for entry in _folders(path)
        if _paired(entry, "") or _mixed(entry) or len(_jsons_of_split(entry)) == 1
    }
    names = {name for name in names if name.lower() not in (*IMAGES, *TEXTS)}
    images, texts = _named(path, IMAGES), _named(path, TEXTS)
    jsons = _jsons(path)
    if images and texts:
        names |= {folder.name for folder in _folders(images)} & {folder.name for folder in _folders(texts)}
        jsons += _jsons(texts)
    return sorted(names | {file.stem for file in jsons if file.stem in SPLIT_NAMES})


def has_images(path: Path) -> bool:
    """Return whether a folder holds a folder of images, by its name."""
    return _named(path, IMAGES) is not None


def files(folder: Path) -> list[Path]:
    """Return the visible files of a folder and of the folders in it, sorted."""
    paths = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name[0] != "."]
        paths += [Path(place, name) for name in names if name[0] != "."]
    return sorted(paths)


def foreign(path: Path) -> str | None:
    """Say what a folder holds that other tools read."""
    suffixes = {file.suffix.lower() for file in files(path)}
    return next((what for suffix, what in FOREIGN.items() if suffix in suffixes), None)


def _paired(path: Path, split: str) -> Source | None:
    """Return the source if there is a folder of images and one of annotations, for this split."""
    for base, below in ((_sub(path, split), ""), (path, split)):
        images, texts = _named(base, IMAGES), _named(base, TEXTS)
        if images and texts:
            images, texts = _sub(images, below), _sub(texts, below)
            if images.is_dir() and texts.is_dir() and not _is_set(texts, images):
                return Source(texts, (images,), root=path)
    return None


def _mixed(folder: Path) -> Source | None:
    """Return the source if images and their annotations lie in one folder, one annotation an image."""
    here = files(folder)
    stems = {file.with_suffix("") for file in here if file.suffix.lower() in SUFFIXES}
    texts = [file for file in here if file.suffix.lower() in PAGE_SUFFIXES]
    pages = [text for text in texts if stems & {text.with_suffix(""), text.with_name(text.stem.removeprefix("gt_"))}]
    others = [file for file in here if file.suffix.lower() in JSON_SUFFIXES and file not in pages]
    if not pages or others or (len(pages) == 1 and pages[0].suffix.lower() == ".json" and not _is_page(pages[0])):
        return None
    return Source(folder, (folder,), root=folder)


def _is_set(texts: Path, images: Path) -> bool:
    """Return whether a folder of annotations holds files of many pages: JSON named after splits, not after images."""
    jsons = _jsons(texts)
    if not jsons or len(jsons) < sum(file.suffix.lower() in PAGE_SUFFIXES for file in _files(texts)):
        return False
    stems = {file.stem for file in _files(images)}
    return not any(file.stem in stems for file in jsons) and not (len(jsons) == 1 and _is_page(jsons[0]))


def _is_page(file: Path) -> bool:
    """Return whether a lone JSON, which has the name of an image, is about that image alone."""
    try:
        content = json.loads(safe_read.read(file))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and bool({"shapes", "valid_line", "ground_truth", "image"} & content.keys())


def _unsplit(path: Path, split: str) -> Source:
    """Use a folder without splits for any split, or say what is there."""
    names = splits(path)
    if not names:
        source = _paired(path, "") or _mixed(path)
        if source:
            source.note, source.root = shared(path, split), path
            return source
        for folders in ([path], _folders(path)):
            jsons = [file for folder in folders for file in _jsons(folder) if file.stem not in SPLIT_NAMES]
            if jsons:
                return _beside(_only(jsons, split, path), path, split, unsplit=True)
    half = _sub(path, split)
    images, texts = _named(half, IMAGES), _named(half, TEXTS)
    if images or texts:
        there, lacking = (images, "gts") if images else (texts, "images")
        what = f"{half} has {there.name if there else ''}/ but no {lacking}/"
        raise DataError(what, need=f"{half / lacking}, or a JSON beside the images")
    near = difflib.get_close_matches(split, names, 1)
    do = f"Choose one of them, or move some pages into {split}/" if names else None
    there_is = sorted(entry.name + "/" * entry.is_dir() for entry in _entries(path))
    more = f" and {len(there_is) - 6} more" if len(there_is) > 6 else ""
    got = foreign(path) or f"a folder with {', '.join(there_is[:6]) or 'nothing'}{more}"
    raise DataError(
        f"{path} has no split {split!r}",
        got=f"splits {', '.join(names)}" if names else got,
        need=f"{split}/images + {split}/gts, or {split}.json beside its images",
        do=f"The nearest is {near[0]}" if near else do,
    )


def _beside(file: Path, path: Path, split: str, *, unsplit: bool = False) -> Source:
    """Return the source for a JSON: images lie beside it, in images/ or in img/, or one folder SPLIT further down."""
    above = file.parent.parent if file.parent != path else path  # of SPLIT/gts/coco.json the images are in SPLIT/images
    bases = dict.fromkeys((file.parent, above, path))
    folders = [base / sub / below for base in bases for sub in ("", *IMAGES) for below in ("", split)]
    there = tuple(folder for folder in dict.fromkeys(folders) if folder.is_dir())
    return Source(file, there, shared(file, split) if unsplit else None, root=path)


def shared(path: Path, split: str) -> str | None:
    """Return the note for a split that is not known, and gets all pages that there are."""
    if split == "train" or split in (path.stem, path.name):
        return None
    same = f"{split!r} gets the same pages as every other split"
    return f"has no splits, so {same}: a score on them shows no generalisation"


def _only(candidates: list[Path], split: str, path: Path) -> Path:
    if len(candidates) > 1:
        got = ", ".join(map(str, candidates[:9])) + ", ..." * (len(candidates) > 9)
        do = f"Name it {split}.json, or give its path as the data folder"
        raise DataError(f"Several files could be the annotation of split {split!r}", got=got, need="one", do=do)
    refuse_links_out(candidates, path)
    return candidates[0]


def refuse_links_out(files: Iterable[Path], path: Path) -> None:
    """Raise DataError for a file of a data folder that is a link out of it."""
    for file in files:
        if file.is_symlink() and safe_read.leads_out(file, path, file.parent):
            raise DataError(f"{file} {LEAVES}", need="the file itself", do="Copy it there, or give its own path")


def _named(folder: Path, names: tuple[str, ...]) -> Path | None:
    """Return the folder inside `folder` that has the first of `names`, in any case."""
    there = {entry.name.lower(): entry for entry in _folders(folder)}
    return next((there[name] for name in names if name in there), None)


def _sub(folder: Path, name: str) -> Path:
    """Return folder/name, or what is there by that name in another case."""
    if not name or (folder / name).is_dir():
        return folder / name
    return next((entry for entry in _folders(folder) if entry.name.lower() == name.lower()), folder / name)


def _folders(path: Path) -> list[Path]:
    """Return the visible folders in a folder, sorted; none where there is no such folder."""
    return sorted(Path(entry.path) for entry in _entries(path) if entry.is_dir() and entry.name[0] != ".")


def _files(folder: Path) -> list[Path]:
    return sorted(Path(entry.path) for entry in _entries(folder) if entry.is_file() and entry.name[0] != ".")


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    entries = os.scandir(folder) if folder.is_dir() else ()
    # A link that leads nowhere, to itself or to where nobody may look raises at the question what it is.
    return [entry for entry in entries if not entry.is_symlink() or os.path.exists(entry.path)]


def _jsons(folder: Path) -> list[Path]:
    return [file for file in _files(folder) if file.suffix.lower() in JSON_SUFFIXES]


def _jsons_of_split(folder: Path) -> list[Path]:
    """Return the JSONs for many pages in the folder of a split: in it, or in its folder of annotations or of images."""
    inner = [place for names in (TEXTS, IMAGES) if (place := _named(folder, names))]
    return next((jsons for place in (folder, *inner) if (jsons := _jsons(place))), [])


def _nearest(path: Path) -> str:
    """Say which folder was probably meant, by the nearest parent that exists."""
    absolute = path.absolute()
    parent = next(folder for folder in absolute.parents if folder.is_dir())
    missing = absolute.relative_to(parent).parts[0]
    near = difflib.get_close_matches(missing, [folder.name for folder in _folders(parent)], 1)
    if near:
        return f"The nearest is {parent / near[0]}"
    return f"{parent} has no {missing}; to begin with, ocrlab samples make {path} draws pages"
