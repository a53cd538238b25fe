"""Stacks in an incident or pasted into a log, as hits of the kind of hang that they show."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ocrlab.debug.diagnosis import log_lines, parse_stacks
from ocrlab.debug.diagnosis.evidence import Hit
from ocrlab.debug.diagnosis.hangs import hang_cause
from ocrlab.records import Evidence, Incident

STACKS, LOG = "stacks.txt", "log_tail.txt"
DUMP = re.compile(
    r"^(?:Process \d+: |Thread (?:0x[0-9a-f]+|\d+)[^\n]{0,60}(?:\((?:idle|active)|most recent call first))",
    re.MULTILINE,
)
MARKS = ("Thread ", "Process ", "\x1b", "&")  # of a dump, and of what may be written within its words
MOST = 3  # lines of one kind of hang


def hits(incident: Incident) -> list[Hit]:
    """Return what the stacks of an incident speak for; what the watcher saw itself counts as well."""
    hits_ = _measured(incident.facts.get("hang"))
    for name in sorted(incident.texts, key=lambda name: name != STACKS):
        if not any(mark in incident.texts[name] for mark in MARKS):
            continue
        lines = log_lines.opened(incident.texts[name])
        text = log_lines.bare("\n".join(line.text for line in lines))
        if DUMP.search(text) and (name == STACKS or "Fatal Python error" not in text):
            return hits_ + _shown(name, text, [line.number for line in lines], incident)
    return hits_


def _measured(fact: Any) -> list[Hit]:
    """Return the hits of the fact `hang`, which the watcher wrote when it took the stacks."""
    if not isinstance(fact, dict) or not fact.get("id"):
        return []
    sure, why = float(fact.get("confidence") or 0.5), str(fact.get("why") or "")
    lines = [Evidence(STACKS, row.get("line"), str(row.get("text", ""))) for row in fact.get("evidence") or ()]
    return _hits(str(fact["id"]), sure, [Evidence("facts", None, why), *lines])


def _shown(name: str, text: str, numbers: list[int], incident: Incident) -> list[Hit]:
    facts = incident.facts if name != STACKS else {"log": incident.texts.get(LOG, ""), **incident.facts}
    causes = hang_cause.rank_hang_causes(parse_stacks.parse(text), facts, text, file=name)
    return [
        hit for cause in causes for hit in _hits(cause.id, cause.confidence, _placed(cause.evidence, name, numbers))
    ]


def _placed(lines: list[Evidence], name: str, numbers: list[int]) -> list[Evidence]:
    """Return lines of a text with the numbers that they have in their file."""
    return [
        replace(line, line=numbers[line.line - 1])
        if line.file == name and line.line is not None and 0 < line.line <= len(numbers)
        else line
        for line in lines
    ]


def _hits(cause: str, sure: float, lines: list[Evidence]) -> list[Hit]:
    strength = "decisive" if sure >= 0.8 else "likely"
    return [Hit(cause, sure, sure, strength, line, "its stack says so") for line in lines[:MOST] if line.text]
