"""The sections of a bug report, one function each; each says so where it knows nothing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ocrlab._version import __version__
from ocrlab.debug.diagnosis import catalogue
from ocrlab.debug.diagnosis import unknown_cause as errors
from ocrlab.debug.diagnosis.verdict_files import sentence
from ocrlab.reports.bug_report import environment as machine
from ocrlab.reports.bug_report import reproduction as commands
from ocrlab.reports.bug_report import traceback as stacks
from ocrlab.reports.bug_report import trials
from ocrlab.reports.bug_report.inputs import Sources, number
from ocrlab.reports.bug_report.markdown import Block, Bullets, Checks, Code, Paragraph, Section, Table, code, ticked

SURE, POSSIBLE = 0.8, 0.4
TAIL = 25  # lines of output that are shown
UNKNOWN = "unknown"


def front(found: Sources, verified: Mapping[str, Any]) -> dict[str, object]:
    """Return the front matter: title, id, date, type, category, status, version, tags."""
    first = found.verdict.causes[0] if found.verdict.causes else None
    entry = catalogue.load().entries.get(first.id) if first else None
    ended = (found.record.ended or found.record.started) if found.record else ""
    tags = [first.id if first else "", found.verdict.symptom or "", found.verdict.signal or ""]
    tags += [found.name.kind, found.kind, str(found.incident.facts.get("platform") or "")]
    return {
        "title": title(found),
        "id": f"OCR-{found.name.id}",
        "date": ended[:19] or UNKNOWN,
        "type": "bug",
        "category": entry.family if entry else UNKNOWN,
        "status": status(found, verified),
        "version": __version__,
        "tags": list(dict.fromkeys(tag for tag in tags if tag)),
    }


def title(found: Sources) -> str:
    """Return what happened and where, in one line."""
    name = found.name
    first = found.verdict.causes[0] if found.verdict.causes else None
    entry = catalogue.load().entries.get(first.id) if first else None
    said = _exception(found) if not first or first.confidence < SURE else ""
    if said:
        what = said
    elif entry and first and first.confidence >= POSSIBLE:
        what = entry.title
    elif found.nonfinite and not found.verdict.causes:
        what = f"{found.nonfinite[1]} becomes {found.nonfinite[2]}"
    elif found.record and found.record.status == "died":
        what = "The process died and left no word"
    else:
        how = "It hung" if found.verdict.status in ("hung", "suspected") else "It failed"
        what = name.kind or found.verdict.signal or f"{how}, and the cause is unknown"
    return f"{what} in {name.place}" if name.place else what


def _exception(found: Sources) -> str:
    """Return the exception with its message as it stands in the stack; empty where there is none."""
    kind = found.name.kind
    lines = stacks.of(found.incident.texts, False).whole.splitlines()
    return next((line.strip()[:120] for line in reversed(lines) if kind and kind in line.partition(":")[0]), "")


def status(found: Sources, verified: Mapping[str, Any]) -> str:
    """Return how far this bug is: open, reproduced, not reproduced, or that there is none."""
    if not found.failed:
        return "no failure"
    if verified.get("runs"):
        return "reproduced" if verified["same"] else "not reproduced"
    return "reproduced" if any(told.get("reproduced") for _, told in found.replays) else "open"


def every(found: Sources, verified: Mapping[str, Any]) -> list[Section]:
    """Return all sections in their order."""
    return [
        summary(found),
        machine.section(found),
        Section("Steps to reproduce", commands.blocks(found, verified)),
        expected(found),
        stack(found),
        impact(found),
        hypotheses(found),
        ruled_out(found),
        fix(found),
        Section("Tests", trials.blocks(found, verified)),
        progress(found, verified),
        unknown(found),
    ]


def summary(found: Sources) -> Section:
    """What happened, in one sentence and a few facts."""
    if not found.failed:
        text = "Nothing here says that it failed."
        if found.record and found.record.status == "success":
            text = "This run ended with success: there is no failure to report."
        do = (
            "If it did something else than you expected, write down what, under Expected and actual, and share the run."
        )
        return Section("Summary", [Paragraph(text), Paragraph(do)])
    rows = [("how it ended", ending(found)), ("when", when(found)), ("how far", how_far(found))]
    rows += [("fingerprint", f"{code(found.name.id)}, the same for the same failure elsewhere")]
    first = found.verdict.causes[0] if found.verdict.causes else None
    if first:
        rows.insert(1, ("cause", f"{code(first.id)}, confidence {first.confidence:.2f}"))
    if found.kind in ("run", "notebook"):
        rows.append(("left in", code(found.path.name)))
    told = sentence(found.verdict) if found.verdict.status != "log" or found.verdict.causes else ending(found)
    return Section("Summary", [Paragraph(ticked(told)), Table(["", ""], [[name, text] for name, text in rows])])


def expected(found: Sources) -> Section:
    """What should have happened, which nobody has said, and what did."""
    wanted = "It ends by itself with exit status 0."
    if found.config:
        wanted = "The training ends by itself, with its last step and a checkpoint."
    if found.kind == "notebook":
        wanted = "Every cell runs to its end."
    blocks: list[Block] = [
        Paragraph(f"Expected: {wanted} Nobody wrote down more than that: what was expected beyond it is unknown."),
        Paragraph(f"Actual: {ending(found)}"),
    ]
    bad = found.nonfinite
    if bad:
        blocks.append(Paragraph(f"{code(bad[1])} is {code(bad[2])} from line {bad[0]} of {code('metrics.csv')} on."))
    name, text = _output(found)
    if text:
        blocks.append(Code("\n".join(text.rstrip().splitlines()[-TAIL:]), "text", f"The last lines of {name}"))
    else:
        blocks.append(Paragraph("What it printed is unknown: no output was kept."))
    return Section("Expected and actual", blocks)


def stack(found: Sources) -> Section:
    """The failing line with the lines around it, and the whole stack."""
    seen = stacks.of(found.incident.texts, found.here)
    if not seen.whole:
        return Section("Stack", [Paragraph("Unknown: no traceback and no stack was left.")])
    blocks: list[Block] = []
    if seen.frame:
        where = f"{seen.frame.file}:{seen.frame.line}"
        blocks.append(
            Paragraph(f"It failed in {code(seen.frame.function)}, {code(where)}, as {code(seen.file)} shows.")
        )
    if seen.source:
        blocks.append(Code(seen.source, "python"))
    else:
        blocks.append(Paragraph(f"The line itself is unknown: {seen.why_none}."))
    return Section("Stack", [*blocks, Code(seen.whole, "text", "The whole stack")])


def impact(found: Sources) -> Section:
    """What was lost, what is left, and how often it happened beside this run."""
    if not found.failed:
        return Section("Impact", [Paragraph("None is known.")])
    items = []
    last = found.path / "checkpoints" / "last.ckpt"
    if found.config and last.is_file():
        again = f"ocrlab train --resume {shlex.quote(found.path.name)}"
        items.append(f"A checkpoint is left: {code(again)} goes on from it.")
    elif found.config:
        items.append("No checkpoint was written: the whole run is lost.")
    silent = number(found.incident.facts.get("silent_seconds"))
    if silent and found.verdict.status in ("hung", "suspected"):
        items.append(f"It stood still for {silent:.0f} s.")
    same, others = trials.siblings(found)
    if others:
        items.append(f"{same} of the {others} other runs beside it failed in the same way.")
    items.append("Whom else it concerns is unknown.")
    return Section("Impact", [Bullets(items)])


def hypotheses(found: Sources) -> Section:
    """Every cause that is thought of, with how sure it is and the lines that speak for it."""
    rows = [_hypothesis(found, index) for index in range(len(found.verdict.causes))]
    rows += trials.hypotheses(found)
    if not rows:
        return Section("Hypotheses", [Paragraph("None: nothing that was seen speaks for any cause that is known.")])
    blocks: list[Block] = [Table(["hypothesis", "status", "confidence", "evidence"], rows)]
    first = found.verdict.causes[0] if found.verdict.causes else None
    if first and first.experiment:
        blocks += [Paragraph("What would settle it:"), Code(first.experiment)]
    return Section("Hypotheses", blocks)


def _hypothesis(found: Sources, index: int) -> list[str]:
    cause = found.verdict.causes[index]
    entry = catalogue.load().entries.get(cause.id)
    state = "supported" if cause.confidence >= SURE else "open"
    lines = [f"{code(_place(line.file, line.line))} {code(line.text[:200])}" for line in cause.evidence]
    told = "; ".join(lines) or "it looks the same as what was seen"
    return [f"{entry.title if entry else ''} {code(cause.id)}".strip(), state, f"{cause.confidence:.2f}", told]


def ruled_out(found: Sources) -> Section:
    """What was looked at and is not the reason."""
    rows = [[code(out.id), "refuted", ticked(out.why)] for out in found.verdict.ruled_out]
    rows += trials.refuted(found)
    if not rows:
        return Section("Ruled out", [Paragraph("Nothing was ruled out.")])
    return Section("Ruled out", [Table(["cause", "status", "why"], rows)])


def fix(found: Sources) -> Section:
    """What mends it, as far as the cause is known."""
    first = found.verdict.causes[0] if found.verdict.causes else None
    items = [
        f"Until it is mended: {code(cure)}, as {code(name)} found{tried}."
        for name, cure, tried in trials.until_mended(found)
    ]
    items += [
        f"In {code(name)} the step that failed had no fault with {code(cell)}." for name, cell in trials.helped(found)
    ]
    around = bool(items)
    if first and first.fix:
        sure = "" if first.confidence >= SURE else f"If it is {code(first.id)}, which is not certain: "
        items.append(f"{sure}{ticked(first.fix)}")
    items = items or ["Unknown, as the cause is."]
    if first and first.fix and around:
        items.append("The last of these was not tried, as far as anything here says.")
    elif not around:
        items.append("Not tried: nothing here says that any of it was.")
    return Section("Proposed fix", [Bullets(items)])


def progress(found: Sources, verified: Mapping[str, Any]) -> Section:
    """What is done and what is not."""
    causes = found.verdict.causes
    replay = found.verdict.status != "log" and next(
        (told for _, told in reversed(found.replays) if told.get("fault")), None
    )
    again = bool(verified.get("same")) or bool(replay)
    known = bool(causes) and causes[0].confidence >= SURE
    items = [
        (found.failed, "failure recorded"),
        (again, "reproduced" if again else f"reproduced: {code('--verify')} runs it again"),
        (bool(replay), "first fault placed: module, operator, sample"),
        (known, f"cause named with confidence {SURE:g} or more"),
        (bool(causes and causes[0].fix), "fix proposed"),
        (bool(trials.until_mended(found) or trials.helped(found)), "a way around it tried and shown to work"),
        (False, "fix tried"),
        (False, "regression test written"),
    ]
    return Section("Progress", [Checks(items)])


def unknown(found: Sources) -> Section:
    """What is not known, and what would have told it."""
    own = errors.own_error(found.verdict)  # which the summary has said
    missing = [text for text in found.verdict.missing if not (own and text.endswith(own))]
    items = [ticked(text) for text in (*missing, *found.unread)]
    if found.kind == "run" and not found.replays:
        replay = code(f"ocrlab replay {found.path.name}")
        why = f"{replay} was not run" if found.recorded else "there is no flight record to replay"
        items.append(f"Module, operator and sample of the first fault: {why}.")
    return Section("Not known", [Bullets(items or ["Nothing else is known to be missing."])])


def ending(found: Sources) -> str:
    """Return how it ended in words."""
    verdict, facts = found.verdict, found.incident.facts
    seconds = number(facts.get("run_seconds"))
    after = f" after {seconds:.1f} s" if seconds is not None else ""
    if found.record and found.record.status == "success":
        return "It ended with success."
    if verdict.status in ("hung", "suspected"):
        return f"It hung: nothing moved any more{after}."
    if verdict.signal:
        return f"It was killed by {verdict.signal}{after}."
    if verdict.exit_code is not None:
        return f"It ended with exit status {verdict.exit_code}{after}."
    if found.record and found.record.status == "running":
        return "It is still running."
    if found.record and found.record.status == "died":
        return "Its process is gone and left no word."
    error = found.record.error if found.record else None
    if error:
        return f"It ended with {code(str(error.get('type'))[:200])}{after}."
    return "How it ended is unknown."


def when(found: Sources) -> str:
    """Return when it began and ended."""
    if found.record is None or not found.record.started:
        return UNKNOWN
    try:
        began = datetime.fromisoformat(found.record.started)
        told = f"{began:%Y-%m-%d %H:%M:%S} UTC"
        if found.record.ended:
            told += f", for {(datetime.fromisoformat(found.record.ended) - began).total_seconds():.0f} s"
        return told
    except (ValueError, TypeError):
        return code(found.record.started[:40])


def how_far(found: Sources) -> str:
    """Return the last step that is known."""
    steps = [step for row in found.steps if (step := number(row.get("step"))) is not None]
    beat = found.incident.facts.get("heartbeat")
    told = [f"step {steps[-1]:.0f} in {code('metrics.csv')}"] if steps else []
    if isinstance(beat, Mapping) and beat.get("step") is not None:
        told.append(f"its last sign of life was in step {code(beat['step'])} ({code(beat.get('phase') or UNKNOWN)})")
    step = found.last_step
    told += [f"step {step} was being made, as the flight record says"] if step is not None else []
    return ", ".join(told) or UNKNOWN


def _output(found: Sources) -> tuple[str, str]:
    texts = found.incident.texts
    name = (
        "log_tail.txt"
        if texts.get("log_tail.txt")
        else next((name for name in texts if name not in ("stacks.txt", "kernel_log.txt", "traceback.txt")), "")
    )
    return name, texts.get(name, "")


def _place(file: str, line: int | None) -> str:
    return f"{file}:{line}" if line else file
