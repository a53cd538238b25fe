"""The sections of a bug report, one function each; each says so where it knows nothing."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ocrlab._version import __version__
from ocrlab.debug.diagnosis import catalogue, next_steps
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


def front(sources: Sources, verification: Mapping[str, Any]) -> dict[str, object]:
    """Return the front matter: title, id, date, type, category, status, version, tags."""
    first = sources.verdict.causes[0] if sources.verdict.causes else None
    entry = catalogue.load().entries.get(first.id) if first else None
    ended = (sources.record.ended or sources.record.started) if sources.record else ""
    tags = [first.id if first else "", sources.verdict.symptom or "", sources.verdict.signal or ""]
    tags += [sources.name.kind, sources.kind, str(sources.incident.facts.get("platform") or "")]
    return {
        "title": title(sources),
        "id": f"OCR-{sources.name.id}",
        "date": ended[:19] or UNKNOWN,
        "type": "bug",
        "category": entry.family if entry else UNKNOWN,
        "status": status(sources, verification),
        "version": __version__,
        "tags": list(dict.fromkeys(tag for tag in tags if tag)),
    }


def title(sources: Sources) -> str:
    """Return what happened and where, in one line."""
    name = sources.name
    first = sources.verdict.causes[0] if sources.verdict.causes else None
    entry = catalogue.load().entries.get(first.id) if first else None
    exception = _exception(sources) if not first or first.confidence < SURE else ""
    if exception:
        what = exception
    elif entry and first and first.confidence >= POSSIBLE:
        what = entry.title
    elif sources.nonfinite and not sources.verdict.causes:
        what = f"{sources.nonfinite[1]} becomes {sources.nonfinite[2]}"
    elif sources.record and sources.record.status == "died":
        what = "The process died and left no word"
    else:
        how = "It hung" if sources.verdict.status in ("hung", "suspected") else "It failed"
        what = name.kind or sources.verdict.signal or f"{how}, and the cause is unknown"
    return f"{what} in {name.place}" if name.place else what


def _exception(sources: Sources) -> str:
    """Return the exception with its message as it stands in the stack; empty where there is none."""
    kind = sources.name.kind
    lines = stacks.of(sources.incident.texts, False).whole.splitlines()
    return next((line.strip()[:120] for line in reversed(lines) if kind and kind in line.partition(":")[0]), "")


def status(sources: Sources, verification: Mapping[str, Any]) -> str:
    """Return how far this bug is: open, reproduced, not reproduced, or that there is none."""
    if not sources.failed:
        return "no failure"
    if verification.get("runs"):
        return "reproduced" if verification["same"] else "not reproduced"
    return "reproduced" if any(record.get("reproduced") for _, record in sources.replays) else "open"


def every(sources: Sources, verification: Mapping[str, Any]) -> list[Section]:
    """Return all sections in their order."""
    return [
        summary(sources),
        machine.section(sources),
        Section("Steps to reproduce", commands.blocks(sources, verification)),
        expected(sources),
        stack(sources),
        impact(sources),
        hypotheses(sources),
        ruled_out(sources),
        fix(sources),
        Section("Tests", trials.blocks(sources, verification)),
        progress(sources, verification),
        unknown(sources),
    ]


def summary(sources: Sources) -> Section:
    """What happened, in one sentence and a few facts."""
    if not sources.failed:
        text = "Nothing here says that it failed."
        if sources.record and sources.record.status == "success":
            text = "This run ended with success: there is no failure to report."
        do = (
            "If it did something else than you expected, write down what, under Expected and actual, and share the run."
        )
        return Section("Summary", [Paragraph(text), Paragraph(do)])
    rows = [("how it ended", ending(sources)), ("when", when(sources)), ("how far", how_far(sources))]
    rows += [("fingerprint", f"{code(sources.name.id)}, the same for the same failure elsewhere")]
    first = sources.verdict.causes[0] if sources.verdict.causes else None
    if first:
        rows.insert(1, ("cause", f"{code(first.id)}, confidence {first.confidence:.2f}"))
    if sources.kind in ("run", "notebook"):
        rows.append(("left in", code(sources.path.name)))
    outcome = (
        sentence(sources.verdict) if sources.verdict.status != "log" or sources.verdict.causes else ending(sources)
    )
    return Section("Summary", [Paragraph(ticked(outcome)), Table(["", ""], [[name, text] for name, text in rows])])


def expected(sources: Sources) -> Section:
    """What should have happened, which nobody has said, and what did."""
    wanted = "It ends by itself with exit status 0."
    if sources.config:
        wanted = "The training ends by itself, with its last step and a checkpoint."
    if sources.kind == "notebook":
        wanted = "Every cell runs to its end."
    blocks: list[Block] = [
        Paragraph(f"Expected: {wanted} Nobody wrote down more than that: what was expected beyond it is unknown."),
        Paragraph(f"Actual: {ending(sources)}"),
    ]
    bad = sources.nonfinite
    if bad:
        blocks.append(Paragraph(f"{code(bad[1])} is {code(bad[2])} from line {bad[0]} of {code('metrics.csv')} on."))
    name, text = _output(sources)
    if text:
        blocks.append(Code("\n".join(text.rstrip().splitlines()[-TAIL:]), "text", f"The last lines of {name}"))
    else:
        blocks.append(Paragraph("What it printed is unknown: no output was kept."))
    return Section("Expected and actual", blocks)


def stack(sources: Sources) -> Section:
    """The failing line with the lines around it, and the whole stack."""
    stack = stacks.of(sources.incident.texts, sources.here)
    if not stack.whole:
        return Section("Stack", [Paragraph("Unknown: no traceback and no stack was left.")])
    blocks: list[Block] = []
    if stack.frame:
        where = f"{stack.frame.file}:{stack.frame.line}"
        blocks.append(
            Paragraph(f"It failed in {code(stack.frame.function)}, {code(where)}, as {code(stack.file)} shows.")
        )
    if stack.source:
        blocks.append(Code(stack.source, "python"))
    else:
        blocks.append(Paragraph(f"The line itself is unknown: {stack.why_none}."))
    return Section("Stack", [*blocks, Code(stack.whole, "text", "The whole stack")])


def impact(sources: Sources) -> Section:
    """What was lost, what is left, and how often it happened beside this run."""
    if not sources.failed:
        return Section("Impact", [Paragraph("None is known.")])
    items = []
    last = sources.path / "checkpoints" / "last.ckpt"
    if sources.config and last.is_file():
        again = f"ocrlab train --resume {shlex.quote(sources.path.name)}"
        items.append(f"A checkpoint is left: {code(again)} goes on from it.")
    elif sources.config:
        items.append("No checkpoint was written: the whole run is lost.")
    silent = number(sources.incident.facts.get("silent_seconds"))
    if silent and sources.verdict.status in ("hung", "suspected"):
        items.append(f"It stood still for {silent:.0f} s.")
    same, others = trials.siblings(sources)
    if others:
        items.append(f"{same} of the {others} other runs beside it failed in the same way.")
    items.append("Whom else it concerns is unknown.")
    return Section("Impact", [Bullets(items)])


def hypotheses(sources: Sources) -> Section:
    """Every cause that is thought of, with how sure it is and the lines that speak for it."""
    rows = [_hypothesis(sources, index) for index in range(len(sources.verdict.causes))]
    rows += trials.hypotheses(sources)
    if not rows:
        return Section("Hypotheses", [Paragraph("None: nothing that was seen speaks for any cause that is known.")])
    blocks: list[Block] = [Table(["hypothesis", "status", "confidence", "evidence"], rows)]
    first = sources.verdict.causes[0] if sources.verdict.causes else None
    if first and first.experiment:
        blocks += [Paragraph("What would settle it:"), Code(first.experiment)]
    return Section("Hypotheses", blocks)


def _hypothesis(sources: Sources, index: int) -> list[str]:
    cause = sources.verdict.causes[index]
    entry = catalogue.load().entries.get(cause.id)
    state = "supported" if cause.confidence >= SURE else "open"
    lines = [f"{code(_place(line.file, line.line))} {code(line.text[:200])}" for line in cause.evidence]
    evidence = "; ".join(lines) or "it looks the same as what was seen"
    return [f"{entry.title if entry else ''} {code(cause.id)}".strip(), state, f"{cause.confidence:.2f}", evidence]


def ruled_out(sources: Sources) -> Section:
    """What was looked at and is not the reason."""
    rows = [[code(out.id), "refuted", ticked(out.why)] for out in sources.verdict.ruled_out]
    rows += trials.refuted(sources)
    if not rows:
        return Section("Ruled out", [Paragraph("Nothing was ruled out.")])
    return Section("Ruled out", [Table(["cause", "status", "why"], rows)])


def fix(sources: Sources) -> Section:
    """What mends it, as far as the cause is known."""
    first = sources.verdict.causes[0] if sources.verdict.causes else None
    items = [
        f"Until it is mended: {code(cure)}, as {code(name)} found{tried}."
        for name, cure, tried in trials.until_mended(sources)
    ]
    items += [
        f"In {code(name)} the step that failed had no fault with {code(cell)}." for name, cell in trials.helped(sources)
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


def progress(sources: Sources, verification: Mapping[str, Any]) -> Section:
    """What is done and what is not."""
    causes = sources.verdict.causes
    replay = sources.verdict.status != "log" and next(
        (record for _, record in reversed(sources.replays) if record.get("fault")), None
    )
    again = bool(verification.get("same")) or bool(replay)
    certain = bool(causes) and causes[0].confidence >= SURE
    items = [
        (sources.failed, "failure recorded"),
        (again, "reproduced" if again else f"reproduced: {code('--verify')} runs it again"),
        (bool(replay), "first fault placed: module, operator, sample"),
        (certain, f"cause named with confidence {SURE:g} or more"),
        (bool(causes and causes[0].fix), "fix proposed"),
        (bool(trials.until_mended(sources) or trials.helped(sources)), "a way around it tried and shown to work"),
        (False, "fix tried"),
        (False, "regression test written"),
    ]
    return Section("Progress", [Checks(items)])


def unknown(sources: Sources) -> Section:
    """What is not known, and what would have told it."""
    own = next_steps.own_error(sources.verdict)  # which the summary has said
    missing = [text for text in sources.verdict.missing if not (own and text.endswith(own))]
    items = [ticked(text) for text in (*missing, *sources.unread)]
    if sources.kind == "run" and not sources.replays:
        replay = code(f"ocrlab replay {sources.path.name}")
        why = f"{replay} was not run" if sources.recorded else "there is no flight record to replay"
        items.append(f"Module, operator and sample of the first fault: {why}.")
    return Section("Not known", [Bullets(items or ["Nothing else is known to be missing."])])


def ending(sources: Sources) -> str:
    """Return how it ended in words."""
    verdict, facts = sources.verdict, sources.incident.facts
    seconds = number(facts.get("run_seconds"))
    after = f" after {seconds:.1f} s" if seconds is not None else ""
    if sources.record and sources.record.status == "success":
        return "It ended with success."
    if verdict.status in ("hung", "suspected"):
        return f"It hung: nothing moved any more{after}."
    if verdict.signal:
        return f"It was killed by {verdict.signal}{after}."
    if verdict.exit_code is not None:
        return f"It ended with exit status {verdict.exit_code}{after}."
    if sources.record and sources.record.status == "running":
        return "It is still running."
    if sources.record and sources.record.status == "died":
        return "Its process is gone and left no word."
    error = sources.record.error if sources.record else None
    if error:
        return f"It ended with {code(str(error.get('type'))[:200])}{after}."
    return "How it ended is unknown."


def when(sources: Sources) -> str:
    """Return when it began and ended."""
    if sources.record is None or not sources.record.started:
        return UNKNOWN
    try:
        began = datetime.fromisoformat(sources.record.started)
        text = f"{began:%Y-%m-%d %H:%M:%S} UTC"
        if sources.record.ended:
            text += f", for {(datetime.fromisoformat(sources.record.ended) - began).total_seconds():.0f} s"
        return text
    except (ValueError, TypeError):
        return code(sources.record.started[:40])


def how_far(sources: Sources) -> str:
    """Return the last step that is known."""
    steps = [step for row in sources.steps if (step := number(row.get("step"))) is not None]
    beat = sources.incident.facts.get("heartbeat")
    parts = [f"step {steps[-1]:.0f} in {code('metrics.csv')}"] if steps else []
    if isinstance(beat, Mapping) and beat.get("step") is not None:
        parts.append(f"its last sign of life was in step {code(beat['step'])} ({code(beat.get('phase') or UNKNOWN)})")
    step = sources.last_step
    parts += [f"step {step} was being made, as the flight record says"] if step is not None else []
    return ", ".join(parts) or UNKNOWN


def _output(sources: Sources) -> tuple[str, str]:
    texts = sources.incident.texts
    name = (
        "log_tail.txt"
        if texts.get("log_tail.txt")
        else next((name for name in texts if name not in ("stacks.txt", "kernel_log.txt", "traceback.txt")), "")
    )
    return name, texts.get(name, "")


def _place(file: str, line: int | None) -> str:
    return f"{file}:{line}" if line else file
