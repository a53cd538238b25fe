"""What a sample is called: it may say so itself, its data set may, and else it has its index."""

from __future__ import annotations

import bisect
import os
from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import ConcatDataset, Subset

KEYS = (
    "name", "path", "file", "filename", "file_name", "image_path", "img_path", "image_file", "page", "url", "__key__",
    "key", "id", "image_id", "uid", "idx", "index",
)  # fmt: skip
LISTS = (
    "samples", "imgs", "image_paths", "img_paths", "image_files", "paths", "files", "filenames", "file_names", "names",
    "images", "urls", "ids", "keys", "records", "items", "entries", "annotations", "data",
)  # fmt: skip
LONGEST = 200  # characters kept of a name, its end


def name_in_item(item: Any) -> str | None:
    """Return the name that a loaded sample carries: a key or a field such as `name`, a text that looks like a file."""
    if isinstance(item, str | os.PathLike):
        return _text(item) if _like_a_file(item) else None
    if isinstance(item, Mapping):
        return next((name for key in KEYS if (name := _text(item.get(key)))), None)
    fields = getattr(item, "_asdict", None)
    if isinstance(item, tuple) and callable(fields):
        return name_in_item(fields())
    if isinstance(item, list | tuple):
        if len(item) > 32:
            return None  # a sequence of numbers, not a record
        return next((name for part in item if (name := _part(part))), None)
    return name_in_item(vars(item)) if _is_record(item) else None


def name_of_index(dataset: Any, index: Any) -> str | None:
    """Return the name that a data set keeps for an index in one of its lists, without calling any of its code."""
    position = index[-1] if isinstance(index, tuple) and index else index  # (epoch, page)
    attributes = getattr(dataset, "__dict__", {})
    if not isinstance(attributes, dict):
        return None
    for name in LISTS:
        entries = attributes.get(name, attributes.get(f"_{name}"))
        if isinstance(entries, list | tuple) and isinstance(position, int) and -len(entries) <= position < len(entries):
            entry = entries[position]
            found = _text(entry) if isinstance(entry, str | os.PathLike) else name_in_item(entry)
            if found:
                return found
    return None


def innermost_dataset(dataset: Any, index: Any) -> tuple[Any, Any]:
    """Return the data set inside Subsets and ConcatDatasets that a sample comes from, and its index there."""
    while isinstance(index, int):
        kind = type(dataset)
        if getattr(kind, "__getitem__", None) is Subset.__getitem__:
            inside = dataset.indices
            if not isinstance(inside, list | tuple | range) or not -len(inside) <= index < len(inside):
                break
            dataset, index = dataset.dataset, inside[index]
        elif getattr(kind, "__getitem__", None) is ConcatDataset.__getitem__:
            ends = dataset.cumulative_sizes
            at = bisect.bisect_right(ends, index)
            if not index >= 0 or at >= len(ends):
                break
            dataset, index = dataset.datasets[at], index - (ends[at - 1] if at else 0)
        else:
            break
    return dataset, index


def sample_text(dataset: Any, index: str) -> str:
    """Return what the sample of an index is called: `page.png (index 7)`, `index 7` where nothing has its name."""
    name = name_of_index(*innermost_dataset(dataset, int(index))) if index.isdigit() else None
    return f"{name} (index {index})" if name else index_text(index)


def index_text(index: str) -> str:
    """Return an index in words; what a journal holds besides, such as what makes batches, stays as it is."""
    return f"index {index}" if index.isdigit() else index


def _part(part: Any) -> str | None:
    """Return the name in one field of a tuple; a class label such as "cat" is none."""
    if isinstance(part, str | os.PathLike):
        return _text(part) if _like_a_file(part) else None
    return name_in_item(part) if isinstance(part, Mapping) else None


def _like_a_file(text: Any) -> bool:
    if isinstance(text, os.PathLike):
        return True
    return (
        0 < len(text) <= 1000
        and not any(mark in text for mark in " \n\t")
        and any(c in text for c in "./\\_0123456789")
    )


def _is_record(item: Any) -> bool:
    """Tell whether an object is a record of somebody's, and no tensor, array or module."""
    root = type(item).__module__.partition(".")[0]
    return root not in ("torch", "numpy", "builtins", "PIL", "cv2") and isinstance(
        getattr(item, "__dict__", None), dict
    )


def _text(value: Any) -> str | None:
    """Return a name as short text; None for what is none."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str) and value.strip():
        return " ".join(value.split())[-LONGEST:]
    if isinstance(value, Sequence) and len(value) == 1:
        return _text(value[0])
    return None
