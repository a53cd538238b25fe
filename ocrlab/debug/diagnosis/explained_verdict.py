"""Attaches the explanation of a failure to the cause of its verdict that it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ocrlab.debug.diagnosis import catalogue, explanations, next_steps
from ocrlab.debug.diagnosis.explanations import failure as failures
from ocrlab.debug.diagnosis.explanations.known_values import known_values
from ocrlab.records import Cause, Evidence, Incident, Verdict

TEXTS = ("traceback.txt", "log_tail.txt")
ENDED = ("failed", "log")
# The causes that an explanation of the program's exception can belong to: it goes to the first of them.
EXPLAINED = (
    "build.abi",
    "build.cpu_only",
    "build.missing_package",
    "build.torchvision",
    "ckpt.corrupt",
    "ckpt.mismatch",
    "data.annotation",
    "data.corrupt",
    "data.index_range",
    "data.sample",
    "dist.misconfig",
    "dist.unused_params",
    "driver.none",
    "host.alloc_fail",
    "io.missing",
    "io.permission",
    "loader.pickling",
    "loss.ctc_length",
    "num.nonfinite",
    "user.amp",
    "user.autograd",
    "user.code",
    "user.compile",
    "user.device",
    "user.dtype",
    "user.shape",
)
OWN_CODE, NEW = "user.code", 0.82  # the cause where the explanation is all that is known, and its confidence


def explain_verdict(verdict: Verdict, incident: Incident) -> Verdict:
    """Return the verdict with the explanation at its first cause that fits; never raises.

    An explanation gives no cause more confidence. Where nothing else is known it is a cause of its own.
    """
    if incident.status not in ENDED or incident.signal:
        return verdict
    try:
        return _explain(verdict, incident)
    except Exception:  # a verdict without an explanation is better than none: logs and facts may be a stranger's
        return verdict


def _explain(verdict: Verdict, incident: Incident) -> Verdict:
    failure = failure_of(incident)
    if failure is None:
        return verdict
    values, stored = incident.facts.get("known_values"), incident.facts.get("explained")
    verdict = replace(verdict, values=list(map(str, values)) if isinstance(values, list) else known_values(failure))
    if isinstance(stored, Mapping):  # made when the values were there
        fitting: tuple[str, ...] = (str(stored.get("cause")), OWN_CODE)
        explained: dict[str, Any] = {name: str(stored[name]) for name in ("explanation", "fix")}
        explained["edit"] = read_edit(stored.get("edit"))
    else:
        result = explanations.explain(failure)
        if result is None:
            return verdict
        explanation = result[1]
        fitting, edit = EXPLAINED, explanation.edit.to_json() if explanation.edit else None
        explained = {"explanation": explanation.text, "fix": explanation.fix, "edit": edit}
    if not verdict.causes:
        verdict = _own_error(verdict, incident, failure)
    at = next((index for index, cause in enumerate(verdict.causes) if cause.id in fitting), None)
    if at is None:
        return verdict
    causes = list(verdict.causes)
    causes[at] = replace(causes[at], **explained)
    return replace(verdict, causes=causes)


def _own_error(verdict: Verdict, incident: Incident, failure: failures.Failure) -> Verdict:
    """Return the verdict with the program's own error as its cause, if that is what ended the program."""
    own = [text for text in verdict.missing if text.startswith((next_steps.OWN, next_steps.UNEXPLAINED))]
    if incident.facts.get("silent") or not any(failure.type.rpartition(".")[2] in text for text in own):
        return verdict  # the program continued after it, or it is the consequence of an error that was hidden
    first = failure.message.partition("\n")[0]
    lines = [
        Evidence(name, number, text.strip())
        for name, whole in incident.texts.items()
        for number, text in enumerate(whole.splitlines(), 1)
        if first and first in text and failure.type in text
    ]
    evidence = lines[-1:] or [Evidence("log_tail.txt", None, failure.message)]
    new = Cause(OWN_CODE, NEW, evidence, catalogue.load().entries[OWN_CODE].experiment)
    return replace(verdict, causes=[new], missing=[text for text in verdict.missing if text not in own])


def read_edit(stored: object) -> dict[str, Any] | None:
    """Return a stored edit; None for anything that lacks its file, line and texts."""
    whole = isinstance(stored, Mapping) and {"file", "line", "before", "after"} <= set(stored)
    return {name: stored[name] for name in ("file", "line", "before", "after")} if whole else None  # type: ignore[index]


def stored_facts(verdict: Verdict, incident: Incident) -> dict[str, Any]:
    """Return the facts of an incident as its folder keeps them: with the explanation, without the values it rests on.

    Values may hold anything that a program knows, and a folder may be shared.
    """
    facts = {name: value for name, value in incident.facts.items() if name not in ("values", "cells")}
    for cause in [cause for cause in verdict.causes if cause.explanation][:1]:
        facts["explained"] = {"cause": cause.id, "explanation": cause.explanation, "fix": cause.fix, "edit": cause.edit}
    return facts | ({"known_values": verdict.values} if verdict.values else {})


def failure_of(incident: Incident) -> failures.Failure | None:
    """Return the exception of an incident with its values, sources and cells, where they are known."""
    cells, values = incident.facts.get("cells"), incident.facts.get("values")
    if isinstance(cells, list):
        return failures.from_notebook(cells)
    texts = [incident.texts[name] for name in TEXTS if name in incident.texts] or list(incident.texts.values())[:1]
    failure = next((failure for text in texts if (failure := failures.from_log(text)) is not None), None)
    if failure is None:
        return None
    if isinstance(values, list) and all(isinstance(frame, dict) for frame in values):
        failure = failures.from_values(failure, values)
    return failures.with_sources(failure)
