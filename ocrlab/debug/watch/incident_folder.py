"""Where a watched run is written down: its folder, its sentinel, and the folder of the incident."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ocrlab import run_folder, safe_read
from ocrlab.errors import ConfigError, DataError, OcrlabError, RunError
from ocrlab.records import RunRecord, from_json, to_json
from ocrlab.run_folder.folder import write_process
from ocrlab.run_folder.status_file import SENTINELS, close, running_process

INCIDENT = "incident"
RUNS = "runs"  # default folder of run folders


def open_folder(path: Path | None, command: Sequence[str]) -> run_folder.RunFolder:
    """Open a folder for a run and write `.RUNNING`; None makes `runs/<time>-<program>`. Raises RunError, ConfigError.

    What a folder already holds stays: an earlier record moves to `flight/`, an earlier incident gets a number. A
    sentinel that ocrlab did not write is a ConfigError, a run that lives there a RunError.
    """
    if path is None:
        return run_folder.create(RUNS, slug(command))
    path = path.absolute()
    for file in (path / name for name in SENTINELS.values()):
        if file.is_dir() or (file.is_file() and not _is_ours(file)):
            raise ConfigError(
                f"{file} was not written by ocrlab, and a watched run would replace it",
                need="a folder without it",
                do="Choose another with --run-dir DIR, or rename that file",
            )
    if any((path / name).exists() for name in SENTINELS.values()):
        folder = run_folder.resume(path, finished=True)
    else:
        folder = run_folder.RunFolder(path, run_folder.now())
        try:
            folder.flight.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_process(folder.flight)
            running = to_json(RunRecord("running", folder.started))
            run_folder.write_json(path / SENTINELS["running"], running, private=True)
        except OSError as error:
            dead = path.is_symlink() and not path.exists()
            raise RunError(
                f"Run folder {path} cannot be opened",
                got="a link that leads nowhere" if dead else str(error),
                need="a folder that can be written and a disk with space",
            ) from error
    if (path / INCIDENT / "verdict.json").is_file():  # it is about an earlier run, not about this one
        with contextlib.suppress(OSError):
            _rename_to_free_number(path / INCIDENT)
    return folder


def spare(command: Sequence[str]) -> run_folder.RunFolder:
    """Open a run folder in the system's folder for temporary files, for when the wanted one cannot be written."""
    return open_folder(Path(tempfile.mkdtemp(prefix=f"ocrlab-{slug(command)}-")), command)


def slug(command: Sequence[str]) -> str:
    """Return a short name for a command: of `python -u train.py` and `python -m pkg.train` it is `train`."""
    words = [word for word in command[1:] if not word.startswith("-")]
    program = os.path.basename(command[0])
    if program in ("torchrun", "accelerate"):  # whose options have values
        module = command[command.index("-m") + 1 :][:1] if "-m" in command else []
        words = [*module, *(word for word in words if word.endswith(".py")), *words]
    if re.match(r"(python|torchrun|accelerate|bash|sh)[\d.]*$", program) and words:
        inline = "-c" in command and command[command.index("-c") + 1 :][:1] == words[:1]
        program = program if inline else os.path.basename(words[0]).removesuffix(".py").rpartition(".")[2]
    return program or "run"


def new_incident(folder: Path) -> Path:
    """Make an empty `incident/`; one that already exists is kept under a number. Raises OSError."""
    place = folder / INCIDENT
    if place.exists():
        _rename_to_free_number(place)
    place.mkdir(parents=True)
    return place


def _rename_to_free_number(path: Path) -> None:
    numbered = (path.with_name(f"{path.name}-{number}") for number in range(1, 1000))
    path.rename(next(place for place in numbered if not place.exists()))


def failed(path: Path, error: Mapping[str, object], cause: str) -> None:
    """Write `.FAILURE` into a run folder, or only the cause where the program wrote one itself; never raises."""
    try:
        record = run_folder.status(path)
    except OcrlabError:
        record = RunRecord("died", run_folder.now())
    if record.status == "failure":
        close(path, replace(record, verdict=cause))
        return
    if record.status == "running" and running_process(path).get("pid") not in (None, os.getpid(), error.get("pid")):
        return  # another run has taken the folder over
    run_folder.RunFolder(path, record.started or run_folder.now(), record.metrics).fail(error, verdict=cause)


def also(path: Path, incident: Path, error: Mapping[str, object], cause: str) -> None:
    """Write the same into the run folder that a watched program made itself and left without a cause; never raises."""
    with contextlib.suppress(OSError, OcrlabError):
        record = run_folder.status(path)
        if record.status in ("died", "failure") and record.verdict is None and incident.is_dir():
            shutil.copytree(incident, new_incident(path), dirs_exist_ok=True)
            failed(path, error, cause)


def _is_ours(sentinel: Path) -> bool:
    try:
        return "status" in from_json(safe_read.read(sentinel), source=str(sentinel))
    except DataError as error:
        return "newer" in error.what
    except OSError:
        return True  # opening the folder will say why
