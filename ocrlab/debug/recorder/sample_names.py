"""What a sample is called: by the name that its batch or its data set has for it, else by its index."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Subset

from ocrlab.debug.instruments.batch_tree import AND

LISTS: tuple[str, ...] = (
    "samples",
    "imgs",
    "images",
    "image_paths",
    "img_paths",
    "image_files",
    "paths",
    "files",
    "file_names",
)
LISTS += ("filenames", "names", "ids", "keys", "items")
KEYS: tuple[str, ...] = (
    "pages",
    "page",
    "name",
    "names",
    "filename",
    "filenames",
    "file_name",
    "file_names",
    "path",
    "paths",
    "file",
)
KEYS += ("files", "image_path", "image_paths", "img_path", "img_paths", "image_id", "image_ids", "id", "ids", "__key__")
KEYS += ("key", "keys", "uid", "sample_id", "index", "idx")
LONGEST = 200
KEY_PATTERN = re.compile(  # keys of other people: `im_file`, `utt_id`, `sample_name`
    r"(?:(?:im|img|image|sample|utt|utterance|audio|wav|video|clip|doc|document|page|row|record|item|example)_?)?"
    r"(?:file|filename|fname|path|name|id|key|stem|uri|url|uuid)s?\Z",
    re.IGNORECASE,
)


def batch_names(batch: Any) -> list[str]:
    """Return the names that a batch carries itself (dict or object, in its own words), [] for none."""
    kind = type(batch)
    if kind is Tensor:
        return []
    if kind is tuple or kind is list:
        for part in batch:
            if type(part) is not Tensor:
                return _names_in_parts(batch)
        return []
    if isinstance(batch, (list, tuple)) and not hasattr(batch, "_fields"):
        return _names_in_parts(batch)
    is_mapping = isinstance(batch, Mapping)
    for key in KEYS:
        if key in batch if is_mapping else hasattr(batch, key):
            texts = _texts(batch[key] if is_mapping else getattr(batch, key))
            if texts:
                return texts
    return _names_by_key_pattern(batch) if is_mapping else []


def _names_by_key_pattern(batch: Mapping[Any, Any]) -> list[str]:
    """Return the texts, all of them different, that a batch has under a key which sounds like the name of a sample."""
    for key, value in batch.items():
        if type(value) in (list, tuple) and value and isinstance(key, str) and KEY_PATTERN.match(key):
            texts = _texts(value) if all(isinstance(text, str | os.PathLike) for text in value) else []
            if texts and len(set(texts)) == len(texts):
                return texts
    return []


def _names_in_parts(batch: Sequence[Any]) -> list[str]:
    """Return the names in the parts of a batch; whole numbers alone are labels rather than names.

    Where the parts are the samples, a mapping or row for each, every one must have exactly one; where they are batches
    (`zip` of two loaders), what lies at one place has the names of both.
    """
    if len(batch) > 1 and all(isinstance(part, Mapping) or _is_row(part) for part in batch):
        each = [batch_names(part) for part in batch]
        if all(len(texts) < 2 for texts in each):
            names = [text for texts in each for text in texts]
            return names if len(names) == len(batch) and not all(text.lstrip("-").isdigit() for text in names) else []
        if each[0] and all(len(texts) == len(each[0]) for texts in each):
            return [_joined(texts) for texts in zip(*each, strict=True)]
    for part in batch:
        if isinstance(part, Tensor):
            continue
        texts = batch_names(part) if _has_keys(part) else _texts(part)
        if texts and not all(text.lstrip("-").isdigit() for text in texts):
            return texts
    return []


def _is_row(part: Any) -> bool:
    """Tell whether a part of a batch is a list of things with a tensor among them."""
    return isinstance(part, list | tuple) and any(isinstance(item, Tensor) for item in part)


def _joined(texts: Sequence[str]) -> str:
    """Return what the samples at one place of several batches are called together."""
    return AND.join(texts) if len(set(texts)) > 1 else texts[0]


def index_namer(dataset: Any) -> Callable[[Any], str]:
    """Return what turns an index into the name of its sample: the data set's own `sample_name`, one of its lists of
    names or paths, or the index as text. It never raises.
    """
    own = getattr(dataset, "sample_name", None)
    if type(dataset) is Subset:
        inner, chosen = index_namer(dataset.dataset), dataset.indices
        return lambda index: _name_or_index(lambda: inner(chosen[index]), index)
    if callable(own):
        return lambda index: _name_or_index(lambda: str(own(index))[-LONGEST:], index)
    for attribute in LISTS:
        entries = getattr(dataset, attribute, None)
        if isinstance(entries, list | tuple) and len(entries) and _name(entries[0]):
            return partial(_name_from_list, entries)
    return by_index


def by_index(index: Any) -> str:
    """Return an index as text, the name of a sample that has none."""
    return str(index)[:LONGEST]


def _name_from_list(entries: Sequence[Any], index: Any) -> str:
    return _name_or_index(lambda: _name(entries[index]), index)


def _name_or_index(name: Callable[[], str], index: Any) -> str:
    try:
        return name() or by_index(index)
    except Exception:
        return by_index(index)


def plain_index(index: Any) -> Any:
    """Return an index as Python's own numbers, texts, tuples and lists; raises TypeError for anything else."""
    if type(index) is list and {*map(type, index)} == {int}:  # nearly always
        return index
    if index is None or isinstance(index, bool | str | bytes):
        return index
    if isinstance(index, int | float):
        return index
    if isinstance(index, tuple):
        return tuple(plain_index(part) for part in index)
    if isinstance(index, list):
        return [plain_index(part) for part in index]
    if isinstance(index, np.integer | np.floating | np.str_):
        return index.item()
    if isinstance(index, dict):
        return {plain_index(key): plain_index(value) for key, value in index.items()}
    if isinstance(index, Tensor | np.ndarray) and index.ndim == 0:
        return index.item()
    raise TypeError(f"an index of type {type(index).__name__} cannot be written down")


def _has_keys(part: Any) -> bool:
    """Tell whether a part of a batch may carry names under keys."""
    return isinstance(part, Mapping) or (
        isinstance(part, Sequence) and not isinstance(part, str) and bool(part) and isinstance(part[0], Mapping)
    )


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


def _name(entry: Any) -> str:
    """Return the name in an entry of a data set's list: a text, a path, the first of a pair, or what has a name."""
    if isinstance(entry, list | tuple) and entry:
        entry = entry[0]
    if isinstance(entry, str | os.PathLike):
        return _short(entry)
    name = getattr(entry, "name", None)
    return _short(name) if isinstance(name, str) else ""


def _short(text: Any) -> str:
    return os.path.basename(os.fspath(text))[-LONGEST:] if isinstance(text, os.PathLike) else str(text)[-LONGEST:]
