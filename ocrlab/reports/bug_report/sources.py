"""What a bug report is filled from: a run folder, an incident, an executed notebook or a log, read as a stranger's.

The stack of a failure is the program's own line with the lines around it, and the whole as it was written.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ocrlab import run_folder
from ocrlab.debug.diagnosis import classify, load_input, log_records
from ocrlab.debug.diagnosis.hangs import stack_patterns
from ocrlab.debug.diagnosis.log_records import TRACEBACK, read_frame
from ocrlab.debug.flight_record import program_info, ring_reader
from ocrlab.errors import DataError, OcrlabError, RunError
from ocrlab.hardware.processes.stack_types import Frame
from ocrlab.records import Cause, Incident, RunRecord, Verdict, to_json
from ocrlab.reports.notebooks import results
from ocrlab.reports.run_history import fingerprint
from ocrlab.run_folder.status_file import SENTINELS

LARGEST = 8 * 2**20  # bytes of a file that is read whole
ROWS = 200_000  # of metrics.csv
INCIDENT = "incident"
FAILED = ("failed", "killed", "hung", "suspected")
SIBLINGS = 300  # runs in the same folder that are read
AROUND = 4  # lines of source above and below the failing one
LONGEST = 12_000  # characters of a stack
SOURCE = 2 * 2**20  # bytes of a source file that is opened
FATAL = re.compile(r"^(?:Fatal Python error|Current thread 0x|Thread 0x)", re.MULTILINE)
CELL = re.compile(r"^\s*Cell In ?\[\d+\], line \d+|^-{20,}$", re.MULTILINE)
ENDS = re.compile(r"^(?:\w+\.){0,6}\w{1,80}(?::.*)?$")


@dataclass
class Sources:
    """Everything that is known; `unread` says what could not be read, and why."""

    path: Path
    kind: str  # run, incident, notebook, log
    incident: Incident
    verdict: Verdict
    record: RunRecord | None = None
    process: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    config: str | None = None  # only whether there is one: it is private
    replays: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    bisects: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    steps: list[dict[str, str]] = field(default_factory=list)
    notebook: dict[str, Any] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether anything says that it failed: its sentinel, its verdict, or a number that is none."""
        return (
            (self.record is not None and self.record.status in ("failure", "died"))
            or self.verdict.status in FAILED
            or bool(self.verdict.causes)
            or self.nonfinite is not None
        )

    @property
    def cause(self) -> Cause | None:
        """The first cause of the verdict."""
        return self.verdict.causes[0] if self.verdict.causes else None

    @property
    def hung(self) -> bool:
        """Whether it made no progress any more, also where it still runs."""
        return self.verdict.status in ("hung", "suspected")

    @property
    def here(self) -> bool:
        """Whether this machine is the one that it ran on."""
        return self.process.get("host") == socket.gethostname()

    @property
    def recorded(self) -> bool:
        """Whether there is a flight record, so that its last step can be run again."""
        return next(iter((self.path / "flight").glob("ring-*.bin")), None) is not None

    @property
    def last_step(self) -> int | None:
        """Return the optimiser step, from 0, that was being made when it ended; None where no flight record says it."""
        for path in ring_reader.find_rings(self.path) if self.recorded else ():
            with contextlib.suppress(OSError, ValueError, OcrlabError):
                now = ring_reader.read_ring(path).now
                if now is not None:
                    return now.number
        return None

    @property
    def nonfinite(self) -> tuple[int, str, str] | None:
        """Return line, column and value of the first number of metrics.csv that is NaN or infinite."""
        for number, row in enumerate(self.steps, 2):
            for name, text in row.items():
                if isinstance(text, str) and text.strip().lower() in ("nan", "inf", "-inf"):
                    return number, str(name), text.strip()
        return None

    @property
    def name(self) -> fingerprint.Fingerprint:
        """Return the fingerprint of the failure: the same for the same failure in another run."""
        error = self.record.error if self.record else None
        verdict = to_json(self.verdict) if self.verdict.status != "log" or self.verdict.causes else None
        log = self.incident.texts.get("log_tail.txt") or next(iter(self.incident.texts.values()), "")
        return fingerprint.fingerprint(error, verdict, self.record.verdict if self.record else None, log)

    def siblings(self) -> tuple[int, int]:
        """Return how many runs in the same folder failed in the same way, and how many there are."""
        if self.kind != "run" or self.record is None:
            return 0, 0
        same = count = 0
        own = self.path.resolve()
        for path in sorted(own.parent.glob("*/"))[-SIBLINGS:]:
            if path != own and any((path / name).is_file() for name in SENTINELS.values()):
                count += 1
                with contextlib.suppress(OcrlabError, OSError):
                    other = fingerprint.run_fingerprint(path)
                    same += other is not None and other.id == self.name.id
        return same, count


@dataclass(frozen=True)
class Stack:
    """Where it failed: the file of the incident that says so, the frame, source around it, and the whole text."""

    file: str = ""
    frame: Frame | None = None
    source: str = ""
    why_none: str = "the source is not on this machine"
    whole: str = ""


def collect(path: Path) -> Sources:
    """Read what there is; raises DataError for what is nothing of the kind, or leads out of its folder."""
    if not path.exists():
        need = "a run folder, its incident, an executed notebook, or a log"
        raise DataError(f"{path} is not there", need=need, missing=True)
    if path.is_dir() and path.name == INCIDENT and any((path.parent / name).is_file() for name in SENTINELS.values()):
        path = path.parent
    if not path.is_dir():
        return _file(path)
    _stay_inside(path)
    incident = load_input.read_run_folder(path)
    unread: list[str] = []
    own_verdict = _json(path / "verdict.json", unread) if not (path / INCIDENT).is_dir() else None
    if own_verdict:  # an incident folder of its own
        status, facts = str(own_verdict.get("status") or incident.status), _json(path / "facts.json", unread) or {}
        exit_code, signal = load_input.exit_code(own_verdict), load_input.signal(own_verdict)
        incident = Incident(status, exit_code, signal, incident.texts, "", facts)
    sources = Sources(path, "incident" if own_verdict else "run", incident, Verdict(), unread=unread)
    sources.record = _record(path, unread)
    sources.verdict = _verdict(incident, sources.record)
    sources.process = _process(path / "flight", unread)
    sources.environment = _json(path / "environment.json", unread) or {}
    sources.config = "config.yaml" if (path / "config.yaml").is_file() else None
    inside = path if own_verdict else path / INCIDENT
    sources.replays = _numbered([*inside.glob("replay*.json"), *(path / "flight").glob("replay*.json")], unread)
    sources.bisects = _numbered(list(inside.glob("bisect*.json")), unread)
    sources.steps = _metrics(path / "metrics.csv", unread)
    return sources


def _process(flights: Path, unread: list[str]) -> dict[str, Any]:
    """Return who ran it, and how it was started; a recorder in somebody's own program writes the second alone."""
    process = _json(flights / "process.json", unread) or {}
    program = {} if process.get("command") else _json(flights / program_info.NAME, unread) or {}
    started = {"command": program.get("argv"), "folder": program.get("cwd"), "host": program.get("host")}
    return {**{name: value for name, value in started.items() if value}, **process}


def _file(path: Path) -> Sources:
    incident = load_input.read_incident(str(path))
    sources = Sources(path, "notebook" if path.suffix == ".ipynb" else "log", incident, Verdict())
    sources.verdict = _verdict(incident, None)
    if sources.kind == "notebook":
        notebook = _json(path, sources.unread) or {}
        about = notebook.get("metadata")
        sources.notebook = about if isinstance(about, dict) else {}
        with contextlib.suppress(DataError):  # somebody else's notebook, which has no result
            environment = results.load(path).environment if notebook else None
            sources.environment = environment if isinstance(environment, dict) else {}
    return sources


def _verdict(incident: Incident, record: RunRecord | None) -> Verdict:
    """Return the verdict, made again so that it knows what a replay has found since; a run that did well has none."""
    if record is not None and record.status == "success":
        return Verdict(status="log")
    try:
        return classify.classify(incident)
    except Exception as error:  # half a folder, a stranger's words: the rest of the report stands without it
        return Verdict(
            None, incident.status, incident.exit_code, incident.signal, missing=[f"the diagnosis failed: {error!r}"]
        )


def _record(path: Path, unread: list[str]) -> RunRecord | None:
    try:
        return run_folder.status(path)
    except RunError:
        unread.append("no .SUCCESS, .FAILURE or .RUNNING: how it ended is known from its verdict and logs only")
    except OcrlabError as error:
        unread.append(str(error))
    return None


def _stay_inside(path: Path) -> None:
    """Refuse a folder in which what is read is a link that leads out of it: it would be shown to others."""
    top = path.resolve()
    for folder in (path, path / INCIDENT, path / "flight"):
        for file in folder.iterdir() if folder.is_dir() else ():
            read_here = folder != path or file.suffix in (".json", ".csv", ".txt", ".log", ".out", ".err", ".yaml", "")
            if file.is_symlink() and read_here and not file.resolve().is_relative_to(top):
                raise DataError(
                    f"{file} is a link that leads out of {path}", need="a run folder that holds its own files"
                )


def _json(path: Path, unread: list[str]) -> dict[str, Any] | None:
    """Return a JSON object, None where there is none; what cannot be read is said."""
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError(f"{path.stat().st_size} bytes")
        content = json.loads(path.read_bytes())
        if isinstance(content, dict):
            return content
        raise ValueError("no object")
    except (OSError, ValueError, RecursionError) as error:
        unread.append(f"{path.name} cannot be read ({type(error).__name__})")
        return None


def _numbered(paths: list[Path], unread: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """Return JSON records with their names, oldest first."""
    files = sorted((path for path in paths if path.is_file()), key=lambda path: path.stat().st_mtime)
    return [(path.name, content) for path in files[-9:] if (content := _json(path, unread)) is not None]


def _metrics(path: Path, unread: list[str]) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    try:
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
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


def find_stack(texts: Mapping[str, str], here: bool) -> Stack:
    """Return the stack that tells most: of a hang its stacks, else the last traceback or dump of the logs.

    Source files are opened only where the program ran `here`: a stranger's folder may name any file.
    """
    if texts.get("stacks.txt", "").strip():
        return _hang(texts["stacks.txt"], here)
    for name in ("traceback.txt", *(name for name in texts if name not in ("traceback.txt", "kernel_log.txt"))):
        whole = last_traceback(texts.get(name, ""))
        if whole:
            return _with_source(name, _innermost(whole), whole, here)
    return Stack()


def last_traceback(text: str) -> str:
    """Return the last traceback of a text, with the exception that ends it; else the dump of a fatal signal."""
    at = text.rfind(TRACEBACK)
    if at < 0:
        match = FATAL.search(text) or CELL.search(text)
        return text[match.start() :][:LONGEST].rstrip() if match else ""
    at = text.rfind("\n", 0, at) + 1
    lines: list[str] = []
    for line in text[at:].splitlines():
        lines.append(line)
        ended = len(lines) > 1 and line.strip() and not line.startswith((" ", "\t")) and ENDS.match(line)
        if ended and TRACEBACK not in line:
            break
    whole = "\n".join(lines)
    return whole if len(whole) <= LONGEST else f"{whole[: LONGEST // 2]}\n...\n{whole[-LONGEST // 2 :]}"


def _innermost(whole: str) -> Frame | None:
    """Return the innermost frame of the program's own, else of anybody's; a dump lists the newest call first."""
    frames = [frame for line in whole.splitlines() if (frame := read_frame(line))]
    if TRACEBACK in whole:
        frames.reverse()
    return next((frame for frame in frames if not stack_patterns.is_library(frame)), next(iter(frames), None))


def _hang(text: str, here: bool) -> Stack:
    frames = [
        frame for stack in log_records.parse_stacks(text) for thread in stack.threads[:1] for frame in thread.frames
    ]
    own = next((frame for frame in frames if frame.line and not stack_patterns.is_library(frame)), None)
    return _with_source("stacks.txt", own, text[:LONGEST].rstrip(), here)


def _with_source(name: str, frame: Frame | None, whole: str, here: bool) -> Stack:
    if frame is None or not frame.line:
        return Stack(name, None, "", "no frame of the program is in it", whole)
    if not here:
        return Stack(
            name, frame, "", "it is not known that it ran on this machine, so that no source was opened", whole
        )
    source = source_lines(Path(frame.file), frame.line)
    return Stack(name, frame, source, "" if source else Stack.why_none, whole)


def source_lines(path: Path, number: int) -> str:
    """Return the lines around a line of a source file, numbered, an arrow at that one; empty where it is not there."""
    try:
        if path.suffix not in (".py", ".pyx", ".ipy", "") or not path.is_file() or path.stat().st_size > SOURCE:
            return ""
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    if not 0 < number <= len(lines):
        return ""
    first, end = max(1, number - AROUND), min(len(lines), number + AROUND)
    return "\n".join(f"{'>' if n == number else ' '} {n:>5}  {lines[n - 1]}" for n in range(first, end + 1))
