"""What `ocrlab run` stored in the notebook that it executed: how it ended, and the verdict made at that moment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ocrlab.diagnose import catalogue
from ocrlab.records import Cause, Evidence, RuledOut, Verdict

ENDINGS = ("failed", "killed", "hung", "suspected")
OURS = ("KernelDied", "CellStuck")  # errors that ocrlab itself puts into a notebook: its words, not the program's


def status(ending: Mapping[str, Any]) -> str:
    """Return how it ended, `log` where that is not known."""
    told = ending.get("status")
    return told if told in ENDINGS else "log"


def exit_code(ending: Mapping[str, Any]) -> int | None:
    """Return the exit code of the kernel, None where it was not seen."""
    code = ending.get("exit_code")
    return code if isinstance(code, int) else None


def signal(ending: Mapping[str, Any]) -> str | None:
    """Return the name of the signal that ended it."""
    name = ending.get("signal")
    return name if isinstance(name, str) else None


def verdict(found: object) -> Verdict | None:
    """Return a stored verdict that names causes of the catalogue; None for any other, so that it is made again."""
    if not isinstance(found, Mapping) or not isinstance(found.get("causes"), list):
        return None
    causes = [cause for row in found["causes"] if (cause := _cause(row))]
    if not causes:
        return None
    ruled = [row for row in found.get("ruled_out") or () if isinstance(row, Mapping)]
    symptom = found.get("symptom")
    return Verdict(
        status=status(found),
        exit_code=exit_code(found),
        signal=signal(found),
        symptom=symptom if isinstance(symptom, str) else None,
        causes=causes,
        ruled_out=[RuledOut(str(row.get("id")), str(row.get("why"))) for row in ruled],
        missing=[str(thing) for thing in found.get("missing") or ()],
    )


def _cause(row: object) -> Cause | None:
    if not isinstance(row, Mapping) or row.get("id") not in catalogue.load().entries:
        return None
    entry = catalogue.load().entries[row["id"]]
    sure = row.get("confidence")
    lines = [_line(one) for one in row.get("evidence") or () if isinstance(one, Mapping)]
    return Cause(entry.id, float(sure) if isinstance(sure, int | float) else 0.0, lines, entry.experiment, entry.fix)


def _line(row: Mapping[str, Any]) -> Evidence:
    number = row.get("line")
    return Evidence(str(row.get("file")), number if isinstance(number, int) else None, str(row.get("text")))
