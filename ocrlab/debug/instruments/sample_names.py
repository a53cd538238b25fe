"""What a sample is called: by the name that its batch, itself or its data set has for it, else by its index."""

from __future__ import annotations

import bisect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset

from ocrlab.debug.instruments.batch_tree import AND

KEYS = (
    "pages", "page", "name", "names", "filename", "filenames", "file_name", "file_names", "path", "paths", "file",
    "files", "image_path", "image_paths", "img_path", "img_paths", "image_file", "image_id", "image_ids", "url", "id",
    "ids", "__key__", "key", "keys", "uid", "sample_id", "index", "idx",
)  # fmt: skip
KEY_PATTERN = re.compile(  # keys of other projects: `im_file`, `utt_id`, `sample_name`
    r"(?:(?:im|img|image|sample|utt|utterance|audio|wav|video|clip|doc|document|page|row|record|item|example)_?)?"
    r"(?:file|filename|fname|path|name|id|key|stem|uri|url|uuid)s?\Z",
    re.IGNORECASE,
)
LISTS = (
    "samples", "imgs", "images", "image_paths", "img_paths", "image_files", "paths", "files", "file_names", "filenames",
    "names", "ids", "keys", "items",
)  # fmt: skip
RECORD_LISTS = (*LISTS, "urls", "records", "entries", "annotations", "data")  # of entries that may carry a name
FILE_NAME = re.compile(r"(?=[^ \n\t]*[./\\_0-9])[^ \n\t]+")  # a class label such as "cat" is none
NO_RECORDS = ("torch", "numpy", "builtins", "PIL", "cv2")  # packages whose objects carry no name of a sample
LONGEST = 200  # characters of a name that are stored, its end
MAX_FIELDS = 32  # of a record; longer tuples are sequences of numbers


# Names in a batch


def batch_names(batch: Any) -> list[str]:
    """Return the names that a batch (dict or object) carries under the keys of its project, [] for none."""
    if type(batch) is Tensor:
        return []
    if isinstance(batch, (list, tuple)) and not hasattr(batch, "_fields"):
        return [] if all(type(part) is Tensor for part in batch) else _names_in_parts(batch)
    is_mapping = isinstance(batch, Mapping)
    for key in KEYS:
        if key in batch if is_mapping else hasattr(batch, key):
            texts = _texts(batch[key] if is_mapping else getattr(batch, key))
            if texts:
                return texts
    for key, value in batch.items() if is_mapping else ():  # texts, all different, under a key like that of a name
        if type(value) in (list, tuple) and value and isinstance(key, str) and KEY_PATTERN.match(key):
            texts = _texts(value) if all(isinstance(text, str | os.PathLike) for text in value) else []
            if texts and len(set(texts)) == len(texts):
                return texts
    return []


def _names_in_parts(batch: Sequence[Any]) -> list[str]:
    """Return the names in the parts of a batch; whole numbers alone are labels rather than names.

    Where the parts are the samples, a mapping or row for each, every one must have exactly one; where they are batches
    (`zip` of two loaders), a position has the names of both.
    """
    rows = (isinstance(part, list | tuple) and any(isinstance(item, Tensor) for item in part) for part in batch)
    if len(batch) > 1 and all(isinstance(part, Mapping) or is_row for part, is_row in zip(batch, rows, strict=True)):
        each = [batch_names(part) for part in batch]
        if all(len(texts) < 2 for texts in each):
            names = [text for texts in each for text in texts]
            return names if len(names) == len(batch) and not _are_numbers(names) else []
        if each[0] and all(len(texts) == len(each[0]) for texts in each):
            joint = zip(*each, strict=True)
            return [AND.join(texts) if len(set(texts)) > 1 else texts[0] for texts in joint]
    for part in batch:
        if isinstance(part, Tensor):
            continue
        is_list = isinstance(part, Sequence) and not isinstance(part, str) and bool(part)
        has_keys = isinstance(part, Mapping) or (is_list and isinstance(part[0], Mapping))
        texts = batch_names(part) if has_keys else _texts(part)
        if texts and not _are_numbers(texts):
            return texts
    return []


def _are_numbers(texts: Sequence[str]) -> bool:
    return all(text.lstrip("-").isdigit() for text in texts)


def _texts(value: Any) -> list[str]:
    """Return a list of names or whole numbers as texts; [] for anything else."""
    if isinstance(value, str | os.PathLike):
        return [_short(value)]
    if isinstance(value, Tensor):
        if value.ndim > 1 or value.dtype.is_floating_point or value.is_complex() or value.device.type != "cpu":
            return []  # a device would have to be waited for
        return [str(number) for number in value.reshape(-1).tolist()]
    if isinstance(value, list | tuple) and value and all(isinstance(x, str | os.PathLike | int) for x in value):
        return [_short(x) for x in value]
    return []


def _short(text: Any) -> str:
    return str(os.path.basename(text) if isinstance(text, os.PathLike) else text)[-LONGEST:]


# The name for an index, by a data set that may be asked


def index_namer(dataset: Any) -> Callable[[Any], str]:
    """Return what turns an index into the name of its sample: the data set's own `sample_name`, one of its lists of
    names or paths, or the index as text. It never raises.
    """
    own = getattr(dataset, "sample_name", None)
    lists = (getattr(dataset, attribute, None) for attribute in LISTS)
    name: Callable[[Any], str]
    if type(dataset) is Subset:
        inner, chosen = index_namer(dataset.dataset), dataset.indices
        name = lambda index: inner(chosen[index])  # noqa: E731
    elif callable(own):
        name = lambda index: str(own(index))[-LONGEST:]  # noqa: E731
    else:
        named = (some for some in lists if isinstance(some, list | tuple) and some and _entry_name(some[0]))
        entries: Sequence[Any] = next(named, ())
        name = lambda index: _entry_name(entries[index])  # noqa: E731

    def name_or_index(index: Any) -> str:
        try:
            return name(index) or str(index)[:LONGEST]
        except Exception:
            return str(index)[:LONGEST]

    return name_or_index


def _entry_name(entry: Any) -> str:
    """Return the name in an entry of a data set's list: a text, a path, the first of a pair, or what has a name."""
    if isinstance(entry, list | tuple) and entry:
        entry = entry[0]
    if isinstance(entry, str | os.PathLike):
        return _short(entry)
    name = getattr(entry, "name", None)
    return _short(name) if isinstance(name, str) else ""


def plain_index(index: Any) -> Any:
    """Return an index as Python's own numbers, texts, tuples and lists; raises TypeError for anything else."""
    if type(index) is list and {*map(type, index)} == {int}:  # nearly always
        return index
    if index is None or isinstance(index, bool | int | float | str | bytes):
        return index
    if isinstance(index, tuple):
        return tuple(plain_index(part) for part in index)
    if isinstance(index, list):
        return [plain_index(part) for part in index]
    if isinstance(index, dict):
        return {plain_index(key): plain_index(value) for key, value in index.items()}
    if isinstance(index, np.generic) or (isinstance(index, Tensor | np.ndarray) and index.ndim == 0):
        return index.item()
    raise TypeError(f"an index of type {type(index).__name__} cannot be written down")


# The name of a loaded sample, without calling any code of its data set


def sample_name(dataset: Any, index: Any, item: Any = None) -> str | None:
    """Return the name that a loaded sample carries, or that a list of its data set has for its index; None for none."""
    return name_in_item(item) or _listed_name(*_innermost(dataset, index)) or _listed_name(dataset, index)


def index_text(dataset: Any, index: str) -> str:
    """Return `page.png (index 7)`, `index 7` without a name; what a log holds besides indices stays as it is."""
    if not index.isdigit():
        return index
    name = _listed_name(*_innermost(dataset, int(index)))
    return f"{name} (index {index})" if name else f"index {index}"


def name_in_item(item: Any) -> str | None:
    """Return the name that a sample carries: under a key or in a field such as `name`, or a text like a file's name."""
    if isinstance(item, str | os.PathLike):
        is_file = isinstance(item, os.PathLike) or (len(item) <= 1000 and FILE_NAME.fullmatch(item))
        return _text(item) if is_file else None
    if isinstance(item, Mapping):
        return next((name for key in KEYS if (name := _text(item.get(key)))), None)
    fields = getattr(item, "_asdict", None)
    if isinstance(item, tuple) and callable(fields):
        return name_in_item(fields())
    if isinstance(item, list | tuple):
        parts = (part for part in item if isinstance(part, str | os.PathLike | Mapping))
        return next((name for part in parts if (name := name_in_item(part))), None) if len(item) <= MAX_FIELDS else None
    is_record = type(item).__module__.partition(".")[0] not in NO_RECORDS and isinstance(
        getattr(item, "__dict__", None), dict
    )
    return name_in_item(getattr(item, "__dict__", None)) if is_record else None


def _listed_name(dataset: Any, index: Any) -> str | None:
    """Return the name that a data set has for an index in one of its lists."""
    position = index[-1] if isinstance(index, tuple) and index else index  # (epoch, page)
    attributes = getattr(dataset, "__dict__", {})
    if not isinstance(position, int) or not isinstance(attributes, dict):
        return None
    for name in RECORD_LISTS:
        entries = attributes.get(name, attributes.get(f"_{name}"))
        if isinstance(entries, list | tuple) and -len(entries) <= position < len(entries):
            entry = entries[position]
            text = _text(entry) if isinstance(entry, str | os.PathLike) else name_in_item(entry)
            if text:
                return text
    return None


def _innermost(dataset: Any, index: Any) -> tuple[Any, Any]:
    """Return the data set inside Subsets and ConcatDatasets that a sample comes from, and its index there."""
    while isinstance(index, int):
        method = getattr(type(dataset), "__getitem__", None)
        if method is Subset.__getitem__:
            inside = dataset.indices
            if not isinstance(inside, list | tuple | range) or not -len(inside) <= index < len(inside):
                break
            dataset, index = dataset.dataset, inside[index]
        elif method is ConcatDataset.__getitem__:
            ends = dataset.cumulative_sizes
            place = bisect.bisect_right(ends, index)
            if not index >= 0 or place >= len(ends):
                break
            dataset, index = dataset.datasets[place], index - (ends[place - 1] if place else 0)
        else:
            break
    return dataset, index


def _text(value: Any) -> str | None:
    """Return a name as short text; None for anything else."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        return " ".join(value.split())[-LONGEST:] or None
    if isinstance(value, Sequence) and len(value) == 1:
        return _text(value[0])
    return None
