"""What a replay has found, in one sentence, a table and a record."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from ocrlab.debug.replay import fault_match, variants
from ocrlab.debug.replay.recorded_step import RecordedStep
from ocrlab.debug.replay.trial import TrialResult
from ocrlab.records import SCHEMA, finite

NAMED = 4  # samples that a sentence names
PLACE = "phase path module call op node function inputs sources from_batch line micro".split()
WIDEST = 160  # characters of a table cell
RISEN = (3, 100.0)  # losses before a fault, and how many times larger than the least all of them are
EVERY = "every sample of the batch does it alone, so no single sample is the cause"
ELSEWHERE = "it comes again whichever sample of this batch is left: it need not be the fault of any"
AHEAD = (
    "its step and sample are not known, as the program fetches batches ahead of the steps that use them: put"
    " rec.batches around its prefetcher, not inside of it"
)
MESSAGE = 240  # characters of an exception's first line


def sentence(subject: RecordedStep, results: Sequence[TrialResult]) -> str:
    """Return the answer in one sentence: the first fault with place, sample and what makes it go away, or none."""
    fault = placed_fault(results)
    if fault is None:
        return _well(subject, results)
    is_ahead = bool(fault.get("ahead"))
    where = "a fault that comes again" if is_ahead else f"first fault at step {fault.get('step', subject.number)}"
    parts = [f"{where}, {_place(fault)}", *_what(fault)]
    parts += [f"the place is that of the replay {fault['placed']}"] if fault.get("placed") else []
    parts += [AHEAD] if is_ahead else [*_samples(fault, results), *_around(subject, fault), *_apart(results)]
    return "; ".join(parts) + "."


def _apart(results: Sequence[TrialResult]) -> list[str]:
    """Return what tells the fault apart: where it goes away, where it stays, and where another one comes."""
    shown, others = _shown(results), contrasting(results)
    fault = placed_fault(results) or {}
    well = [result.variant for result in others if result.fault is None]
    stays, otherwise = [], []
    for result in others:
        label = result.variant.label
        if result.fault is None or not label:
            continue
        what = next(iter(_what(result.fault)), str(result.fault.get("kind")))
        placed = bool(shown.variant.options.get("trace") and result.variant.options.get("trace"))
        if fault_match.same(fault, result.fault, placed=placed):
            stays.append(label)
        elif fault_match.is_race(result.fault):
            otherwise.append(f"a race between streams is seen {label}: {what}")
        else:
            path = result.fault.get("path") if placed else None
            where = f" in `{path}`" if path and path != fault.get("path") else ""
            otherwise.append(f"fails in another way {label}{where}: {what}")
    ways = [variant.label for variant in well if variant.label]
    gone = [f"does not happen {_joined(ways)}"] if ways else []
    remarks = dict.fromkeys(variant.remark for variant in well if variant.remark)
    return [*gone, *remarks, *([f"still happens {_joined(stays)}"] if stays else []), *otherwise]


def _joined(words: Sequence[str]) -> str:
    """Return `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _around(subject: RecordedStep, fault: Mapping[str, Any]) -> list[str]:
    """Return what the record shows of the steps before the fault: a loss that had risen, batches that were larger."""
    number, steps = int(fault.get("step", subject.number)), subject.flight.steps
    before = [step for step in steps if step.number < number]
    if fault.get("kind") == "nonfinite":
        losses = [(step.loss, step.number) for step in before if step.loss is not None and math.isfinite(step.loss)]
        (least, at), (last, newest) = min(losses, default=(0.0, 0)), (losses or [(0.0, 0)])[-1]
        many, times = RISEN  # of a least loss of 0 or below, a policy's, nothing follows
        if len(losses) > many and least > 0 and all(loss > times * least for loss, _ in losses[-many:]):
            return [f"the loss had risen from {least:.3g} at step {at} to {last:.3g} at step {newest}"]
    if fault.get("kind") == "exception":
        sizes = [len(step.samples) for step in before if step.samples]
        now = next((len(step.samples) for step in steps if step.number == number), 0)
        if sizes and 0 < now < (most := statistics.mode(sizes)):
            return [f"this batch has {now} sample{'s' if now > 1 else ''}, those before it had {most}"]
    return []


def decided(results: Sequence[TrialResult]) -> dict[str, Any] | None:
    """Return the fault of the run, None where no variant has one."""
    shown = _decisive(results)
    return None if shown is None else shown.fault


def _decisive(results: Sequence[TrialResult]) -> TrialResult | None:
    """Return the first variant that has a fault, of an earlier step where there is such a fault; where some variants
    diverged from the run, one that did not. What an altered variant shows is not the fault of the run.
    """
    shown = [result for result in results if result.fault is not None]
    shown = [result for result in shown if result.variant not in variants.ALTERED] or shown
    shown = [result for result in shown if not result.diverged] or shown

    def order(result: TrialResult) -> tuple[int, bool]:
        fault = result.fault or {}
        return int(fault.get("step", 0)), variants.is_carried_over(fault)

    return min(shown, key=order, default=None)


def placed_fault(results: Sequence[TrialResult]) -> dict[str, Any] | None:
    """Return the decided fault with the most specific place that there is for it: its own, or that of an altered
    variant in which the same step fails, with `placed` saying which.
    """
    shown = _decisive(results)
    if shown is None or shown.fault is None:
        return None
    fault = dict(shown.fault)
    if shown.variant.options.get("trace") and not variants.is_placed(fault):
        others = (result for result in contrasting(results) if result.fault is not None and result.variant.label)
        other = next((result for result in others if _places(fault, result)), None)
        if other is not None and other.fault is not None:
            fault |= {name: other.fault[name] for name in PLACE if other.fault.get(name)}
            fault["placed"] = other.variant.label
    return fault


def _places(fault: Mapping[str, Any], result: TrialResult) -> bool:
    """Return whether a variant shows where a fault without a place is: the same step fails there, in the same way, or
    with the end of a kernel of which a library has only said that it failed.
    """
    there, how = result.fault or {}, fault_match.of_cuda(fault)
    if not variants.is_placed(there) or result.failed_elsewhere or there.get("step") != fault.get("step"):
        return False
    if how in fault_match.LIBRARY and fault_match.ends_context(there):
        return True
    refused = how == "device-side assert" and fault_match.names_value(there)
    return refused or fault_match.same(fault, there, placed=False)


def _shown(results: Sequence[TrialResult]) -> TrialResult:
    """Return the variant that shows the fault, the first that says anything where none does."""
    first = next((result for result in results if not result.error_text), results[0])
    return _decisive(results) or first


def contrasting(results: Sequence[TrialResult]) -> list[TrialResult]:
    """Return the variants that say something about the fault: those after the one that showed it; and what had hidden
    it, where it is shown only by the program as it was.
    """
    shown = _decisive(results)
    if shown is None:
        return []
    index = next(place for place, result in enumerate(results) if result is shown)
    hid = [result for result in results[:index] if result.fault is None and not result.diverged]
    hid = hid if shown.variant.label == variants.AS_IT_WAS.label else []
    return [
        other
        for other in [*hid, *results[index + 1 :]]
        if not (other.error_text or other.per_sample or "trace_from" in other.variant.options)
        and other.variant.label != shown.variant.label
        and variants.says(other.variant, other.fault, shown.fault)
    ]


def culprits(result: TrialResult) -> tuple[list[str] | None, str]:
    """Return the samples that fail by themselves and how that is known; None where nothing follows."""
    bad, how = failing_samples(result)
    return [result.names_of(position) for position in bad] or None, how


def failing_samples(result: TrialResult) -> tuple[list[int], str]:
    """Return the positions of the samples that have the fault, and how that is known; none where nothing follows."""
    tried, everyone = result.per_sample, set(range(result.count))
    single = [part for part in tried if len(part["samples"]) == 1]
    bad = [part["samples"][0] for part in single if part["same"]]
    if bad and len(bad) == result.count:
        return [], EVERY
    if bad and not any(part["well"] for part in tried):
        return [], "its samples cannot be tried one by one: parts of the batch fail in another way"
    if bad:
        is_well = any(part["well"] for part in tried if set(part["samples"]) == everyone - set(bad))
        return bad, "does not happen without it" if is_well else ""
    without = [part for part in tried if len(part["samples"]) == result.count - 1 > 1]
    needed = [min(everyone - set(part["samples"])) for part in without if part["well"]]
    if 0 < len(needed) < len(without):
        return needed, "does not happen without it, but needs other samples too"
    return [], "no sample of the batch does it alone" if single else ""


def name_samples(fault: dict[str, Any], result: TrialResult) -> bool:
    """Write into a fault whose it is, as `result` shows it; tell whether samples are known now."""
    bad, _ = failing_samples(result)
    if bad:
        fault["samples"], fault["names"] = bad, [result.names_of(position) for position in bad]
    elif fault.get("samples") is None and result.count == 1 and variants.is_of_samples(fault):
        fault["samples"], fault["names"] = [0], [result.names_of(0)]
    return bool(bad)


def rows(results: Sequence[TrialResult]) -> list[tuple[str, str, str]]:
    """Return the table: variant, what came of it, seconds."""
    texts = [(result.variant.name, _outcome(result), f"{result.seconds:.1f}") for result in results]
    return [("run", "result", "s"), *((name, shorten(text, WIDEST, placeholder=" …"), s) for name, text, s in texts)]


def _outcome(result: TrialResult) -> str:
    if result.error_text:
        return f"not done: {result.error_text}"
    if result.per_sample:
        names, how = culprits(result)
        return ", ".join(filter(None, [f"{', '.join(names)} alone" if names else "", how]))
    return _losses(result) if result.fault is None else "; ".join([_place(result.fault), *_what(result.fault)])


def record(subject: RecordedStep, results: Sequence[TrialResult], answer: str, seconds: float) -> dict[str, Any]:
    """Return everything as a JSON-ready record."""
    fault = placed_fault(results)
    content = {
        "schema": SCHEMA,
        "run": subject.run.name,
        "step": subject.number,
        "answer": answer,
        "fault": fault,
        "reproduced": fault is not None,
        "equal": _equal(results),
        "samples": subject.samples,
        "cells": [
            {
                "cell": result.variant.name,
                "fault": result.fault,
                "steps": result.steps,
                "alone": result.per_sample,
                "not_done": result.error_text or None,
                "seconds": round(result.seconds, 2),
            }
            for result in results
        ],
        "warnings": warnings(subject, results),
        "seconds": round(seconds, 2),
    }
    return dict(finite(content))


def warnings(subject: RecordedStep, results: Sequence[TrialResult]) -> list[str]:
    """Return what may make the replay another computation than the run was, each once."""
    texts = [*subject.warnings, *(text for result in results for text in result.warnings)]
    if decided(results) is not None and _equal(results) is False:
        texts.append(_losses(_shown(results)).removeprefix("no fault, but "))
    if any(result.compiled for result in results):
        texts.append("the model is compiled, and was run without torch.compile: its losses need not be equal")
    return list(dict.fromkeys(texts))


def _place(fault: Mapping[str, Any]) -> str:
    """Return phase, module and operator: `forward, `decoder.fusion.0` (Conv2d 256->64), op `aten::convolution``."""
    path, module, line = str(fault.get("path") or ""), fault.get("module"), short(str(fault.get("line") or ""))
    where = f"`{line}`" if line else ""
    if path:
        times = f", call {fault['call']}" if fault.get("call") else ""
        where = f"`{path.replace('_orig_mod.', '')}`{f' ({module}{times})' if module else ''}"  # torch.compile's
    elif module:
        where = f"the model ({module})"
    last = fault.get("after") if not (fault.get("op") or fault.get("node")) else None
    inputs = fault.get("inputs") or []
    inputs = inputs if isinstance(inputs, list) else [inputs]
    widest = next((text for text in inputs if text.count(", ") > 1), next(iter(inputs), ""))
    is_surfaced = fault.get("kind") in ("crash", "hang") and fault.get("line") == fault.get("surfaced")
    parts = [
        str(fault.get("phase") or "forward"),
        where,
        f"node `{fault['node']}`" if fault.get("node") else "",
        f"op `{fault['op']}`" if fault.get("op") else "",
        f"after op `{last}`" if last else "",
        f"input {widest}" if widest else "",
        f"at `{line}`" if line and (path or module) and not is_surfaced else "",
    ]
    return ", ".join(filter(None, parts))


def _what(fault: Mapping[str, Any]) -> list[str]:
    """Return what went wrong there."""
    kind = fault.get("kind")
    went_on = ["the program continued after it"] if fault.get("swallowed") else []
    if kind == "nonfinite":
        place = f" at {list(fault['index'])}" if fault.get("index") else ""
        parts = [
            f"{fault.get('value', 'NaN')} in {fault.get('tensor')}{place}",
            fault.get("by"),
            f"written in the step by {short(str(fault['written']))}" if fault.get("written") else "",
            f"made while it was loaded by {short(str(fault['loaded_by']))}" if fault.get("loaded_by") else "",
            "before the step" if fault.get("before") and not str(fault.get("tensor")).startswith("input") else "",
        ]
        return [", ".join(filter(None, parts))]
    if kind in ("target", "index"):
        pixel = f" at pixel {tuple(fault['pixel'])}" if fault.get("pixel") else f" at {list(fault.get('index') or ())}"
        return [f"{fault.get('tensor')} is {fault.get('value')}{pixel}, allowed {fault.get('allowed')}", *went_on]
    if kind in ("crash", "hang"):
        how = "it never returned" if kind == "hang" else f"killed by {fault.get('signal') or 'a signal'}"
        if kind == "crash" and "status" in fault:
            status = fault["status"]
            how = (
                "the process ended there" if status is None else f"the process ended itself there, with status {status}"
            )
        is_place = fault.get("line") == fault.get("surfaced") and not (fault.get("path") or fault.get("module"))
        return [how + (f", in `{short(str(fault['surfaced']))}`" if fault.get("surfaced") and not is_place else "")]
    exception = str(fault.get("exception") or "")
    message = exception.partition(" Hint: ")[0].strip().splitlines()
    own = (" from weight", f" from {fault.get('path')} ")
    inputs = [
        source for source in fault.get("sources") or () if " from " in source and not any(o in source for o in own)
    ]
    return [
        *(shorten(first.rstrip("."), MESSAGE, placeholder=" …") for first in message[:1]),
        *([f"changed in place by {short(str(fault['changed']))}"] if fault.get("changed") else []),
        *([f"got {inputs[0]}"] if inputs and ("shape" in exception.lower() or "size" in exception) else []),
        *went_on,
    ]


def _samples(fault: Mapping[str, Any], results: Sequence[TrialResult]) -> list[str]:
    """Return whose fault it is, as far as that is known."""
    alone = next((result for result in results if result.per_sample), None)
    if alone is not None:
        names, how = culprits(alone)
        if not names:
            elsewhere = alone.partial or (fault.get("op") and not fault.get("from_batch"))
            return list(filter(None, [ELSEWHERE if how == EVERY and elsewhere else how]))
        how = how.replace("without it", "without them") if len(names) > 1 else how
        return [", ".join(filter(None, [_named(names), how]))]
    if fault.get("everyone"):
        return [f"no single sample is the cause: in the middle their values are {fault['everyone']:.2g} here"]
    names = fault.get("names")
    if not names:
        return [str(fault["batch"])] if fault.get("batch") else []
    if len(names) == next((result.count for result in results if result.fault is not None), 0) > 1:
        return ["all samples of the batch"]
    return [("probably " if fault.get("guessed") else "") + _named([str(name) for name in names])]


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    if names[0].startswith(("sample ", "row ")):  # of a stream: a position, not a name
        return ", ".join(names[:NAMED]) + more
    return f"sample{'s' if len(names) > 1 else ''} {', '.join(f'`{short(name)}`' for name in names[:NAMED])}{more}"


def _well(subject: RecordedStep, results: Sequence[TrialResult]) -> str:
    """Return the answer where no variant has a fault."""
    done = [result for result in results if not result.error_text]
    if not done:
        why = results[0].error_text.rstrip(".") if results else "no time"
        return f"step {subject.number} could not be run again: {why.removeprefix('ocrlab.errors.DataError: ')}."
    losses = _losses(done[0], done)
    times = f"{len(done)} time{'s' if len(done) > 1 else ''}"
    if subject.ended == "success" or subject.succeeded:
        return f"step {subject.number} was run again {times}: {losses}."
    error, where = subject.error
    strayed = next((result.error_text for result in results if result.failed_elsewhere), "")
    others = f"what came from another rank or from outside is not in it: ocrlab diagnose {short(str(subject.run))}"
    outside = [others if subject.world > 1 else "", strayed]
    if error and not any(outside):
        at = f", at `{short(where)}`" if where else ""
        outside = [f"the run ended with {shorten(error, MESSAGE, placeholder=' …').rstrip('.')}{at}"]
    what = f"step {subject.number} ran {times}, {losses}"
    if subject.step is None:  # it may be that there was none
        steps = done[0].steps
        what = f"the steps up to {steps[-1]['number']} ran" if steps else "what comes before the first step ran"
        what = f"{what} {times}, {losses if steps else 'no fault'}; nothing failed then"
    return f"could not be reproduced: {'; '.join(filter(None, [what, *outside]))}."


def _losses(result: TrialResult, others: Sequence[TrialResult] = ()) -> str:
    compared = [step for step in result.steps if step.get("equal") is not None]
    if not compared:
        return "no fault; the record holds no loss to compare with"
    wrong = next((step for step in compared if not step["equal"]), None)
    if wrong is None:
        last = compared[-1]
        many = f" in {len(compared)} steps" if len(compared) > 1 else ""
        return f"no fault, loss equal bit for bit{many} ({last['loss']!r} at step {last['number']})"
    same = [other for other in others if other.variant.name in (variants.TRACED.name, variants.AS_IT_WAS.name)]
    here = (wrong.get("number"), wrong.get("micro"))
    again = {s.get("loss") for other in same for s in other.steps if (s.get("number"), s.get("micro")) == here}
    why = "data, code or packages have changed, or an operator is not deterministic"
    if result.compiled:
        why = "the model is compiled, and was run without torch.compile"
    elif result.world > 1 and wrong is not compared[0]:
        why = f"as it must: gradients are those of one rank, and the run took the mean over {result.world}"
    elif len(again) > 1:
        of = f" (samples {', '.join(map(short, wrong['samples'][:NAMED]))})" if wrong.get("samples") else ""
        why = f"each time it is another one: the data of that step{of} or an operator is not deterministic"
    loss, recorded = ("not finite" if wrong[name] is None else repr(wrong[name]) for name in ("loss", "recorded"))
    text = f"no fault, but the loss differs from the record at step {wrong['number']}: {loss}, recorded {recorded}"
    return f"{text}; {why}"


def _equal(results: Sequence[TrialResult]) -> bool | None:
    equal = [step["equal"] for step in _shown(results).steps if step.get("equal") is not None] if results else []
    return all(equal) if equal else None


def agreement(results: Sequence[TrialResult]) -> str:
    """Return in words how far a replay that shows a fault is the same computation as the run; nothing where none is."""
    steps = _shown(results).steps if decided(results) is not None else []
    count = sum(step.get("equal") is not None for step in steps)
    if not count or not _equal(results):
        return ""
    losses = f"all {count} losses" if count > 1 else "the loss"
    return f"up to the failure, {losses} equal{'' if count > 1 else 's'} the recording, bit for bit"


def short(text: str) -> str:
    """Return a path or source line with the folder that we are in left out."""
    here = f"{Path.cwd()}{os.sep}"
    return text.replace(here, "")
