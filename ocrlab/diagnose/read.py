"""What somebody hands in (log, run folder, executed notebook, stdin) as an Incident; never all of a huge file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ocrlab.diagnose import exits
from ocrlab.diagnose.window import window
from ocrlab.errors import DataError
from ocrlab.records import Incident, from_json

LOGS = ("*.log", "log.txt", "logs.txt", "output.txt", "stdout.txt", "stderr.txt", "*.out", "*.err", "slurm-*")
SENTINELS = (".FAILURE", ".RUNNING", ".SUCCESS")
WATCHERS = ("Killed", "Failed", "Hung")  # types of the records that `ocrlab watch` writes: no exception of the program
RESULT = "application/vnd.ocrlab.result+json"


def incident(path: str) -> Incident:
    """Return the incident at a path, `-` for stdin; raises DataError where there is nothing to read."""
    if path == "-":
        return Incident(texts={"log_tail.txt": window(sys.stdin.buffer)})
    place = Path(path)
    try:
        if place.is_dir():
            return folder(place)
        if place.suffix == ".ipynb":
            return notebook(place)
        with place.open("rb") as file:
            return Incident(texts={place.name: window(file)})
    except OSError as error:
        raise DataError(f"{path} cannot be read", got=str(error), need="a log, a run folder or a notebook") from error


def folder(place: Path) -> Incident:
    """Return the incident of a run folder: its failure record, incident/ and flight/, else the logs that lie in it."""
    texts: dict[str, str] = {}
    old = next((_record(place / name) for name in SENTINELS if (place / name).is_file()), {})
    error = old.get("error")
    if isinstance(error, dict) and error.get("type") not in WATCHERS:
        told = f"{error.get('type', 'Error')}: {error.get('message', '')}"
        texts["traceback.txt"] = str(error.get("traceback") or told)
    inside = place / "incident"
    for name in ("log_tail.txt", "traceback.txt", "stacks.txt", "kernel_log.txt"):
        found = next((file for file in (inside / name, place / name) if file.is_file()), None)
        if found:
            with found.open("rb") as file:
                texts[name] = window(file)
    logs = [file for pattern in LOGS for file in sorted(place.glob(pattern)) if file.is_file()]
    for file_ in dict.fromkeys([*logs, *sorted((place / "flight").glob("*stack*.txt"))][:8]):
        with file_.open("rb") as file:
            texts.setdefault("stacks.txt" if "stack" in file_.name else file_.name, window(file))
    if not texts and not old:
        raise DataError(f"{place} holds no log", need=f"a run folder, or a file such as {', '.join(LOGS[:4])}")
    return _known(inside / "verdict.json", texts, old)


def _known(verdict: Path, texts: dict[str, str], record: dict[str, Any]) -> Incident:
    """Return an incident with the status, exit code and signal that an earlier verdict or the sentinel holds."""
    before = _record(verdict) if verdict.is_file() else {}
    status = str(before.get("status") or ("failed" if record.get("status") == "failure" else "log"))
    code, signal = before.get("exit_code"), before.get("signal")
    measured = verdict.with_name("facts.json")
    facts = _record(measured) if measured.is_file() else before.get("facts")
    return Incident(
        status=status,
        exit_code=code if isinstance(code, int) else None,
        signal=signal if isinstance(signal, str) else exits.name(code if isinstance(code, int) else None),
        texts=texts,
        facts=facts if isinstance(facts, dict) else {},
    )


def _record(file: Path) -> dict[str, Any]:
    """Return a JSON file of a run; empty where a crash has torn it, so that the logs beside it still speak."""
    try:
        return from_json(file.read_bytes(), source=str(file))
    except DataError as error:
        if "newer" in error.what:
            raise
        return {}


def notebook(place: Path) -> Incident:
    """Return the incident of an executed notebook: outputs and errors of its cells, in their order."""
    try:
        cells = json.loads(place.read_bytes()).get("cells", [])
    except (ValueError, AttributeError) as error:
        raise DataError(f"{place} is not a notebook", got=str(error), need="an executed .ipynb file") from error
    parts = []
    for cell in cells if isinstance(cells, list) else []:
        for output in cell.get("outputs", ()) if isinstance(cell, dict) else ():
            parts += _output(output)
    return Incident(texts={place.name: "\n".join(parts)})


def _output(output: dict[str, Any]) -> list[str]:
    if output.get("output_type") == "error":
        return [*map(str, output.get("traceback") or ()), f"{output.get('ename')}: {output.get('evalue')}"]
    found = output.get("data")
    data: dict[str, Any] = found if isinstance(found, dict) else {}
    text = output.get("text") or data.get("text/plain") or ""
    parts = ["".join(map(str, text)) if isinstance(text, list) else str(text)]
    if RESULT in data:
        parts.append(json.dumps(data[RESULT])[:4000])
    return [part.rstrip("\n") for part in parts if part]
