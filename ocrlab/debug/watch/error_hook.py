"""Errors that a program hides: how injected_error_hook.py gets onto its PYTHONPATH, and what it reported."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ocrlab.hardware.processes import exit_codes
from ocrlab.redaction import clean
from ocrlab.run_folder import fail_safe

INSIDE = Path(__file__).with_name("injected_error_hook.py")
VALUES = Path(__file__).with_name("failing_values.py")
HOOK, MODULE = "hook", "_ocrlab_inside"  # a folder of the scratch folder, and what Python imports from it
ENDING = "-errors.txt"  # as injected_error_hook.py has it
ERRORS, OURS = "errors.txt", "ocrlab: "  # of an incident; begins each line between its tracebacks
CUT = re.compile(r"multiprocessing/resource_sharer\.py\", line \d+, in detach")  # the sender of a tensor has gone
UNEXPECTED = re.compile(r"DataLoader worker \(pid\(s\) ([\d, ]{1,200})\) exited unexpectedly")
LONGEST = 1 << 20  # bytes of a process's file that are read
# Python imports one sitecustomize: after ours comes the one that it would have imported. Any Python may read this.
FIRST = f'''import os, sys
_here = os.path.dirname(os.path.abspath(__file__))
if sys.version_info >= (3, 10) and "{MODULE}" not in sys.modules:
    try:
        import {MODULE}
    except Exception:
        try:
            import time, traceback
            _line = {{"kind": "failed", "pid": os.getpid(), "time": time.time(), "where": "import"}}
            with open(os.path.join(os.environ["OCRLAB_WATCH"], "%d{ENDING}" % os.getpid()), "a") as _file:
                _file.write(repr(dict(_line, says=traceback.format_exc())) + chr(10))
        except Exception:
            pass
sys.path[:] = [_place for _place in sys.path if os.path.abspath(_place or os.curdir) != _here]
_ours = sys.modules.pop("sitecustomize", None)
try:
    import sitecustomize
except ImportError as _error:
    if getattr(_error, "name", "sitecustomize") != "sitecustomize":
        raise
finally:
    sys.modules.setdefault("sitecustomize", _ours)
'''


def environment(scratch: Path, user: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make each Python of a program report its errors; {} if the hook cannot be written."""
    place, before = scratch / HOOK, user.get("PYTHONPATH")
    try:
        place.mkdir()
        shutil.copyfile(INSIDE, place / f"{MODULE}.py")
        shutil.copyfile(VALUES, place / "_ocrlab_values.py")
        (place / "sitecustomize.py").write_text(FIRST, encoding="ascii")
    except OSError:
        return {}
    return {"PYTHONPATH": f"{place}{os.pathsep}{before}" if before else str(place)}


def read(scratch: Path, home: Path | None = None) -> list[dict[str, Any]]:
    """Return what the processes of a program have written of their errors, the oldest first; never raises.

    What our own code inside of the program failed at goes to ocrlab-errors.log of the run folder `home`.
    """
    records: list[dict[str, Any]] = []
    for file in sorted(scratch.glob(f"*{ENDING}")):
        with contextlib.suppress(OSError), file.open("rb") as opened:
            lines = opened.read(LONGEST).decode("utf-8", "replace").splitlines()
            records += [record for record in map(_record, lines) if record]
    for record in records:
        if record["kind"] == "failed":
            where = f"inside of process {record['pid']}, {record.get('where')}"
            fail_safe.append_own_error(home, where, str(record.get("says")))
    return sorted(records, key=lambda record: float(record["time"]))


def hidden_errors(
    records: Sequence[dict[str, Any]], log: str, main: int, home: Path | None = None
) -> tuple[dict[str, str], dict[str, str]]:
    """Return errors.txt where a program that failed has hidden its first error; never raises.

    Else the second dict may hold the fact `silent`: which handler may have taken that error, by the source.
    """
    with fail_safe.guarded(home, "watch: hidden errors"):
        from ocrlab.debug.diagnosis import hidden_errors

        text = hidden_errors.errors_text(records, log, main)
        if text:
            return {ERRORS: text}, {}
        handler = hidden_errors.suspected_handler(records, log, main)
        return {}, {"silent": handler} if handler else {}
    return {}, {}


def failing_values(records: Sequence[dict[str, Any]], log: str, main: int) -> dict[str, Any]:
    """Return the fact `values`: what the lines of the exception that ended the program used.

    Where a data worker or a spawned rank passed the exception on, the values are those of that process.
    """
    described = [record for record in records if record.get("values") and record.get("chain")]
    shown = [record for record in described if str(record["chain"][0]["says"]).partition("\n")[0][:200] in log]
    passed_on = "in DataLoader worker process" in log or "terminated with the following error" in log
    worker = [record for record in shown if record["pid"] != main and passed_on]
    ended = [record for record in shown if record["kind"] == "uncaught" and record["pid"] == main]
    ended += [record for record in shown if record["kind"] == "uncaught"]
    chosen = worker[-1:] or ended[:1]
    # The file stays as it is: a home folder in its path is redacted, and the source would not be found.
    frames = chosen[0]["values"] if chosen else []
    return {"values": [{**_without_secrets(frame), "file": frame["file"]} for frame in frames]} if frames else {}


def _without_secrets(value: Any, name: str = "") -> Any:
    """Return described values without the texts that redaction would change, by their own name or by their form."""
    if isinstance(value, dict):
        return {key: _without_secrets(item, name if key == "text" else str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_secrets(item, name) for item in value]
    if isinstance(value, str) and name and clean(f"{name}={value}") != f"{name}={value}":
        return ""
    return value


def hid(incident: Path) -> str:
    """Return in a sentence what had hidden the first error, of an incident that is written; empty if nothing had."""
    with contextlib.suppress(OSError):
        lines = (incident / ERRORS).read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line.removeprefix(OURS).rstrip(":") for line in lines if line.startswith(OURS)), "")
    return ""


def swallowed(records: Sequence[dict[str, Any]], home: Path | None = None) -> str:
    """Return a sentence about errors that a successful program has swallowed again and again; never raises."""
    with fail_safe.guarded(home, "watch: swallowed errors"):
        from ocrlab.debug.diagnosis import hidden_errors

        return hidden_errors.most_swallowed_error(records)
    return ""


def exits(records: Sequence[dict[str, Any]], log: str) -> list[dict[str, Any]]:
    """Return how the data workers ended whose end is all that the output reports, as in `Incident.facts`."""
    named = {int(number) for match in UNEXPECTED.finditer(log) for number in re.findall(r"\d+", match[1])}
    is_cut = CUT.search(log) is not None  # a worker that leaves ends the others by SIGTERM: no evidence
    codes = {pid: code for record in records if record["kind"] == "children" for pid, code in record["ended"]}
    return [
        {
            "pid": pid,
            "role": "worker",
            "exit_code": code if code >= 0 else None,
            "signal": exit_codes.signal_of_exit(code),
        }
        for pid, code in codes.items()
        if pid in named or (is_cut and code < 0 and code != -signal.SIGTERM)
    ]


def _record(line: str) -> dict[str, Any]:
    try:
        record = ast.literal_eval(line)
        return record if isinstance(record, dict) and {"kind", "pid", "time"} <= set(record) else {}
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {}
