"""The samples of any program, which a bisect halves: files of a folder, lines of a list, records of a JSON, images.

A run with some of them gets its own folder or list, next to links to the neighbours of the real one, so that relative
names still work. Nothing is written where the samples are.
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

from ocrlab import safe_read
from ocrlab.errors import ConfigError

LEAST = 2  # files of one ending that are samples; a single one is data.yaml, classes.txt, a list of labels
BESIDE = 2000  # things beside a list that are linked
PICTURES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp", ".npy", ".wav", ".mp4")  # a sample is called so
HEADED = (".csv", ".tsv")  # their first line is not a sample
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
    shared: list[Any] = field(default_factory=list)


def read_samples(word: str) -> Samples:
    """Return the samples that `NAME=FOLDER` or `NAME=FILE` names; raises ConfigError."""
    name, _, where = word.partition("=")
    path = Path(where).absolute()
    if not (name and where and path.exists()):
        need = "NAME=FOLDER or NAME=FILE, with {NAME} in the command"
        raise ConfigError(f"--samples {word} cannot be used", got="no such file" if name and where else None, need=need)
    try:
        read = _folder if path.is_dir() else _entries if path.suffix == ".json" else _lines
        samples = read(name, path)
    except (OSError, ValueError) as error:
        need = "text, or JSON with one list of records"
        raise ConfigError(f"--samples {word} cannot be read", got=str(error), need=need) from error
    if not samples.names:
        raise ConfigError(f"--samples {word} contains no samples", need="files, lines or entries, one a sample")
    return samples


def write_samples(samples: Samples, chosen: Sequence[int] | None, place: Path) -> str:
    """Return where a run of the chosen samples finds them, made below `place`; all of them lie where they are."""
    if chosen is None:
        return str(samples.path)
    parts = [samples.parts[index] for index in chosen]
    if samples.unit == "file":
        top = place.absolute() / "samples" / samples.path.name
        top.mkdir(parents=True)
        for relative in [*samples.shared, *(file for part in parts for file in part)]:
            (top / relative).parent.mkdir(parents=True, exist_ok=True)
            (top / relative).symlink_to(samples.path / relative)
        return str(top)
    text = "".join([*samples.shared, *parts]) if samples.unit == "line" else ""
    if samples.unit == "image":  # lists whose items belong to an image are cut down, all else stays
        content, wanted = dict(samples.shared[0]), {None, *(image["id"] for image in parts)}
        for key, value in content.items():
            if isinstance(value, list):
                content[key] = [item for item in value if not isinstance(item, dict) or item.get("image_id") in wanted]
        text = json.dumps({**content, "images": parts}, ensure_ascii=False)
    if samples.unit == "record":
        content, key, named = samples.shared
        records = dict(parts) if named else parts
        text = json.dumps(records if key is None else {**content, key: records}, ensure_ascii=False)
    return write_replacement(samples.path, text, place)


def write_replacement(path: Path, text: str, place: Path) -> str:
    """Write what takes the place of a file below `place`, with links to all that lies beside it; return where."""
    folder = place.absolute() / "beside" / path.name
    folder.mkdir(parents=True)
    with os.scandir(path.absolute().parent) as entries:
        for number, entry in enumerate(entries):
            if number < BESIDE and entry.name != path.name:
                with contextlib.suppress(OSError):
                    (folder / entry.name).symlink_to(path.absolute().parent / entry.name)
    (folder / path.name).write_bytes(text.encode("utf-8", "surrogateescape"))
    return str(folder / path.name)


def _folder(name: str, path: Path) -> Samples:
    """Take files of one stem, such as a page and its boxes, for one sample; what there is one of is kept."""
    files = sorted(
        file.relative_to(path) for file in path.rglob("*") if file.is_file() and not file.name.startswith(".")
    )
    endings = Counter(file.suffix.lower() for file in files)
    most = max(endings.values(), default=0)
    shared = [file for file in files if endings[file.suffix.lower()] < LEAST < most + 1]
    groups: dict[str, list[Path]] = {}
    for file in files:
        if file not in shared:
            groups.setdefault(_stem(file, files), []).append(file)
    names = [
        str(max(group, key=lambda file: (file.suffix.lower() in PICTURES, str(file)))) for group in groups.values()
    ]
    return Samples(name, path, "file", names, list(groups.values()), shared)


def _stem(path: Path, files: Sequence[Path]) -> str:
    """Return what files of one sample share: the name without its ending, where folders tell kinds and not classes."""
    tops = {file.parts[0] for file in files if len(file.parts) > 1}
    kinds = tops & {"images", "labels", "annotations", "gts", "gt", "masks", "imgs", "ann", "img", "JPEGImages"}
    return str(Path(*path.parts[1:]).with_suffix("")) if kinds and len(path.parts) > 1 else str(path.with_suffix(""))


def _lines(name: str, path: Path) -> Samples:
    text = safe_read.read(path).decode("utf-8", "surrogateescape")  # a byte that is not text may be what is looked for
    lines = list(io.StringIO(text, newline="\n"))  # what else splitlines() takes for a line's end stands in texts
    lines = [line if line.endswith("\n") else f"{line}\n" for line in lines]
    is_table = path.suffix.lower() in HEADED
    lines = _rows(lines) if is_table else lines
    numbers = itertools.accumulate((line.count("\n") for line in lines), initial=1)
    numbered = list(zip(numbers, lines, strict=False))[is_table:]
    numbered = [(number, line) for number, line in numbered if line.strip() and not line.startswith("#")]
    names = [f"{number} (`{_short(line)}`)" for number, line in numbered]
    return Samples(name, path, "line", names, [line for _, line in numbered], lines[:1] if is_table else [])


def _rows(lines: list[str]) -> list[str]:
    """Return the rows of a table: a line's end inside of quotes ends none, where all quotes are in pairs."""
    rows, opened = [""], False
    for line in lines:
        rows[-1] += line
        opened ^= line.count('"') % 2 == 1
        rows += [] if opened else [""]
    return lines if opened else rows[:-1]


def _entries(name: str, path: Path) -> Samples:
    content = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(content, dict) and isinstance(content.get("images"), list):  # COCO: the rest goes with its images
        images = [record for record in content["images"] if isinstance(record, dict) and "id" in record]
        labels = [f"{record['id']} (`{_short(str(record.get('file_name', '')))}`)" for record in images]
        return Samples(name, path, "image", labels, images, [content])
    key, records = (None, content) if isinstance(content, list) else _where(content)
    named = isinstance(records, dict)
    pairs = list(records.items() if isinstance(records, dict) else enumerate(records))
    names = [f"{place} (`{_short(json.dumps(record, ensure_ascii=False))}`)" for place, record in pairs]
    return Samples(name, path, "record", names, pairs if named else records, [content, key, named])


def _where(content: Any) -> tuple[str | None, Any]:
    """Return the key below which the records are, None where the names of records are at the top; raises ValueError."""
    if not isinstance(content, dict):
        raise ValueError(f"{type(content).__name__} at the top, with no records")
    kinds = {type(entry) for entry in content.values()}
    if _several(content) and len(kinds) == 1 and (len(content) > SPLITS or any("." in str(key) for key in content)):
        return None, content
    below = [key for key, value in content.items() if _several(value)]
    if len(below) == 1:
        return below[0], content[below[0]]
    raise ValueError(f"records below each of {', '.join(map(str, below))}" if below else "dict with no records")


def _several(value: Any) -> bool:
    """Tell records, in a list or by name, from settings and lists of numbers."""
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return len(inside) > 1 and all(isinstance(item, dict | list) for item in inside)


def _short(line: str) -> str:
    text = line.strip().encode("utf-8", "replace").decode()
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
