"""`ocrlab replay`: the step that failed is made again in children until its first fault is placed and told apart."""

from __future__ import annotations

import contextlib
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ocrlab import redaction, run_folder
from ocrlab.debug.replay import replay_summary, tool_reports, variants
from ocrlab.debug.replay.recorded_step import RecordedStep, find
from ocrlab.debug.replay.trial import TrialResult, run_variant
from ocrlab.debug.replay.variants import Variant
from ocrlab.errors import ConfigError
from ocrlab.run_folder import launcher

TIMEOUT = 600.0  # seconds for all cells together
ENOUGH = 60.0  # seconds after which, on a CPU, nothing is run only to tell a placed fault apart
REPLAY_FOLDERS = 3  # folders of replays in a run's flight/
SLOWER = 1.5  # times longer that a whole run may take when it is made again
EACH = (6.0, 8.0)  # seconds for one sample by itself at least, and times a recorded step
NAMED = 3  # files in a row
Report = Callable[[str], None]


@dataclass(frozen=True)
class Replayed:
    """The answer: one sentence, the table's rows, the whole record, and where that was written, if it could be."""

    sentence: str
    rows: list[tuple[str, str, str]]
    record: dict[str, Any]
    path: Path | None
    reproduced: bool
    agreement: str  # with the record, in words
    done: bool  # at least one cell says something


def replay(
    run: Path,
    number: int | None = None,
    *,
    rank: int | None = None,
    timeout: float = TIMEOUT,
    report: Report = lambda _text: None,
) -> Replayed:
    """Run a recorded step of `run` again until the question is answered or `timeout` seconds are over.

    Of several ranks one is run, alone: `rank`, or the one that failed first.

    Raises ConfigError, RunError and DataError for what cannot be replayed. Children end with this call.
    """
    if not timeout > 0:
        raise ConfigError("--timeout is no time", got=timeout, need="seconds, more than 0")
    began = time.monotonic()
    subject = find(run, number, rank)
    _check(subject, timeout)
    place = _place(run)
    outcomes: list[TrialResult] = []
    try:
        for variant in _sequence(subject, outcomes, began, began + timeout):
            left = began + timeout - time.monotonic()
            if left < 1:
                outcomes.append(TrialResult(variant, error_text="the time was over"))
                break
            report(f"{variant.name} ...")
            where = place / f"{len(outcomes)}-{_slug(variant.name)}"
            outcome = run_variant(subject, tool_reports.with_log_file(variant, where), where, left)
            outcomes.append(tool_reports.add_forward_line(tool_reports.add_reports(outcome, where), where))
    finally:
        if not outcomes:
            shutil.rmtree(place, ignore_errors=True)
    sentence = replay_summary.sentence(subject, outcomes)
    record = replay_summary.record(subject, outcomes, sentence, time.monotonic() - began)
    fault = replay_summary.decided(outcomes)
    path = _write(subject, record, fault is not None)
    done = any(not outcome.error_text for outcome in outcomes)
    return Replayed(
        sentence,
        replay_summary.rows(outcomes),
        record,
        path,
        fault is not None,
        replay_summary.agreement(outcomes),
        done,
    )


def _check(subject: RecordedStep, timeout: float) -> None:
    """Raise ConfigError where the time is too short for the way to the step."""
    got = f"--timeout {timeout:g}; no snapshot leads to it, so that its program is run from the beginning"
    more = ""
    if subject.program.get("from_start"):
        got = f"--timeout {timeout:g}; the program runs from its beginning: it uses neither rec.batches nor rec.steps"
        more = "; or use `for step in rec.steps(n)`, so that a replay starts at a snapshot; pass what the loop reads"
        more += " of earlier steps, other than model and optimizer, as extra={...}"
    needed = _seconds(subject)
    if not subject.from_start:
        needed = SLOWER * subject.previous_seconds + subject.seconds * subject.replayed_micro_batches
        count, earlier = subject.replayed_micro_batches, subject.previous_trainings
        got = f"--timeout {timeout:g}; {count} micro-batches of {subject.seconds:.2g} s from its snapshot on"
        got += f", and {earlier} trainings of the same program before it" if earlier else ""
    if needed > timeout:
        do = f"Give it more: --timeout {math.ceil(needed + ENOUGH)}{more}"
        raise ConfigError(f"The time is too short for step {subject.number} of {subject.run}", got=got, do=do)


def _sequence(subject: RecordedStep, outcomes: list[TrialResult], began: float, until: float) -> Iterator[Variant]:
    """Yield cell after cell, each chosen by what those before have shown; ends when the question is answered."""
    before = variants.earlier(subject.number, subject.seconds)
    early = subject.began_earlier and not subject.on_gpu
    for variant in [variants.widened(before)] if early else variants.first(subject.on_gpu):
        yield variants.begun(variant) if subject.from_start else variant
        if outcomes[-1].fault is not None:
            break
    traced = shown = outcomes[-1]
    if _began_otherwise(subject, traced):
        traced = shown = yield from _without(subject, outcomes)
    failed = subject.ended not in ("success", "running")
    failed = failed and not any(step.number > subject.number for step in subject.flight.steps)
    if shown.fault is None and not shown.error_text and not subject.on_gpu and failed:
        yield variants.AS_IT_WAS  # tracing may have hidden it
        shown = outcomes[-1]
    if not subject.from_start and ((shown.fault is None and failed) or (traced.diverged and not subject.on_gpu)):
        yield from _otherwise(subject, traced, outcomes, began, until if shown.fault is None else began + ENOUGH)
        shown = outcomes[-1] if outcomes[-1].fault is not None else shown
    fault = shown.fault
    unplaced = variants.spoilt(fault) if fault is not None else subject.step is None and not shown.error_text
    if unplaced and not early:
        yield before
        shown = outcomes[-1] if outcomes[-1].fault is not None else shown
        fault = shown.fault
    if fault is not None and variants.is_carried_over(fault) and fault.get("phase") == "validation":
        yield variants.VALIDATION  # of a batch before the one in which it ended
        fault = outcomes[-1].fault or fault
    if fault is not None and fault.get("micro") is not None:
        subject.number = int(fault["step"])  # what follows is about that step
    if fault is None:
        return
    if variants.wants_alone(fault, shown.count, subject.on_gpu):
        seconds = max(EACH[0], EACH[1] * subject.seconds)
        yield variants.per_sample(round(seconds, 1), fault)
        if replay_summary.name_samples(fault, outcomes[-1]):
            return
    replay_summary.name_samples(fault, shown)
    for variant in variants.contrasts(fault, subject.on_gpu):
        if not subject.on_gpu and time.monotonic() - began + max(o.seconds for o in outcomes) > ENOUGH:
            return  # the fault has its place; what would make it go away is not worth a longer wait
        yield variant
        if not outcomes[-1].error_text and variants.settles(variant, fault, outcomes[-1].fault):
            return


def _began_otherwise(subject: RecordedStep, shown: TrialResult) -> bool:
    """Tell whether a program has begun with what the run wrote, and may have gone another way by that."""
    return (
        bool(shown.files_newer_than_run)
        and launcher.HOLDS not in shown.error_text
        and (shown.fault is None or shown.diverged or subject.ended == "success")
    )


def _without(subject: RecordedStep, outcomes: list[TrialResult]) -> Generator[Variant, None, TrialResult]:
    """Yield the same cell again, begun without what was written since the run began, as are the next ones; returns what
    came of it, or of the one before where it says nothing.
    """
    before, subject.hide_later_files = outcomes[-1], True
    yield variants.hidden(before.variant)
    shown = outcomes[-1]
    if shown.error_text or (shown.diverged and shown.fault is None):
        subject.hide_later_files = False
        return before
    names = [replay_summary.short(path) for path in dict.fromkeys(before.files_newer_than_run)]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    before.fault, before.error_text = (
        None,
        f"it began with {', '.join(names[:NAMED])}{more}, written since the run began",
    )
    return shown


def _otherwise(
    subject: RecordedStep, traced: TrialResult, outcomes: list[TrialResult], began: float, until: float
) -> Iterator[Variant]:
    """Yield what is left where a snapshot does not lead to the fault, as it lacks something that the program keeps."""
    if subject.full_run_seconds is not None and _seconds(subject) <= until - time.monotonic():
        snapshot, subject.snapshot, subject.from_start = subject.snapshot, None, True
        yield variants.begun(traced.variant)
        if outcomes[-1].fault is None:
            subject.snapshot, subject.from_start = snapshot, False
    elif subject.full_run_seconds is not None:
        wanted = math.ceil(_seconds(subject) + time.monotonic() - began)
        warning = f"it was not run again from its beginning, which needs --timeout {wanted}"
        if traced.diverged:
            warning = (
                "its state is not that of the run: the program keeps something that the recorder was not given (pass"
            )
            warning += f" it as extra={{...}}); it was not run again from its beginning, which needs --timeout {wanted}"
        subject.warnings.append(warning)


def _seconds(subject: RecordedStep) -> float:
    """Return how long it may take to make a whole run again."""
    return SLOWER * (subject.full_run_seconds or 0.0)


def _place(run: Path) -> Path:
    """Make the folder of this replay, in the run's flight/ where that can be written; the oldest ones go."""
    parent = run / "flight"
    with contextlib.suppress(OSError):
        old = sorted(parent.glob("replay-*"), key=lambda path: path.stat().st_mtime)
        for path in old[: max(0, len(old) - REPLAY_FOLDERS + 1)]:
            shutil.rmtree(path, ignore_errors=True)
        return Path(tempfile.mkdtemp(prefix="replay-", dir=parent))
    return Path(tempfile.mkdtemp(prefix="ocrlab-replay-"))


def _write(subject: RecordedStep, record: dict[str, Any], fault: bool) -> Path | None:
    """Write replay.json into incident/ of a run that failed, else into flight/; older ones stay."""
    folder = subject.run / ("incident" if fault or subject.ended not in ("success", "running") else "flight")
    with contextlib.suppress(OSError):
        folder.mkdir(exist_ok=True)
        number = 1
        while (path := folder / ("replay.json" if number == 1 else f"replay-{number}.json")).exists():
            number += 1
        run_folder.write_json(path, redaction.clean_record(record))
        return path
    return None


def _slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower())
