"""The run folders of a folder, each as a Run: how it ended, how good it became, and with which settings.

A run is read from at most five small files, in one pass, without an index that could be out of date. Whatever lies in a
folder, it becomes a Run: one that cannot be read is `broken`, with the reason.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone

from ocrlab import safe_read
from ocrlab.debug.flight_record import training_findings
from ocrlab.errors import ConfigError, DataError, RunError
from ocrlab.records import RunRecord, from_json
from ocrlab.reports.run_history import config_reader
from ocrlab.reports.run_history.config_reader import Settings
from ocrlab.reports.run_history.fingerprint import Fingerprint, fingerprint, output, stored_verdict
from ocrlab.run_folder import status_file
from ocrlab.run_folder.owner_process import alive

STATUSES = ("success", "diverged", "failed", "killed", "hung", "died", "running", "recorded", "broken")
FAILURES = ("failed", "killed", "hung", "died")
PARTS = frozenset(("config.yaml", "metrics.csv", "checkpoints", "flight", "incident"))  # of a run, besides sentinels
BEST = re.compile(r"best-.{1,200}-hmean(\d\.\d{4})\.ckpt")  # as `train.watcher` calls its best checkpoint
ROW = 2000  # bytes, more than a row of metrics.csv has
RING = re.compile(r"ring-\d+-\d+\.bin")  # as `flight.ring` calls its files
STAMP = re.compile(r"\d{8}-\d{6}-")  # how the name of a run folder begins
FOREVER = datetime.min.replace(tzinfo=timezone.utc)


@dataclass(frozen=True)
class Run:
    """One run folder; what is not known is None, "" or empty.

    `status` is one of STATUSES: those of a failure tell how the program ended, `died` that its process is gone and left
    no word, `diverged` that it ended well with a loss that is NaN or Inf to the end, `recorded` that there is a flight
    record only, of a program that keeps no sentinel, and `broken` that the folder cannot be read, for the reason in
    `why`. `metrics` are the final figures, or of a run without them the best of metrics.csv so far (`final` is False).
    Times are ISO 8601, UTC; `seconds` wall time.
    """

    path: str
    name: str
    status: str
    started: str = ""
    ended: str | None = None
    seconds: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    final: bool = False
    cause: str = ""
    why: str = ""
    failure: Fingerprint | None = None
    settings: Settings = field(default_factory=dict)
    problem: str = ""  # why there are no settings

    @property
    def hmean(self) -> float | None:
        """hmean@0.5, None where nothing was measured."""
        return self.metrics.get("hmean@0.5")


def list_runs(places: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = "runs") -> list[Run]:
    """Return the runs below a folder, or several, newest first; a place that is itself a run folder is that run.

    Raises RunError for a place that is not a folder.
    """
    if isinstance(places, str | os.PathLike):
        places = [places]
    runs: dict[str, Run] = {}
    with garbage_collection_paused():
        for place in places:
            for run in _runs(str(place)):
                runs.setdefault(run.path, run)
    return sorted(runs.values(), key=lambda run: (moment(run.started), run.name), reverse=True)


@contextlib.contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Keep Python from looking for cycles among a hundred thousand small objects that all stay: half of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def read(path: str) -> Run | None:
    """Return a folder as a Run, None if nothing in it belongs to a run; raises nothing."""
    name = os.path.basename(os.path.normpath(path)) or path

    def broken(why: str) -> Run:
        settings, problem = _settings(path)
        return Run(path, name, "broken", why=why, settings=settings, problem=problem)

    try:
        state, file, text = _sentinel(path)
        names = frozenset() if state else frozenset(os.listdir(path))
    except NotADirectoryError:
        return None
    except OSError as error:  # it may be another user's run
        return broken(error.strerror or str(error)) if os.path.isdir(path) else None
    if not state:
        if "flight" in names and names & PARTS <= {"flight", "incident"} and (begun := _recorded(path)) is not None:
            lost = _lost_loss(path)
            why = lost or "only a flight record: how it ended is unknown; ocrlab replay shows more"
            status = "diverged" if lost else "recorded"
            return Run(path, name, status, started=begun, why=why, problem="it has no config.yaml")
        if names & PARTS:
            return broken("it has no .RUNNING, .SUCCESS or .FAILURE")
        return broken("the folder is empty") if not names and STAMP.match(name) else None
    try:
        record = status_file.record(state, text, os.path.basename(file))
    except DataError as error:
        return broken(str(error))
    if state == "running" and not _lives(path):
        record = status_file.gone(record)
    settings, problem = _settings(path)
    metrics, final = record.metrics, bool(record.metrics)
    if not metrics and state != "success":
        metrics = read_best_checkpoint(path) or read_progress(f"{path}/metrics.csv")
    seconds = _seconds(path, record) if not final or "seconds" not in metrics else metrics["seconds"]
    status, failure, cause, why = record.status, None, "", ""
    if status in ("failure", "died"):
        verdict = stored_verdict(path)
        failure = fingerprint(record.error, verdict, record.verdict, output(path, record.error))
        cause, why = failure.cause, failure.title
        ended = (verdict or {}).get("status")
        status = "died" if status == "died" else ended if ended in ("killed", "hung") else "failed"
    if status == "success" and (why := _lost_loss(path)):
        status = "diverged"
    times = (record.started, record.ended, seconds)
    return Run(path, name, status, *times, metrics, final, cause, why, failure, settings, problem)


def _sentinel(path: str) -> tuple[str, str, bytes]:
    """Return status, file and content of the sentinel of a folder, empty without one; raises OSError."""
    for state, name in status_file.SENTINELS.items():
        try:
            file = f"{path}/{name}"
            return state, file, safe_read.read_small(file)
        except FileNotFoundError:  # suppress() is slow here
            continue
    return "", "", b""


def _recorded(path: str) -> str | None:
    """Return when the recorder in somebody's own program began, "" if unknown, None without a record of it."""
    with contextlib.suppress(OSError):
        if not any(RING.fullmatch(name) for name in os.listdir(f"{path}/flight")):
            return None
        with contextlib.suppress(OSError, DataError, ValueError, OverflowError):
            file = f"{path}/flight/program.json"
            begun = from_json(safe_read.read_small(file), source=file).get("time")
            if isinstance(begun, int | float):
                return datetime.fromtimestamp(begun, timezone.utc).isoformat(timespec="seconds")
        return ""
    return None


def _lost_loss(path: str) -> str:
    """Return that the loss of a recorded run was not finite to the end, empty where it was or nothing is known."""
    with contextlib.suppress(OSError, DataError):
        file = f"{path}/flight/learned-0.json"
        return training_findings.lost_loss(from_json(safe_read.read_small(file), source=file).get("lines"))
    return ""


def moment(time: str | None) -> datetime:
    """Return a time of a record; the beginning of time for one that is none, and UTC where it names no zone."""
    try:
        parsed = datetime.fromisoformat((time or "").replace("Z", "+00:00"))
    except ValueError:
        return FOREVER
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=timezone.utc)


def _runs(place: str) -> Iterator[Run]:
    """Yield the runs at or below a place; raises RunError."""
    try:
        with os.scandir(place) as entries:
            links = {entry.name: entry.is_symlink() for entry in entries}
    except OSError as error:
        need, gone = "a folder with run folders, or a run folder", isinstance(error, FileNotFoundError)
        raise RunError(f"{place} cannot be listed", got=error.strerror, need=need, missing=gone) from None
    before, here = "" if place == "." else f"{place.rstrip('/')}/", os.path.realpath(place)
    folders = [
        before + name
        for name, linked in links.items()  # a link to a run beside it, as `latest`, is not a second run
        if not name.startswith(".") and not (linked and os.path.dirname(os.path.realpath(f"{place}/{name}")) == here)
    ]
    if PARTS.union(status_file.SENTINELS.values()).intersection(links):
        folders = [place]
    yield from (run for folder in folders if (run := read(folder)) is not None)


def _lives(path: str) -> bool:
    """Return whether the process of a run that says "running" is there, and is still the same one."""
    file = f"{path}/flight/process.json"
    try:
        return alive(from_json(safe_read.read_small(file), source=file))
    except (OSError, DataError):
        return False


def _settings(path: str) -> tuple[Settings, str]:
    """Return the settings of a run, and why there are none."""
    file = f"{path}/config.yaml"
    try:
        return config_reader.parse(safe_read.read_small(file).decode("utf-8-sig"), file), ""
    except FileNotFoundError:
        return {}, "it has no config.yaml"
    except UnicodeDecodeError:
        return {}, f"{file} is not UTF-8"
    except (ConfigError, OSError) as error:
        return {}, str(error)


def read_best_checkpoint(path: str) -> dict[str, float]:
    """Return the best hmean@0.5 of a run by the name of its checkpoint, and its last step; empty where it has none.

    `train.watcher` writes it with four digits; a table of metrics has more, and takes ten times as long to read.
    """
    try:
        matches = [match for name in os.listdir(f"{path}/checkpoints") if (match := BEST.fullmatch(name))]
        head, tail = safe_read.ends(f"{path}/metrics.csv", ROW) if matches else (b"", b"")
    except OSError:
        return {}
    if not head.startswith(b"step,"):
        return {}
    last = tail[: tail.rfind(b"\n")].rpartition(b"\n")[2].partition(b",")[0]
    steps = {"steps": float(last)} if last.isdigit() else {}
    return {"hmean@0.5": max(float(match[1]) for match in matches), **steps}


def read_progress(path: str) -> dict[str, float]:
    """Return of a metrics.csv the step it has come to as `steps`, and the row of its best hmean@0.5."""
    try:
        text = safe_read.read_small(path).decode("utf-8", errors="replace")
    except OSError:
        return {}
    head, _, body = text[: text.rfind("\n") + 1].partition("\n")  # the last line may be torn
    columns = head.split(",")
    reached = _numbers(columns, body[:-1].rpartition("\n")[2]).get("step")
    best: dict[str, float] = {}
    if "hmean@0.5" in columns:
        at = columns.index("hmean@0.5")
        # A row of the training, and not of a validation, ends with empty cells: most rows, removed in C.
        rows = body.replace("," * (len(columns) - at) + "\n", "\0").split("\n")
        best = _numbers(columns, max((row.rpartition("\0")[2] for row in rows), key=lambda row: _cell(row, at)))
        best = best if "hmean@0.5" in best else {}
    best.pop("step", None)
    return best | ({"steps": reached} if reached is not None else {})


def _cell(row: str, at: int) -> float:
    """Return a cell of a row, -1 for anything but a number."""
    try:
        value = float(row.split(",", at + 1)[at])
    except (ValueError, IndexError):
        return -1.0
    return value if value == value else -1.0


def _numbers(columns: list[str], row: str) -> dict[str, float]:
    """Return the cells of a row that are numbers; none of a row with another number of cells."""
    cells = row.split(",")
    numbers: dict[str, float] = {}
    for name, text in zip(columns, cells, strict=False) if len(cells) == len(columns) else ():
        try:
            numbers[name] = float(text)
        except ValueError:  # suppress() is slow here
            continue
    return numbers


def _seconds(path: str, record: RunRecord) -> float | None:
    """Return how long a run took by its times; without an end, to now or to the last sign of it."""
    begun = moment(record.started)
    if begun is FOREVER:
        return None
    if record.ended:
        ended = moment(record.ended)
        return None if ended is FOREVER else max(0.0, (ended - begun).total_seconds())
    if record.status == "running":
        return max(0.0, (datetime.now(timezone.utc) - begun).total_seconds())
    try:
        last = os.stat(f"{path}/metrics.csv").st_mtime
    except OSError:
        return None
    return max(0.0, last - begun.timestamp())
