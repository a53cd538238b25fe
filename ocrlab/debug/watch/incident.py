"""From the evidence of a failure to its verdict: who judges it, the files on disk, the words on the screen."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ocrlab import run_folder
from ocrlab.debug.flight_record import last_position
from ocrlab.debug.watch import error_hook
from ocrlab.debug.watch.incident_evidence import LOG
from ocrlab.records import Cause, Incident, Verdict, to_json
from ocrlab.redaction import clean
from ocrlab.run_folder.fail_safe import append_own_error, guarded

MOST_VALUES = 3  # of the failing line on the screen; all of them are in the verdict
MAX_EVIDENCE = 240  # characters of evidence on the screen; all of it is in the verdict
SURE = 0.8  # from here on the summary names the fix, below it the experiment that would confirm the cause
REPLAY = re.compile(r"ocrlab replay RUN[^;]*(?:; (?:else )?)?")
OF_REPLAY = re.compile(
    r"the first: it names module, operator and sample, where the run has a flight record; (?:then )?"
)
COMMAND = re.compile(r"\bCOMMAND\b")
MAX_COMMAND = 160  # characters of a command that still make a line that can be read


def judge(incident: Incident, home: Path | None = None) -> Verdict:
    """Return the verdict; where the diagnosis itself fails, one without causes that gives the reason."""
    try:
        from ocrlab.debug.diagnosis.classify import classify

        return classify(incident)
    except Exception as error:
        append_own_error(home, "watch: the diagnosis", error)
        reason = f"the diagnosis itself failed: {type(error).__name__}: {error}"
        return Verdict(None, incident.status, incident.exit_code, incident.signal, None, missing=[reason])


def write(place: Path, verdict: Verdict, incident: Incident) -> None:
    """Write the verdict and the texts it rests on into `incident/`; raises OSError."""
    try:
        from ocrlab.debug.diagnosis.verdict_files import write_verdict

        write_verdict(place, verdict, incident)
    except OSError:
        raise
    except Exception as error:  # the words may fail, the verdict and its evidence must not
        append_own_error(place.parent, "watch: the words of the verdict", error)
        for name, text in incident.texts.items():
            run_folder.write_text(place / name, clean(text))
        run_folder.write_json(place / "verdict.json", clean(to_json(verdict)))
        run_folder.write_text(place / "verdict.md", clean(f"# {_cause(verdict)}\n\n{type(error).__name__}: {error}\n"))


def summary(what: str, verdict: Verdict, place: Path, record: Path | None = None, command: Sequence[str] = ()) -> str:
    """Return the lines on the screen: what happened, why, where the verdict is, what to do next.

    `record` is the folder of the program's flight record, where that is not the run folder. A training of `command`
    that has none gets the edits that would add it.
    """
    home, best = place.parent, verdict.causes[0] if verdict.causes else None
    recorded = find_recorded(home, record)
    do = (best.fix if best.confidence >= SURE else "") or best.experiment or best.fix if best else ""
    verdict_file = place / "verdict.md"  # missing on a full disk
    lines = [f"ocrlab watch: {what}"]
    parts: dict[str, Callable[[], str]] = {
        "rank": lambda: _rank(verdict),
        "why": lambda: (best.explanation or _waits(best)) if best else "",
        "fix": lambda: best.fix if best and (best.explanation or (_waits(best) and best.confidence >= SURE)) else "",
        "edit": lambda: _edit(best.edit) if best and best.edit else "",
        "cause": lambda: ("" if best else _own_error(verdict)) or _cause(verdict),
        "evidence": lambda: _evidence(best, "\n".join(lines)) if best and not best.explanation else "",
        "in": lambda: _own_frame(best) if best and not best.explanation else "",
        "values": lambda: "; ".join(verdict.values[:MOST_VALUES]) if not (best and best.explanation) else "",
        "record": lambda: last_position.position_text(recorded).removeprefix("the record ") if recorded else "",
        "hidden": lambda: error_hook.hid(place),
        "verdict": lambda: short(verdict_file) if verdict_file.is_file() else "",
        "next": lambda: do if best and not best.explanation and best.fix not in "\n".join(lines) else "",
        "replay": lambda: f"ocrlab replay {shlex.quote(short(recorded))}" if recorded else "",
        "next run": lambda: "" if recorded or (best and best.edit) else _recording(place, command, best),
    }
    for label, text in parts.items():
        with guarded(home, f"watch: the line `{label}`"):  # a line that fails takes no other one with it
            line = text()
            lines += [_wrapped(label, line)] if line else []
    return clean("\n".join(lines))


def _wrapped(label: str, line: str) -> str:
    """Return a line behind its label, on a terminal in several lines of its width."""
    text, indent = f"  {label:<9}{line}", " " * 11
    if label not in ("why", "fix") or not sys.stderr.isatty():
        return text  # a log is searched by lines
    width = max(shutil.get_terminal_size().columns - 1, 60)
    return textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _recording(place: Path, command: Sequence[str], cause: Cause | None) -> str:
    """Return how a crash of this training would name its step and sample; '' for what is not a training.

    Where the cause is explained, the edits for a run without `--record` are left out.
    """
    from ocrlab.debug.diagnosis.explanations.failure import from_log
    from ocrlab.debug.watch import recording_edits

    failure = from_log((place / LOG).read_text(encoding="utf-8", errors="replace"))
    frames = [(frame.file, frame.line) for frame in failure.own_frames] if failure is not None else []
    edits, by_watch = recording_edits.advice(command, frames)
    if not edits:
        return ""
    itself = f"`ocrlab watch --record -- {shlex.join(command)}` names step and sample" if by_watch else ""
    if cause is not None and cause.explanation:
        return itself
    itself += ", as do " if itself else ""
    return "\n            ".join([f"{itself or 'step and sample are named by '}these lines:", *edits])


def _rank(verdict: Verdict) -> str:
    """Return which rank to look at; '' where there is only one."""
    from ocrlab.debug.diagnosis.first_failed_rank import rank_sentence

    return rank_sentence(verdict)


def _cause(verdict: Verdict) -> str:
    """Return the most probable cause in a line."""
    if not verdict.causes:
        return f"unknown (missing: {'; '.join(verdict.missing)})" if verdict.missing else "unknown"
    best = verdict.causes[0]
    sure = f"{best.id}, {100 * best.confidence:.0f} % sure"
    busy = next((line.text for line in best.evidence if line.text.startswith("busy ")), "")
    return f"{busy} ({sure})" if busy else sure


def _own_error(verdict: Verdict) -> str:
    """Return the error that the program itself reported, for a verdict without causes; '' for none."""
    from ocrlab.debug.diagnosis import next_steps

    own, shown = next_steps.own_error(verdict), _rank(verdict) or next_steps.OWN
    rest = [missing for missing in verdict.missing if not missing.startswith((next_steps.OWN, shown))]
    return "; ".join([f"the program's own error, {own}", *rest]) if own else ""


def _waits(best: Cause) -> str:
    """Return the sentence about what a program that hangs waits for."""
    hangs = best.id.startswith(("hang.", "loader.hang", "loader.fork", "dist."))
    return next((line.text for line in best.evidence[:1] if hangs and line.file == "facts"), "")


def _edit(edit: dict[str, Any]) -> str:
    """Return the line to change, as it should be."""
    return f"{Path(edit['file']).name}:{edit['line']}: {edit['after']}"


def _evidence(best: Cause, shown: str) -> str:
    """Return the first line of evidence that the summary does not show already, with its file."""
    for line in best.evidence:
        if line.text not in shown:
            where = line.file if line.line is None else f"{line.file}:{line.line}"
            return f"{where}: {line.text.strip()[:MAX_EVIDENCE]}"
    return ""


def _own_frame(best: Cause) -> str:
    """Return the module that was called, and the program's own frame, where the evidence shows them."""
    from ocrlab.debug.diagnosis import failure_place

    module, own = failure_place.place_in(best.evidence)
    return f"{module}, called from {own}" if module and own else module or own


def short(path: Path) -> str:
    """Return a path relative to the working folder where it lies below that."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return os.fspath(path)


def find_recorded(*runs: Path | None) -> Path | None:
    """Return the first of some run folders that holds a flight record."""
    return next((run for run in runs if run and next(run.glob("flight/ring-*.bin"), None)), None)


def fit_experiments(verdict: Verdict, command: Sequence[str], run: str = "") -> Verdict:
    """Return a verdict whose experiments name the command, and the run to replay; without one no replay is proposed.

    No command, one of several lines and a very long one stay the word COMMAND.
    """
    typed = shlex.join(command)
    typed = typed if 0 < len(typed) <= MAX_COMMAND and typed.isprintable() else "COMMAND"

    def fit(experiment: str) -> str:
        if not run:
            experiment = OF_REPLAY.sub("", REPLAY.sub("", experiment))
        return COMMAND.sub(lambda _: typed, experiment.replace("replay RUN", f"replay {shlex.quote(run)}"))

    return replace(verdict, causes=[replace(cause, experiment=fit(cause.experiment)) for cause in verdict.causes])
