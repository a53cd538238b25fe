"""The samples of any program, which a bisect halves: files of a folder, lines of a list, records of a JSON, images.

A run of some of them is given a folder or a list of its own, beside links to all that lies beside the real one, so that
names in it are still found. Nothing is written where the samples are.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ocrlab.errors import ConfigError

LEAST = 2  # files of one ending that are samples; a single one is data.yaml, classes.txt, a list of labels
BESIDE = 2000  # things beside a list that are linked
PICTURES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp", ".npy", ".wav", ".mp4")  # a sample is called so
HEADED = (".csv", ".tsv")  # their first line is no sample
SPLITS = 3  # names at the top of a JSON file that may be those of train, val and test
SHOWN = 60  # characters of a line in its name


@dataclass(frozen=True)
class Samples:
    """What is halved: `name` in braces in the command, where it lies, its samples by name, and what each is called.

    `parts` are a sample's files, its line, or its record; `kept` is what every run has: other files, a head.
    """

    name: str
    path: Path
    unit: str  # file, line, record, image
    names: list[str]
    parts: list[Any]
    kept: list[Any] = field(default_factory=list)


def of_word(word: str) -> Samples:
    """Return the samples that `NAME=FOLDER` or `NAME=FILE` names; raises ConfigError."""
    name, _, where = word.partition("=")
    path = Path(where).absolute()
    if not (name and where and path.exists()):
        need = "NAME=FOLDER or NAME=FILE, with {NAME} in the command"
        raise ConfigError(f"--samples {word} cannot be used", got="no such file" if name and where else None, need=need)
    try:
        if path.is_dir():
            found = _folder(name, path)
        elif path.suffix == ".json":
            found = _entries(name, path)
        else:
            found = _lines(name, path)
    except (OSError, ValueError) as error:
        need = "text, or JSON with one list of records"
        raise ConfigError(f"--samples {word} cannot be read", got=str(error), need=need) from error
    if not found.names:
        raise ConfigError(f"--samples {word} holds no samples", need="files, lines or entries, one a sample")
    return found


def given(samples: Samples, chosen: Sequence[int] | None, place: Path) -> str:
    """Return where a run of the chosen samples finds them, made below `place`; all of them lie where they are."""
    if chosen is None:
        return str(samples.path)
    parts = [samples.parts[index] for index in chosen]
    if samples.unit == "file":
        top = place.absolute() / "samples" / samples.path.name
        top.mkdir(parents=True)
        for relative in [*samples.kept, *(one for part in parts for one in part)]:
            (top / relative).parent.mkdir(parents=True, exist_ok=True)
            (top / relative).symlink_to(samples.path / relative)
        return str(top)
    if samples.unit == "image":
        return beside(samples.path, json.dumps(_of_images(samples.kept[0], parts), ensure_ascii=False), place)
    if samples.unit == "record":
        return beside(samples.path, json.dumps(_records(samples.kept, parts), ensure_ascii=False), place)
    return beside(samples.path, "".join([*samples.kept, *parts]), place)


def _of_images(content: dict[str, Any], images: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what COCO says of some images: lists whose items belong to an image are cut down, all else stays."""
    wanted = {one["id"] for one in images}
    return {
        key: [one for one in value if not isinstance(one, dict) or one.get("image_id") in (None, *wanted)]
        if isinstance(value, list)
        else value
        for key, value in content.items()
    } | {"images": list(images)}


def beside(path: Path, text: str, place: Path) -> str:
    """Write what takes the place of a file below `place`, with links to all that lies beside it; return where."""
    folder = place.absolute() / "beside" / path.name
    folder.mkdir(parents=True)
    with os.scandir(path.absolute().parent) as found:
        for number, entry in enumerate(found):
            if number < BESIDE and entry.name != path.name:
                with contextlib.suppress(OSError):
                    (folder / entry.name).symlink_to(path.absolute().parent / entry.name)
    (folder / path.name).write_bytes(text.encode("utf-8", "surrogateescape"))
    return str(folder / path.name)


def _folder(name: str, path: Path) -> Samples:
    """Take files of one stem, such as a page and its boxes, for one sample; what there is one of is kept."""
    files = sorted(one.relative_to(path) for one in path.rglob("*") if one.is_file() and not one.name.startswith("."))
    endings = Counter(one.suffix.lower() for one in files)
    most = max(endings.values(), default=0)
    kept = [one for one in files if endings[one.suffix.lower()] < LEAST < most + 1]
    groups: dict[str, list[Path]] = {}
    for one in files:
        if one not in kept:
            groups.setdefault(_stem(one, files), []).append(one)
    names = [str(max(group, key=lambda one: (one.suffix.lower() in PICTURES, str(one)))) for group in groups.values()]
    return Samples(name, path, "file", names, list(groups.values()), kept)


def _stem(one: Path, files: Sequence[Path]) -> str:
    """Return what files of one sample share: the name without its ending, where folders tell kinds and not classes."""
    tops = {file.parts[0] for file in files if len(file.parts) > 1}
    kinds = tops & {"images", "labels", "annotations", "gts", "gt", "masks", "imgs", "ann", "img", "JPEGImages"}
    return str(Path(*one.parts[1:]).with_suffix("")) if kinds and len(one.parts) > 1 else str(one.with_suffix(""))


def _lines(name: str, path: Path) -> Samples:
    text = path.read_bytes().decode("utf-8", "surrogateescape")  # a byte that is no text may be what is looked for
    lines = list(io.StringIO(text, newline="\n"))  # what else splitlines() takes for a line's end stands in texts
    lines = [line if line.endswith("\n") else f"{line}\n" for line in lines]
    lines = _rows(lines) if path.suffix.lower() in HEADED else lines
    head = lines[:1] if path.suffix.lower() in HEADED else []
    numbers = itertools.accumulate((line.count("\n") for line in lines), initial=1)
    told = list(zip(numbers, lines, strict=False))[len(head) :]
    told = [(number, line) for number, line in told if line.strip() and not line.startswith("#")]
    names = [f"{number} (`{_short(line)}`)" for number, line in told]
    return Samples(name, path, "line", names, [line for _, line in told], head)


def _rows(lines: list[str]) -> list[str]:
    """Return the rows of a table: a line's end inside of quotes ends none, where all quotes are in pairs."""
    rows, opened = [""], False
    for line in lines:
        rows[-1] += line
        opened ^= line.count('"') % 2 == 1
        rows += [] if opened else [""]
    return lines if opened else rows[:-1]


def _entries(name: str, path: Path) -> Samples:
    found = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(found, dict) and isinstance(found.get("images"), list):  # COCO: the rest goes with its images
        images = [one for one in found["images"] if isinstance(one, dict) and "id" in one]
        told = [f"{one['id']} (`{_short(str(one.get('file_name', '')))}`)" for one in images]
        return Samples(name, path, "image", told, images, [found])
    key, records = (None, found) if isinstance(found, list) else _where(found)
    named = isinstance(records, dict)
    pairs = list(records.items() if isinstance(records, dict) else enumerate(records))
    names = [f"{place} (`{_short(json.dumps(one, ensure_ascii=False))}`)" for place, one in pairs]
    return Samples(name, path, "record", names, pairs if named else records, [found, key, named])


def _where(content: Any) -> tuple[str | None, Any]:
    """Return the key below which the records are, None where the names of records are at the top; raises ValueError."""
    if not isinstance(content, dict):
        raise ValueError(f"{type(content).__name__} at the top, with no records")
    kinds = {type(one) for one in content.values()}
    if _several(content) and len(kinds) == 1 and (len(content) > SPLITS or any("." in str(key) for key in content)):
        return None, content
    below = [key for key, value in content.items() if _several(value)]
    if len(below) == 1:
        return below[0], content[below[0]]
    raise ValueError(f"records below each of {', '.join(map(str, below))}" if below else "dict with no records")


def _several(value: Any) -> bool:
    """Tell records, in a list or by name, from settings and lists of numbers."""
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return len(inside) > 1 and all(isinstance(one, dict | list) for one in inside)


def _records(kept: Sequence[Any], chosen: Sequence[Any]) -> Any:
    """Return what a JSON file says of some of its records: all else in it stays."""
    content, key, named = kept
    records = dict(chosen) if named else list(chosen)
    return records if key is None else {**content, key: records}


def _short(line: str) -> str:
    text = line.strip().encode("utf-8", "replace").decode()
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
