"""What was executed in the notebook that a training is written in, as `flight/cells-RANK.json`: what a replay executes.

A kernel may be gone when the run is replayed, and a notebook's file tells neither what was executed nor in which order.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from ocrlab import safe_read
from ocrlab.records import SCHEMA, from_json
from ocrlab.run_folder import provenance
from ocrlab.run_folder.atomic_files import write_json

LIMIT = 2_000_000  # characters of all cells
BEGAN: set[int] = set()  # the cells of this kernel that have begun a recording
warned: list[str] = []  # in a replay: what of the cells was not executed again, or not as it was


class CellSkipped(BaseException):
    """A cell that was recorded before the one that is replayed has come to its recording; see `passing`."""


passing: list[int] = []  # the cell that is executed now, if its recording is not the one to replay
begun: list[bool] = []  # filled when the replay has begun


def current_cell() -> int | None:
    """Return the number of the cell that this IPython shell executes, None where there is no shell."""
    with contextlib.suppress(Exception):
        shell = _shell()
        if shell is not None:  # its execution_count is that of the next cell in newer IPython
            return len(shell.history_manager.input_hist_parsed) - 1
    return None


def save_cells(folder: Path, rank: int) -> None:
    """Write down what this IPython shell, if it is one, has executed, the cell at hand included; never raises."""
    with contextlib.suppress(Exception):
        shell = _shell()
        if shell is None:
            return
        codes, raws = list(shell.history_manager.input_hist_parsed), list(shell.history_manager.input_hist_raw)
        BEGAN.add(len(codes) - 1)
        cells = []
        for number, (code, raw) in enumerate(zip(codes, raws, strict=True)):
            if code.strip():  # with the empty lines that IPython takes from its beginning: lines are counted so
                empty = next((i for i, line in enumerate(raw.split("\n")) if line.strip()), 0)
                cells.append({"number": number, "code": "\n" * empty + code.lstrip("\n")})
        size = sum(len(str(cell["code"])) for cell in cells)
        content = {"schema": SCHEMA, "pid": os.getpid(), "cwd": shell.starting_dir, "argv": sys.argv, "size": size}
        content |= {"began": sorted(BEGAN), "cells": cells if size <= LIMIT else []}
        path = Path(folder, f"cells-{rank}.json")
        write_json(path, content, private=True)
        provenance.sign(path)


def _shell() -> Any:
    module = sys.modules.get("IPython")
    return None if module is None else module.get_ipython()


def file_name(run: Path, rank: int) -> Path:
    """Return where the cells of a run folder (or of its flight/) are recorded."""
    return (run / "flight" if (run / "flight").is_dir() else run) / f"cells-{rank}.json"


def find_cells(run: Path, rank: int, pid: Any) -> tuple[Path, dict[str, Any]] | None:
    """Return the cells that process `pid` has executed, and their file; None where there are none; raises DataError."""
    path = file_name(run, rank).absolute()
    try:
        content = from_json(safe_read.read(path), source=str(path))
    except OSError:
        return None
    return (path, content) if content.get("pid") == pid else None


def begin_recording() -> None:
    """Note that a recording begins in a replay; raises CellSkipped in a cell before the one that is replayed."""
    if passing:
        raise CellSkipped
    begun.append(True)


def shorten_paths(value: Any, place: Path) -> Any:
    """Return a fault whose lines read `cell-5.py:3`, without the folder of the replay, where the files of cells are."""
    if isinstance(value, dict):
        return {name: shorten_paths(item, place) for name, item in value.items()}
    if isinstance(value, list):
        return [shorten_paths(item, place) for item in value]
    return value.replace(f"{place.absolute()}{os.sep}cell-", "cell-") if isinstance(value, str) else value
