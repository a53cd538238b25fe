"""What a watched program reports to its watcher: a private folder, named by the environment variable OCRLAB_WATCH."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ocrlab.run_folder.atomic_files import write_bytes

FOLDER = "OCRLAB_WATCH"
REPLAY = "OCRLAB_REPLAY"  # environment: path of a job; the program is then a replay
RUNS = "runs"  # file in it: the folder in which the program makes its run folder
RECORD = "record"  # file in it: the folder that holds the flight record of the program, wherever that is
RUN = "run"  # file in it: the run folder itself, and the process that owns it, which a launcher may have started


def watched() -> bool:
    """Return whether a watcher has started this process, or one above it."""
    return bool(os.environ.get(FOLDER))


def report_runs(runs: Path | str) -> None:
    """Tell the watcher, if there is one, below which folder this run will be; never raises."""
    _write(RUNS, str(Path(runs).absolute()))


def report_run(run: Path | str) -> None:
    """Tell the watcher, if there is one, that this process owns a run folder; never raises."""
    _write(RUN, f"{os.getpid()} {Path(run).absolute()}")


def report_record(folder: Path | str) -> None:
    """Tell the watcher, if there is one, which folder `ocrlab replay` takes for this program; never raises."""
    _write(RECORD, str(Path(folder).absolute()))


def read_record(folder: Path) -> Path | None:
    """Return what `report_record` wrote in a hand-over folder, None for nothing."""
    text = _read(folder / RECORD)
    return Path(text) if text else None


def read_runs(folder: Path) -> Path | None:
    """Return what `report_runs` wrote in a hand-over folder, None for nothing."""
    text = _read(folder / RUNS)
    return Path(text) if text else None


def read_run(folder: Path) -> tuple[int, Path] | None:
    """Return the owner and the run folder that `report_run` wrote, None for nothing."""
    pid, _, path = _read(folder / RUN).partition(" ")
    return (int(pid), Path(path)) if pid.isdigit() and path else None


def _write(name: str, text: str) -> None:
    if folder := os.environ.get(FOLDER):
        with contextlib.suppress(OSError):  # the watcher then makes a folder of its own
            write_bytes(Path(folder, name), os.fsencode(text), private=True)


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return os.fsdecode(path.read_bytes())
    return ""
