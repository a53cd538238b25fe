"""What was found out before: the verdict that `ocrlab run` stored in its notebook, the answer of `ocrlab replay`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ocrlab.debug.diagnosis import catalogue
from ocrlab.records import Cause, Evidence, RuledOut, Verdict

ENDINGS = ("failed", "killed", "hung", "suspected")
REPLAYED = {"nonfinite": "num.nonfinite", "target": "data.index_range", "index": "data.index_range"}
REPLAYED_CONFIDENCE = 0.9  # a step that was run again, and failed again
OURS = ("KernelDied", "CellStuck")  # errors that ocrlab itself puts into a notebook: its words, not the program's


def status(ending: Mapping[str, Any]) -> str:
    """Return how it ended, `log` where that is not known."""
    ending_status = ending.get("status")
    return ending_status if ending_status in ENDINGS else "log"


def exit_code(ending: Mapping[str, Any]) -> int | None:
    """Return the exit code of the kernel, None where it was not seen."""
    code = ending.get("exit_code")
    return code if isinstance(code, int) else None


def signal(ending: Mapping[str, Any]) -> str | None:
    """Return the name of the signal that ended it."""
    name = ending.get("signal")
    return name if isinstance(name, str) else None


def read_verdict(stored: object) -> Verdict | None:
    """Return a stored verdict that names causes of the catalogue; None for any other, so that it is made again."""
    if not isinstance(stored, Mapping) or not isinstance(stored.get("causes"), list):
        return None
    causes = [cause for row in stored["causes"] if (cause := _cause(row))]
    if not causes:
        return None
    ruled = [row for row in stored.get("ruled_out") or () if isinstance(row, Mapping)]
    symptom = stored.get("symptom")
    return Verdict(
        status=status(stored),
        exit_code=exit_code(stored),
        signal=signal(stored),
        symptom=symptom if isinstance(symptom, str) else None,
        causes=causes,
        ruled_out=[RuledOut(str(row.get("id")), str(row.get("why"))) for row in ruled],
        missing=[str(thing) for thing in stored.get("missing") or ()],
    )


def _cause(row: object) -> Cause | None:
    if not isinstance(row, Mapping) or row.get("id") not in catalogue.load().entries:
        return None
    entry = catalogue.load().entries[row["id"]]
    sure = row.get("confidence")
    lines = [_line(line) for line in row.get("evidence") or () if isinstance(line, Mapping)]
    return Cause(entry.id, float(sure) if isinstance(sure, int | float) else 0.0, lines, entry.experiment, entry.fix)


def _line(row: Mapping[str, Any]) -> Evidence:
    number = row.get("line")
    return Evidence(str(row.get("file")), number if isinstance(number, int) else None, str(row.get("text")))


def read_replay(run: Path) -> dict[str, Any] | None:
    """Return the newest answer of `ocrlab replay`, also one that has placed no fault; None where there is none."""

    def age(path: Path) -> tuple[int, int, str]:
        try:
            return path.stat().st_mtime_ns, len(path.name), path.name  # replay-10 after replay-9
        except OSError:
            return 0, 0, ""

    places = [run / "incident", run / "flight"]  # the latter of a run of which nobody has said that it failed
    for path in sorted((path for place in places for path in place.glob("replay*.json")), key=age, reverse=True):
        try:
            answer = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(answer, dict) and isinstance(answer.get("answer"), str):
            fault = answer.get("fault")
            name = path.name if path.parent == places[0] else f"flight/{path.name}"
            return {"file": name, "answer": answer["answer"], "fault": fault if isinstance(fault, dict) else None}
    return None


def add_replay(causes: list[Cause], facts: Mapping[str, Any]) -> list[Cause]:
    """Return the causes with the answer of a replay as evidence: of the cause that it shows, else of the first.

    One that has placed no fault is no evidence.
    """
    answer = facts.get("replay")
    fault = answer.get("fault") if isinstance(answer, Mapping) else None
    if not isinstance(answer, Mapping) or not isinstance(fault, Mapping):
        return causes
    shown_cause = REPLAYED.get(str(fault.get("kind")))
    if fault.get("kind") == "crash" and fault.get("signal") == "SIGSEGV":
        shown_cause = "native.segv"
    line = Evidence(str(answer["file"]), None, str(answer["answer"]))
    if shown_cause is None:
        return [replace(cause, evidence=[*cause.evidence, line]) if i == 0 else cause for i, cause in enumerate(causes)]
    entry = catalogue.load().entries[shown_cause]
    old = next(
        (cause for cause in causes if cause.id == shown_cause), Cause(shown_cause, 0.0, [], entry.experiment, entry.fix)
    )
    sure = max(REPLAYED_CONFIDENCE, *(cause.confidence for cause in causes)) if causes else REPLAYED_CONFIDENCE
    shown = replace(old, confidence=sure, evidence=[line, *old.evidence], experiment="")
    return [shown, *(cause for cause in causes if cause.id != shown_cause)]
