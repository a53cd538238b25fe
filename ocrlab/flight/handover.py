"""What a program under watch tells its watcher: a private folder, named by the environment variable OCRLAB_WATCH."""

from __future__ import annotations

import os
from pathlib import Path

from ocrlab.flight.files import write_text

FOLDER = "OCRLAB_WATCH"
RUNS = "runs"  # file in it: the folder in which the program makes its run folder


def watched() -> bool:
    """Tell whether a watcher has started this process, or one above it."""
    return bool(os.environ.get(FOLDER))


def tell_runs(runs: Path | str) -> None:
    """Tell the watcher, if there is one, below which folder this run will be; never raises."""
    folder = os.environ.get(FOLDER)
    if folder:
        try:
            write_text(Path(folder, RUNS), str(Path(runs).absolute()), private=True)
        except OSError:
            return  # the watcher then makes a folder of its own


def runs_told(folder: Path) -> Path | None:
    """Return what `tell_runs` has told in a hand-over folder, None for nothing."""
    try:
        return Path((folder / RUNS).read_text(encoding="utf-8"))
    except OSError:
        return None
