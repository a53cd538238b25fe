"""An executed notebook as a file: whole or not there, and without secrets and the names of this person's machine."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import nbformat
from papermill.iorw import write_ipynb

from ocrlab.redaction import clean_and_count
from ocrlab.run_folder import write_text

PICTURES = ("image/png", "image/jpeg", "image/gif", "application/pdf")  # base64, in which no name can be found


def redacted(notebook: Any) -> tuple[Any, int]:
    """Return a copy of a notebook in which every text is clean, and how many stretches of text were replaced."""
    copied = copy.deepcopy(notebook)
    texts = list(_texts(copied))
    cleaned, count = clean_and_count([{name: place[key]} for place, key, name in texts])
    for (place, key, _), clean in zip(texts, cleaned, strict=True):
        place[key] = next(iter(clean.values()))  # the name counts too: it can show that a value is a secret
    return copied, count


def _texts(place: Any, name: str = "") -> Iterator[tuple[Any, Any, str]]:
    """Yield where each text stands: its dict or list, its key there, and its name."""
    for key, value in place.items() if isinstance(place, dict) else enumerate(place):
        inner = key if isinstance(key, str) else name
        if isinstance(value, dict | list):
            yield from _texts(value, inner)
        elif isinstance(value, str) and inner not in PICTURES:
            yield place, key, inner


def write(notebook: Any, path: str) -> None:
    """Write a clean copy of a notebook, whole or not at all; raises OSError, and what papermill's stores raise."""
    clean_copy, _ = redacted(notebook)
    if is_local(path):
        write_text(path, nbformat.writes(clean_copy))
    else:
        write_ipynb(clean_copy, path)


def is_local(path: str) -> bool:
    """Tell whether papermill's name for an output is a file on this machine: not `-`, and no URL of a store."""
    return "://" not in path and path != "-"
