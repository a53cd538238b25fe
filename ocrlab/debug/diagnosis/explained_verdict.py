"""Attaches the explanation of a failure to the cause of its verdict that it belongs to."""

from __future__ import annotations

from dataclasses import replace

from ocrlab.debug.diagnosis import catalogue, explanations, next_steps
from ocrlab.debug.diagnosis.explanations import failure as failures
from ocrlab.records import Cause, Evidence, Incident, Verdict

TEXTS = ("traceback.txt", "log_tail.txt")
ENDED = ("failed", "log")
# Of each module of explanations: the causes that its explanations can belong to.
CAUSES = {
    "shapes": ("user.shape", "user.code", "data.sample", "ckpt.mismatch"),
    "labels": ("user.code", "data.index_range", "data.annotation", "data.sample", "user.shape", "user.dtype"),
    "types_and_devices": ("user.dtype", "user.device", "user.code", "data.annotation", "data.sample"),
    "autograd": ("user.autograd", "user.code", "user.device", "user.dtype"),
    "samples": ("data.sample", "data.index_range", "data.annotation", "loader.pickling", "io.missing", "user.code"),
    "checkpoints": ("ckpt.mismatch", "ckpt.corrupt", "build.cpu_only", "driver.none", "user.code"),
    "model_code": ("user.code", "user.dtype", "user.shape", "user.autograd", "data.sample", "build.abi"),
    "notebook_state": ("user.code", "user.shape", "user.dtype", "data.index_range", "data.sample", "build.abi"),
}
OWN_CODE, NEW = "user.code", 0.82  # the cause where the explanation is all that is known, and its confidence


def explain_verdict(verdict: Verdict, incident: Incident) -> Verdict:
    """Return the verdict with the explanation at its first cause that fits; never raises.

    An explanation gives no cause more confidence. Where nothing else is known it is a cause of its own.
    """
    if incident.status not in ENDED or incident.signal:
        return verdict
    failure = failure_of(incident)
    result = explanations.explain(failure) if failure is not None else None
    if failure is None or result is None:
        return verdict
    module, explanation = result
    fitting = CAUSES[module]
    edit = explanation.edit.to_json() if explanation.edit else None
    own = [text for text in verdict.missing if text.startswith((next_steps.OWN, next_steps.UNEXPLAINED))]
    if not verdict.causes:
        if incident.facts.get("silent") or not any(failure.type.rpartition(".")[2] in text for text in own):
            return verdict  # the program went on after it, or it is the consequence of an error that was hidden
        line = next((e for e in _evidence(incident, failure)), Evidence("log_tail.txt", None, failure.message))
        new = Cause(OWN_CODE, NEW, [line], catalogue.load().entries[OWN_CODE].experiment)
        verdict = replace(verdict, causes=[new], missing=[text for text in verdict.missing if text not in own])
    at = next((index for index, cause in enumerate(verdict.causes) if cause.id in fitting), None)
    if at is None:
        return verdict
    causes = list(verdict.causes)
    causes[at] = replace(causes[at], explanation=explanation.text, fix=explanation.fix, edit=edit)
    return replace(verdict, causes=causes)


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


def _evidence(incident: Incident, failure: failures.Failure) -> list[Evidence]:
    """Return the line of the message."""
    first = failure.message.partition("\n")[0]
    return [
        Evidence(name, number, text.strip())
        for name, whole in incident.texts.items()
        for number, text in enumerate(whole.splitlines(), 1)
        if first and first in text and failure.type in text
    ][-1:]
