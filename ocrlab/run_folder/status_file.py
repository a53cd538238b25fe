"""The sentinel of a run folder, `.RUNNING` then `.SUCCESS` or `.FAILURE`: written whole, read with suspicion.

There is one; where a dying disk leaves two, the earlier one in `SENTINELS` counts.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any

from ocrlab import safe_read
from ocrlab.errors import DataError, RunError
from ocrlab.records import RunRecord, from_json, to_json
from ocrlab.run_folder.atomic_files import read_json, write_json
from ocrlab.run_folder.owner_process import alive

LARGEST = 10**300  # a larger number of a stranger's JSON has no float
MOST_METRICS, LONGEST = 200, 100  # figures, and characters of a name or a time, that are read of a stranger's record
SENTINELS = {"success": ".SUCCESS", "failure": ".FAILURE", "running": ".RUNNING"}


def status(path: Path | str) -> RunRecord:
    """Read the sentinel of a run folder; `.RUNNING` of a process that is gone reads as status "died".

    Raises RunError where there is no sentinel, DataError where it cannot be read or is newer than this ocrlab.
    """
    path = Path(path)
    for name, file in SENTINELS.items():
        try:
            text = safe_read.read(path / file)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise DataError(f"{path / file} cannot be read", got=str(error)) from error
        run = record(name, text, str(path / file))
        return run if name != "running" or alive(running_process(path)) else gone(run)
    raise RunError(f"{path} is not a run folder", need="a folder with .RUNNING, .SUCCESS or .FAILURE")


def record(name: str, text: bytes, source: str) -> RunRecord:
    """Return what a sentinel of any age or origin says; the name of the file decides its status.

    Raises DataError where it cannot be read or is newer than this ocrlab.
    """
    fields = from_json(text, source=source)
    metrics, error, ended, verdict = (fields.get(key) for key in ("metrics", "error", "ended", "verdict"))
    numbers = {
        str(key)[:LONGEST]: math.nan if value is None else float(value)
        for key, value in islice(metrics.items() if isinstance(metrics, dict) else (), MOST_METRICS)
        if value is None or isinstance(value, float) or (isinstance(value, int) and abs(value) < LARGEST)
    }
    return RunRecord(
        status=name,
        started=str(fields.get("started") or "")[:LONGEST],
        ended=None if ended is None else str(ended)[:LONGEST],
        metrics=numbers,
        error=error if isinstance(error, dict) else None,
        verdict=None if verdict is None else str(verdict)[:LONGEST],
    )


def gone(running: RunRecord) -> RunRecord:
    """Return the record of a run that says "running", and whose process is not there any more."""
    error = {"type": "died", "message": "the process is gone and left no word", "where": None}
    return replace(running, status="died", error=error)


def list_runs(runs: Path | str) -> list[tuple[Path, RunRecord]]:
    """Return every run below `runs` with its record, oldest first; a sentinel that cannot be read becomes an error."""
    records: list[tuple[Path, RunRecord]] = []
    for path in sorted(Path(runs).glob("*/")):
        name = next((name for name, file in SENTINELS.items() if (path / file).exists()), None)
        if name is None:
            continue
        try:
            record = status(path)
        except (DataError, RunError) as error:
            record = RunRecord(name, "", error={"type": "unreadable", "message": str(error), "where": None})
        records.append((path, record))
    return sorted(records, key=lambda pair: (pair[1].started, pair[0].name))


def newest(runs: Path | str, status: str = "success") -> Path | None:
    """Return the run folder with this status that started last, or None."""
    return next((path for path, record in reversed(list_runs(runs)) if record.status == status), None)


def now() -> str:
    """Return the time as ISO 8601 in UTC with microseconds, so that the order of texts is the order of times."""
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")


def close(path: Path, record: RunRecord) -> tuple[bool, list[str]]:
    """Write a final sentinel, then remove the others; returns whether it is written, and the problems met."""
    problems, final = [], path / SENTINELS[record.status]
    try:
        path.mkdir(parents=True, exist_ok=True)  # somebody may have removed it
        write_json(final, to_json(record), private=True)
    except OSError as error:
        problems.append(f"{final.name} cannot be written ({error})")
        if record.status == "failure":  # a rename needs no space: on a full disk at least the name is right
            with contextlib.suppress(OSError):
                (path / SENTINELS["running"]).rename(final)
        return False, problems
    for name in SENTINELS.values():
        try:
            if name != final.name:
                (path / name).unlink(missing_ok=True)
        except OSError as error:
            problems.append(f"{name} cannot be removed ({error})")
    return True, problems


def running_process(path: Path) -> dict[str, Any]:
    """Return the `process.identity` that a run left in its folder; pid and host None where it did not."""
    return {"pid": None, "host": None} | read_json(path / "flight" / "process.json")
