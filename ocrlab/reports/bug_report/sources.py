"""What a bug report is filled from: a run folder, an incident, an executed notebook or a log, read as a stranger's.

The stack of a failure is the program's own line with the lines around it, and the whole as it was written.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ocrlab import run_folder, safe_read
from ocrlab.debug.diagnosis import classify, load_input, log_records
from ocrlab.debug.diagnosis.hangs import stack_patterns
from ocrlab.debug.diagnosis.log_records import Line
from ocrlab.debug.flight_record import program_info, ring_reader
from ocrlab.errors import DataError, OcrlabError, RunError
from ocrlab.hardware.processes.stack_types import Frame
from ocrlab.records import Cause, Incident, RunRecord, Verdict, fitting, to_json
from ocrlab.reports.notebooks import results
from ocrlab.reports.run_history import fingerprint
from ocrlab.run_folder import provenance
from ocrlab.run_folder.status_file import SENTINELS

LARGEST = 8 * 2**20  # bytes of a file that is read whole
ROWS = 200_000  # of metrics.csv
INCIDENT = "incident"
FAILED = ("failed", "killed", "hung", "suspected")
AROUND = 4  # lines of source above and below the failing one
LONGEST = 12_000  # characters of a stack
SOURCE = 2 * 2**20  # bytes of a source file that is opened
NUMBER = (int, float)
ENVIRONMENT: dict[str, Any] = {"machine": dict, "packages": dict, "cpu_flags": [str]}
TRIAL = {  # what is read of the record of a replay or a bisect; what a stranger's has in another form is left out
    **dict.fromkeys(("answer", "sentence", "status", "until_mended"), str),
    "cells": [{"seconds": NUMBER, "fault": dict}],
    "factors": [dict],
    "culprits": [str],
    "posterior": NUMBER,
    "table": [{"flipped": [str], "seconds": NUMBER}],
}
FATAL = "Fatal Python error"  # begins the dump of a fatal signal


@dataclass
class Sources:
    """Everything that is known; `unread` lists what could not be read, and why."""

    path: Path
    kind: str  # run, incident, notebook, log
    incident: Incident
    verdict: Verdict
    record: RunRecord | None = None
    process: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    has_config: bool = False  # the config itself is private
    replays: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    bisects: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    steps: list[dict[str, str]] = field(default_factory=list)
    notebook: dict[str, Any] = field(default_factory=dict)  # its metadata
    unread: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether its status file, its verdict, a number that is not finite or a replay shows a failure."""
        return (
            (self.record is not None and self.record.status in ("failure", "died"))
            or self.verdict.status in FAILED
            or bool(self.verdict.causes)
            or self.nonfinite is not None
            or any(replay.get("fault") for _, replay in self.replays)
        )

    @property
    def cause(self) -> Cause | None:
        """The first cause of the verdict."""
        return self.verdict.causes[0] if self.verdict.causes else None

    @property
    def hung(self) -> bool:
        """Whether it stopped making progress, even if it still runs."""
        return self.verdict.status in ("hung", "suspected")

    @property
    def own(self) -> bool:
        """Whether this user recorded it on this machine: a folder of others may state any host, and name any file."""
        return provenance.is_own(self.process_file)

    @property
    def process_file(self) -> Path:
        """The file that says how it was started."""
        return self.path / "flight" / str(self.process.get("file"))

    @property
    def recorded(self) -> bool:
        """Whether there is a flight record, so that its last step can be run again."""
        return any((self.path / "flight").glob("ring-*.bin"))

    @property
    def last_step(self) -> int | None:
        """Return the optimizer step, from 0, during which it ended; None if no flight record shows it."""
        for path in ring_reader.find_rings(self.path) if self.recorded else ():
            with contextlib.suppress(OSError, ValueError, OcrlabError):
                now = ring_reader.read_ring(path).now
                if now is not None:
                    return now.number
        return None

    @property
    def nonfinite(self) -> tuple[int, str, str] | None:
        """Return line, column and value of the first number of metrics.csv that is NaN or infinite."""
        for line, row in enumerate(self.steps, 2):
            for name, text in row.items():
                if isinstance(text, str) and text.strip().lower() in ("nan", "inf", "-inf"):
                    return line, str(name), text.strip()
        return None

    @property
    def failure(self) -> fingerprint.Fingerprint:
        """Return the fingerprint of the failure: the same for the same failure in another run."""
        error, cause = (self.record.error, self.record.verdict) if self.record else (None, None)
        verdict = to_json(self.verdict) if self.verdict.status != "log" or self.verdict.causes else None
        log = self.incident.texts.get("log_tail.txt") or next(iter(self.incident.texts.values()), "")
        return fingerprint.fingerprint(error, verdict, cause, log)


def collect(path: Path) -> Sources:
    """Read what there is; raises DataError for anything else, and for links that lead out of the folder."""
    if not path.exists():
        need = "a run folder, its incident, an executed notebook, or a log"
        raise DataError(f"{path} is not there", need=need, missing=True)
    if path.is_dir() and path.name == INCIDENT and any((path.parent / name).is_file() for name in SENTINELS.values()):
        path = path.parent
    unread: list[str] = []
    if not path.is_dir():
        incident = load_input.read_incident(str(path))
        sources = Sources(path, "notebook" if path.suffix == ".ipynb" else "log", incident, _verdict(incident, None))
        if sources.kind == "notebook":
            notebook = _read_json(path, sources.unread)
            sources.notebook = fitting(notebook.get("metadata"), {"papermill": {"parameters": dict}}) or {}
            with contextlib.suppress(DataError):  # a third-party notebook, without a result
                sources.environment = fitting(results.load(path).environment, ENVIRONMENT) or {}
        return sources
    _refuse_links_out_of(path)
    incident, kind, inside = load_input.read_run_folder(path), "run", path / INCIDENT
    if not inside.is_dir() and (verdict := _read_json(path / "verdict.json", unread)):  # an incident folder by itself
        status = str(verdict.get("status") or incident.status)
        facts = load_input.read_facts(_read_json(path / "facts.json", unread))
        ending = load_input.read_ending(verdict)
        exit_code, signal = ending["exit_code"], ending["signal"]
        incident, kind, inside = Incident(status, exit_code, signal, incident.texts, "", facts), "incident", path
    record = None
    try:
        record = run_folder.status(path)
    except RunError:
        unread.append("no .SUCCESS, .FAILURE or .RUNNING: how it ended is known from its verdict and logs only")
    except OcrlabError as error:
        unread.append(str(error))
    return Sources(
        path,
        kind,
        incident,
        _verdict(incident, record),
        record,
        process=_process(path / "flight", unread),
        environment=fitting(_read_json(path / "environment.json", unread), ENVIRONMENT),
        has_config=(path / "config.yaml").is_file(),
        replays=_newest([*inside.glob("replay*.json"), *(path / "flight").glob("replay*.json")], unread),
        bisects=_newest(inside.glob("bisect*.json"), unread),
        steps=_read_metrics(path / "metrics.csv", unread),
        unread=unread,
    )


def _process(flight: Path, unread: list[str]) -> dict[str, Any]:
    """Return who ran it, and how it was started; a recorder in somebody's own program writes only the second."""
    process = _read_json(flight / "process.json", unread)
    program = {} if process.get("command") else _read_json(flight / program_info.NAME, unread)
    started = {"command": program.get("argv"), "folder": program.get("cwd"), "host": program.get("host")}
    file = "process.json" if process.get("command") else program_info.NAME
    return {**{name: value for name, value in started.items() if value}, **process, "file": file}


def _verdict(incident: Incident, record: RunRecord | None) -> Verdict:
    """Return the verdict, made again to include what a replay has shown since; none for a run that succeeded."""
    if record is not None and record.status == "success":
        return Verdict(status="log")
    try:
        return classify.classify(incident)
    except Exception as error:  # half a folder, a stranger's words: the rest of the report stands without it
        ended = incident.status, incident.exit_code, incident.signal
        return Verdict(None, *ended, missing=[f"the diagnosis failed: {error!r}"])


def _refuse_links_out_of(folder: Path) -> None:
    """Refuse a folder in which a file that is read is a link that leads out of it: others would see its target."""
    top = folder.resolve()
    for place in (folder, folder / INCIDENT, folder / "flight"):
        for file in place.iterdir() if place.is_dir() else ():
            is_read = place != folder or file.suffix in (".json", ".csv", ".txt", ".log", ".out", ".err", ".yaml", "")
            if file.is_symlink() and is_read and not file.resolve().is_relative_to(top):
                need = "a run folder that holds its own files"
                raise DataError(f"{file} is a link that leads out of {folder}", need=need)


def _read_json(path: Path, unread: list[str]) -> dict[str, Any]:
    """Return a JSON object, empty if there is none; a file that cannot be read is added to `unread`."""
    if not path.is_file():
        return {}
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError(f"{path.stat().st_size} bytes")
        content = json.loads(safe_read.read(path))
        if isinstance(content, dict):
            return content
        raise ValueError("no object")
    except (OSError, ValueError, RecursionError) as error:
        unread.append(f"{path.name} cannot be read ({type(error).__name__})")
        return {}


def _newest(paths: Iterable[Path], unread: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """Return the newest nine JSON records with their names, oldest first."""
    files = sorted((path for path in paths if path.is_file()), key=lambda path: path.stat().st_mtime)
    return [(path.name, fitting(content, TRIAL)) for path in files[-9:] if (content := _read_json(path, unread))]


def _read_metrics(path: Path, unread: list[str]) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    try:
        with safe_read.open_table(path) as file:
            return [row for row, _ in zip(csv.DictReader(file, restval=""), range(ROWS), strict=False)]
    except (OSError, csv.Error) as error:
        unread.append(f"metrics.csv cannot be read ({type(error).__name__})")
        return []


def number(text: object) -> float | None:
    """Return a finite number, None for anything else."""
    try:
        value = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class FailureStack:
    """Where it failed: the file of the incident that shows it, the frame, source around it, and the whole text."""

    file: str = ""
    frame: Frame | None = None
    source: str = ""
    why_none: str = ""
    whole: str = ""


def find_stack(texts: Mapping[str, str], own: bool) -> FailureStack:
    """Return the stack that shows most: the stacks of a hang, else the last traceback or dump of the logs.

    Source files are opened only of the user's `own` run: a stranger's folder may name any file.
    """
    frames: Sequence[Frame]
    if texts.get("stacks.txt", "").strip():
        name, whole = "stacks.txt", texts["stacks.txt"][:LONGEST].rstrip()
        stacks = log_records.parse_stacks(texts["stacks.txt"])
        every = [frame for stack in stacks for thread in stack.threads[:1] for frame in thread.frames if frame.line]
        frames = [frame for frame in every if not stack_patterns.is_library(frame)]
    else:
        logs = (name for name in texts if name not in ("traceback.txt", "kernel_log.txt"))
        failures = ((name, *last_failure(texts.get(name, ""))) for name in ("traceback.txt", *logs))
        name, whole, frames = next((failure for failure in failures if failure[1]), ("", "", ()))
    if not whole:
        return FailureStack()
    frame = next((frame for frame in frames if not stack_patterns.is_library(frame)), next(iter(frames), None))
    source, why = "", ""
    if frame is None or not frame.line:
        frame, why = None, "no frame of the program is in it"
    elif not own:
        why = "nothing proves that you recorded it on this machine, so that no source was opened"
    elif not (source := source_lines(Path(frame.file), frame.line)):
        why = "the source is not on this machine"
    return FailureStack(name, frame, source, why, whole)


def last_failure(text: str) -> tuple[str, Sequence[Frame]]:
    """Return the last traceback of a text, else its dump of a fatal signal, and the frames of it, innermost first."""
    lines = text.splitlines()
    records = log_records.read_records([Line(number, line) for number, line in enumerate(lines, 1)])
    traced = [exception for exception in records.exceptions if exception.traced]
    if traced:
        first, last = traced[-1].first, traced[-1].last
        frames: Sequence[Frame] = traced[-1].frames[::-1]
    elif records.threads:
        thread = next((thread for thread in records.threads if thread.fatal), records.threads[0])
        fatal = (number for number, line in enumerate(lines, 1) if line.startswith(FATAL))
        first, last, frames = next(fatal, records.threads[0].first), len(lines), thread.frames
    else:
        return "", ()
    whole = "\n".join(lines[first - 1 : last])
    return whole if len(whole) <= LONGEST else f"{whole[: LONGEST // 2]}\n...\n{whole[-LONGEST // 2 :]}", frames


def source_lines(path: Path, number: int) -> str:
    """Return the numbered lines around a line of a source file, marked by an arrow; empty if it is not there."""
    try:
        text = safe_read.read_text(path, SOURCE)
    except (OSError, ValueError):  # a name with a NUL
        return ""
    lines = text.splitlines() if path.suffix in (".py", ".pyx", ".ipy") or text.startswith("#!") else []
    if not 0 < number <= len(lines):
        return ""
    around = range(max(1, number - AROUND), min(len(lines), number + AROUND) + 1)
    return "\n".join(f"{'>' if n == number else ' '} {n:>5}  {lines[n - 1]}" for n in around)
