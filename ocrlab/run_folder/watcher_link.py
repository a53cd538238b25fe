"""What a program under watch tells its watcher: a private folder, named by the environment variable OCRLAB_WATCH."""

from __future__ import annotations

import os
from pathlib import Path

from ocrlab.run_folder.atomic_files import write_bytes

FOLDER = "OCRLAB_WATCH"
REPLAY = "OCRLAB_REPLAY"  # environment: path of a job; the program is then a replay
RUNS = "runs"  # file in it: the folder in which the program makes its run folder
RECORD = "record"  # file in it: the folder that holds the flight record of the program, wherever that is
RUN = "run"  # file in it: the run folder itself, and the process that owns it, where that is not the program


def watched() -> bool:
    """Tell whether a watcher has started this process, or one above it."""
    return bool(os.environ.get(FOLDER))


def tell_runs(runs: Path | str) -> None:
    """Tell the watcher, if there is one, below which folder this run will be; never raises."""
    _tell(RUNS, str(Path(runs).absolute()))


def tell_run(run: Path | str) -> None:
    """Tell the watcher, if there is one, that this process owns a run folder, though a launcher started it."""
    _tell(RUN, f"{os.getpid()} {Path(run).absolute()}")


def tell_record(folder: Path | str) -> None:
    """Tell the watcher, if there is one, which folder `ocrlab replay` takes for this program; never raises."""
    _tell(RECORD, str(Path(folder).absolute()))


def record_told(folder: Path) -> Path | None:
    """Return what `tell_record` has told in a hand-over folder, None for nothing."""
    text = _told(folder / RECORD)
    return Path(text) if text else None


def runs_told(folder: Path) -> Path | None:
    """Return what `tell_runs` has told in a hand-over folder, None for nothing."""
    text = _told(folder / RUNS)
    return Path(text) if text else None


def run_told(folder: Path) -> tuple[int, Path] | None:
    """Return the owner and the run folder that `tell_run` has told, None for nothing."""
    pid, _, path = (_told(folder / RUN) or "").partition(" ")
    return (int(pid), Path(path)) if pid.isdigit() and path else None


def _tell(name: str, text: str) -> None:
    folder = os.environ.get(FOLDER)
    if folder:
        try:
            write_bytes(Path(folder, name), os.fsencode(text), private=True)
        except OSError:
            return  # the watcher then makes a folder of its own


def _told(path: Path) -> str | None:
    try:
        return os.fsdecode(path.read_bytes())
    except OSError:
        return None
