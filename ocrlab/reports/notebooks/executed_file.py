"""An executed notebook as a file: whole or not there, and without secrets and the names of this person's machine."""

from __future__ import annotations

import copy
import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import nbformat.reader
from papermill.iorw import write_ipynb

from ocrlab import safe_read
from ocrlab.errors import DataError
from ocrlab.redaction import clean_and_count
from ocrlab.run_folder import write_text

MOST_CELLS, LAST_CELLS = 1000, 250  # a report shows so many cells: the first ones and the last ones
# What a reader relies on: of each kind of output the keys that must be there, and of which type.
TEXT, LINES, TABLE = "a text", "a list of texts", "an object"
OUTPUTS = {
    "stream": {"name": TEXT, "text": TEXT},
    "error": {"ename": TEXT, "evalue": TEXT, "traceback": LINES},
    "display_data": {"data": TABLE, "metadata": TABLE},
    "execute_result": {"data": TABLE, "metadata": TABLE},
}
ABOUT = ("kernelspec", "language_info", "papermill", "ocrlab", "jupyter")  # objects in metadata
NUMBERS = {"papermill": "duration", "ocrlab": "redacted"}  # in these; what is none is as good as not there
HALF_A_PAIR = re.compile(  # the escape of half a surrogate pair, which is not a character
    rb"(?<!\\)(?:\\u[dD][89abAB][\da-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][\da-fA-F]{2})\\u[dD][c-fC-F][\da-fA-F]{2})"
)
PICTURES = ("image/png", "image/jpeg", "image/gif", "application/pdf")  # base64, in which no name can be found


def read(path: Path | str) -> Any:
    """Return a notebook of any version as one of version 4, whose cells and outputs are what they should be.

    Of very many cells the first and the last are read, and a cell between says so. Raises OSError, and DataError for
    what is not a notebook.
    """
    need = "an .ipynb file"
    data = safe_read.read(path, safe_read.RECORD)
    try:
        content = json.loads(HALF_A_PAIR.sub(rb"\\ufffd", data))
        if isinstance(content, dict) and isinstance(cells := content.get("cells"), list) and len(cells) > MOST_CELLS:
            about = f"*{len(cells) - MOST_CELLS:,} of {len(cells):,} cells are left out here; the notebook has them.*"
            note = {"cell_type": "markdown", "metadata": {}, "source": about}
            content["cells"] = [*cells[: MOST_CELLS - LAST_CELLS], note, *cells[-LAST_CELLS:]]
        major, minor = nbformat.reader.get_version(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of cells without ids
            notebook = nbformat.convert(nbformat.versions[major].to_notebook_json(content, minor=minor), 4)
        wrong = next(_faults(notebook), None)
    except Exception as error:  # for a broken file nbformat raises whatever it stumbles over
        got = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise DataError(f"{path} is not a notebook", got=got, need=need) from error
    if wrong:
        raise DataError(f"{path} is not a notebook", got=wrong, need=need)
    for place in (notebook, *notebook.cells):
        for name, number in NUMBERS.items():
            about = place.metadata.get(name, {})
            if number in about and not (isinstance(about[number], int | float) and 0 <= about[number] < 1e9):
                del about[number]
        if place.get("cell_type") == "code" and not isinstance(place.get("execution_count"), int):
            place.execution_count = None
    return notebook


def _faults(notebook: Any) -> Iterator[str]:
    """Yield what a reader could not show."""
    yield from _mistyped(notebook, "the notebook", {"cells": "a list", "metadata": TABLE})
    yield from _mistyped(notebook.metadata, "metadata", {name: TABLE for name in ABOUT if name in notebook.metadata})
    kernel = notebook.metadata.get("kernelspec", {})
    yield from _mistyped(kernel, "kernelspec", {"language": TEXT} if kernel.get("language") else {})
    for number, cell in enumerate(notebook.cells, 1):
        place = f"cell {number}"
        yield from _mistyped(cell, place, {"cell_type": TEXT, "source": TEXT, "metadata": TABLE})
        yield from _mistyped(cell.metadata, place, {name: TABLE for name in ABOUT if name in cell.metadata})
        yield from _mistyped(cell, place, {"attachments": TABLE} if "attachments" in cell else {})
        for name, bundle in cell.get("attachments", {}).items():
            yield from _mistyped(cell.attachments, f"{place}, attachment", {name: TABLE})
            yield from _mistyped(bundle, f"{place}, attachment {name}", dict.fromkeys(bundle, TEXT))
        if cell.cell_type == "code":
            yield from _mistyped(cell, place, {"outputs": "a list"})
        for at, output in enumerate(cell.get("outputs", []), 1):
            where = f"{place}, output {at}"
            yield from _mistyped(output, where, {"output_type": TEXT})
            if output.output_type not in OUTPUTS:
                yield f"{where} is of the unknown type {output.output_type[:40]!r}"
            yield from _mistyped(output, where, OUTPUTS[output.output_type])


def _mistyped(place: Any, name: str, wanted: dict[str, str]) -> Iterator[str]:
    """Yield the keys of an object that are not there, or of another type."""
    if not isinstance(place, dict):
        yield f"{name} is not an object: {str(place)[:80]}"
    for key, kind in wanted.items():
        value = place.get(key)
        good = {TEXT: isinstance(value, str), TABLE: isinstance(value, dict), "a list": isinstance(value, list)}
        good[LINES] = isinstance(value, list) and all(isinstance(line, str) for line in value)
        if not good[kind]:
            yield f"{name}: {key!r} is not {kind}: {str(value)[:80]}"


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
    """Return whether papermill's name for an output is a file on this machine: not `-`, and no URL of a store."""
    return "://" not in path and path != "-"
