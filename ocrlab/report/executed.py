"""An executed notebook as a file: whole or not there, and without secrets and the names of this person's machine."""

from __future__ import annotations

import copy
from typing import Any

import nbformat
from papermill.iorw import write_ipynb

from ocrlab.flight import write_text
from ocrlab.redact import clean

PICTURES = ("image/png", "image/jpeg", "image/gif", "application/pdf")  # base64, in which no name can be found


def redacted(notebook: Any) -> tuple[Any, int]:
    """Return a copy of a notebook in which every text is clean, and how many texts were not."""
    count = 0

    def walk(value: Any, key: str = "") -> Any:
        nonlocal count
        if isinstance(value, dict):
            return type(value)({name: walk(item, name) for name, item in value.items()})
        if isinstance(value, list):
            return [walk(item, key) for item in value]
        if not isinstance(value, str) or key in PICTURES:
            return value
        told = clean({key: value})
        after = next(iter(told.values()))  # the key counts too: a secret is known by its name
        count += after != value
        return after

    return walk(copy.deepcopy(notebook)), count


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
