"""Opening and closing a run folder, so that the first error of a run is the one that is reported."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ocrlab import safe_read
from ocrlab.errors import RunError
from ocrlab.records import RunRecord, to_json
from ocrlab.run_folder import provenance
from ocrlab.run_folder.atomic_files import write_json, write_text
from ocrlab.run_folder.exception_record import describe
from ocrlab.run_folder.fail_safe import print_message
from ocrlab.run_folder.owner_process import identity, signals_exit
from ocrlab.run_folder.status_file import SENTINELS, close, now, running_process, status

PLACE = "a folder that can be written and a disk with space"


@dataclass
class RunFolder:
    """An open run: where its files go, and the two ways to close it."""

    path: Path
    started: str
    metrics: dict[str, float] = field(default_factory=dict)
    finished: bool = False
    owner: int = field(default_factory=os.getpid)  # a forked child that unwinds must not close its parent's run

    def __post_init__(self) -> None:
        self.config_file = self.path / "config.yaml"  # everything needed to run it again
        self.environment_file = self.path / "environment.json"  # the readings of the machine at the start
        self.metrics_file = self.path / "metrics.csv"  # one row for each log step, written by `Table`
        self.checkpoints = self.path / "checkpoints"
        self.flight = self.path / "flight"  # what a crash is explained with
        self.incident = self.path / "incident"  # the diagnosis; made only after a failure

    def write_config(self, text: str) -> None:
        """Write `config.yaml`, whole or not at all; raises OSError."""
        write_text(self.config_file, text, private=True)
        provenance.sign(self.config_file)

    def succeed(self, metrics: Mapping[str, float]) -> None:
        """Turn `.RUNNING` into `.SUCCESS` with the final metrics; raises RunError when that cannot be written."""
        self.metrics = dict(metrics)
        written, problems = close(self.path, RunRecord("success", self.started, now(), self.metrics))
        if not written:
            what = f"Run {self.path} finished, but its .SUCCESS cannot be written"
            raise RunError(what, got="; ".join(problems), need=PLACE)
        self.finished = True
        if problems:
            print_message(f"run {self.path}: {'; '.join(problems)}", "ocrlab")

    def fail(self, error: BaseException | Mapping[str, Any], *, verdict: str | None = None) -> list[str]:
        """Turn `.RUNNING` into `.FAILURE`; returns what went wrong while doing so, and never raises.

        The folder is made again where it is gone. Problems are only printed, in one line on stderr: the first error is
        on its way out and must not be replaced.
        """
        self.finished = True
        try:
            description = dict(error) if isinstance(error, Mapping) else describe(error)
            record = RunRecord("failure", self.started, now(), self.metrics, description, verdict)
            _, problems = close(self.path, record)
        except BaseException as problem:  # a second Ctrl-C included
            problems = [f"{type(problem).__name__}: {problem}"]
        if problems:
            print_message(f"run {self.path}: {'; '.join(problems)}", "ocrlab")
        return problems


def create(runs: Path | str, slug: str, config_text: str | None = None) -> RunFolder:
    """Make `runs/<time>-<slug>/`, never an existing folder, and write `.RUNNING`; raises RunError."""
    path = None
    try:
        Path(runs).mkdir(parents=True, exist_ok=True)
        word = re.sub(r"[^A-Za-z0-9._-]+", "-", slug).strip(".-")[:60] or "run"
        stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{word}"
        path = _new_folder(Path(runs).absolute() / stem)
        folder = RunFolder(path, now())
        _enter(folder)
        if config_text is not None:
            folder.write_config(config_text)
    except OSError as error:
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)
        what, do = f"A run folder cannot be made in {runs}", "Choose another with runs=DIR"
        raise RunError(what, got=str(error), need=PLACE, do=do) from error
    return folder


def resume(path: Path | str, *, finished: bool = False) -> RunFolder:
    """Open the folder of a failed or dead run again, and of a successful one with `finished=True`; raises RunError.

    A run that still lives is refused. The record of what ended the run stays as `flight/<status>-<n>.json`.
    """
    path = Path(path).absolute()
    with _locked(path):
        record = resumable(path, finished=finished)
        folder = RunFolder(path, record.started)
        try:
            _enter(folder, last=record.status)
        except OSError as error:
            raise RunError(f"Run {path} cannot be resumed", got=str(error), need=PLACE) from error
    return folder


def resumable(path: Path | str, *, finished: bool = False) -> RunRecord:
    """Return the record of a run that can be resumed now; raises RunError for one that lives, or is done."""
    path = Path(path).absolute()
    record = status(path)
    if record.status == "running":
        raise RunError(
            f"Run {path} is still running",
            got="process {pid} on {host}".format_map(running_process(path)),
            need="a run that ended",
            do="Stop it first; if it is certainly gone, rename .RUNNING in that folder to .FAILURE",
        )
    if record.status == "success" and not finished:
        do = "Start a new run; weights=CKPT, of its checkpoints/, begins with what it has learned"
        raise RunError(f"Run {path} has finished", need="a run that failed or was interrupted", do=do)
    return record


@contextlib.contextmanager
def run(
    runs: Path | str, slug: str, config_text: str | None = None, *, again: Path | str | None = None
) -> Iterator[RunFolder]:
    """Open a new run folder, or `again` an old one, around a `with` block and close it whatever happens.

    An error leaves the block as it was raised, after `.FAILURE` was written. A block that ends without `succeed` has
    failed too: silence is never green. In the main thread SIGTERM and SIGHUP become SystemExit(128 + n).
    """
    with signals_exit():
        folder = create(runs, slug, config_text) if again is None else resume(again)
        try:
            yield folder
        except BaseException as error:
            if os.getpid() == folder.owner:
                folder.fail(error)
            raise
        if not folder.finished and os.getpid() == folder.owner:
            folder.fail({"type": "Unfinished", "message": "the run ended without a result", "where": None})


def _new_folder(path: Path) -> Path:
    """Make a folder of this name, or the first of NAME-2, NAME-3 and so on that does not exist yet."""
    numbered, number = path, 1
    while True:
        with contextlib.suppress(FileExistsError):
            numbered.mkdir()
            return numbered
        number += 1
        numbered = path.with_name(f"{path.name}-{number}")


def _enter(folder: RunFolder, last: str | None = None) -> None:
    """Write who runs here and `.RUNNING`, in an order that leaves a resumed folder a sentinel at every moment."""
    for private in (folder.checkpoints, folder.flight):
        private.mkdir(mode=0o700, exist_ok=True)
    if last in SENTINELS:
        old = folder.path / SENTINELS[last]
        number = 1 + sum(1 for _ in folder.flight.glob(f"{last}-*.json"))
        write_text(folder.flight / f"{last}-{number}.json", safe_read.read_text(old), private=True)
        old.rename(folder.path / SENTINELS["running"])
    write_process(folder.flight)
    write_json(folder.path / SENTINELS["running"], to_json(RunRecord("running", folder.started)), private=True)


def write_process(flight: Path) -> None:
    """Write down which process owns a run, and how it was started; raises OSError."""
    write_json(flight / "process.json", identity(), private=True)
    provenance.sign(flight / "process.json")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process at a time decide about a run folder; without effect where the file system has no locks."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise RunError(f"{path} is not a run folder", got=str(error)) from error
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
