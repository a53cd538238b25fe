"""`ocrlab replay`: repeat the failed step in child processes until its first fault is located and identified."""

from __future__ import annotations

import contextlib
import math
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ocrlab import redaction, run_folder
from ocrlab.debug.replay import replay_summary, variants
from ocrlab.debug.replay.recorded_step import RecordedStep, find, recorded_program
from ocrlab.debug.replay.trial import TrialResult, run_variant
from ocrlab.debug.replay.variants import Variant
from ocrlab.debug.trials.consent import require_consent
from ocrlab.errors import ConfigError
from ocrlab.run_folder import launcher

TIMEOUT = 600.0  # seconds for all variants together
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
    done: bool  # at least one variant says something


def replay(
    run: Path,
    number: int | None = None,
    *,
    rank: int | None = None,
    timeout: float = TIMEOUT,
    trust: bool = False,
    report: Report = lambda _text: None,
) -> Replayed:
    """Run a recorded step of `run` again until the question is answered or `timeout` seconds are over.

    Of several ranks one is run, alone: `rank`, or the one that failed first. With `trust` the program is started, and
    its batches are unpickled, also if somebody else recorded them.

    Raises ConfigError, RunError and DataError for what cannot be replayed, NotTrusted (a RunError) for what needs
    `trust`. Children end with this call.
    """
    if not timeout > 0:
        raise ConfigError("--timeout must be a positive number of seconds", got=timeout, need="seconds, more than 0")
    subject = find(run, number, rank)
    subject.trust = trust
    _check(subject, timeout)
    require_consent(recorded_program(subject), trust, report)
    matrix = _Matrix(subject, _place(run), timeout, report)
    try:
        with contextlib.suppress(_TimeOver):
            _investigate(subject, matrix)
    finally:
        if not matrix.results:
            shutil.rmtree(matrix.place, ignore_errors=True)
    results = matrix.results
    sentence = replay_summary.sentence(subject, results)
    record = replay_summary.record(subject, results, sentence, matrix.seconds)
    reproduced = replay_summary.decided(results) is not None
    return Replayed(
        sentence,
        replay_summary.rows(results),
        record,
        _write(subject, record, reproduced),
        reproduced,
        replay_summary.agreement(results),
        done=any(not result.error_text for result in results),
    )


class _TimeOver(Exception):
    """No time is left for another variant."""


@dataclass
class _Matrix:
    """The variants that were run so far, with their results, and the seconds that they may take together."""

    subject: RecordedStep
    place: Path
    timeout: float
    report: Report
    began: float = field(default_factory=time.monotonic)
    results: list[TrialResult] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return time.monotonic() - self.began

    def run(self, variant: Variant) -> TrialResult:
        """Run the step again in a child and return what became of it; raises _TimeOver."""
        left = self.timeout - self.seconds
        if left < 1:
            self.results.append(TrialResult(variant, error_text="the time was over"))
            raise _TimeOver
        self.report(f"{variant.name} ...")
        slug = "".join(letter if letter.isalnum() else "-" for letter in variant.name.lower())
        self.results.append(run_variant(self.subject, variant, self.place / f"{len(self.results)}-{slug}", left))
        return self.results[-1]


def _check(subject: RecordedStep, timeout: float) -> None:
    """Raise ConfigError where the time is too short for the way to the step."""
    more, needed = "", _seconds(subject)
    way = "no snapshot leads to it, so that its program is run from the beginning"
    if subject.program.get("from_start"):
        way = "the program runs from its beginning: it uses neither rec.batches nor rec.steps"
        more = "; or use `for step in rec.steps(n)`, so that a replay starts at a snapshot; pass what the loop reads"
        more += " of earlier steps, other than model and optimizer, as extra={...}"
    elif not subject.from_start:
        count, earlier = subject.replayed_micro_batches, subject.previous_trainings
        needed = SLOWER * subject.previous_seconds + subject.seconds * count
        way = f"{count} micro-batches of {subject.seconds:.2g} s from its snapshot on"
        way += f", and {earlier} trainings of the same program before it" if earlier else ""
    if needed > timeout:
        what = f"The time is too short for step {subject.number} of {subject.run}"
        do = f"Give it more: --timeout {math.ceil(needed + ENOUGH)}{more}"
        raise ConfigError(what, got=f"--timeout {timeout:g}; {way}", do=do)


def _investigate(subject: RecordedStep, matrix: _Matrix) -> None:
    """Run variant after variant, each chosen by what those before have shown, until the question is answered."""
    before = variants.earlier(subject.number, subject.seconds, subject.on_gpu)
    early = subject.began_earlier and not subject.on_gpu
    where = [variants.BLOCKING, variants.AS_IT_WAS] if subject.on_gpu else [variants.TRACED]  # it happens
    for variant in [replace(variants.TRACED, options=before.options)] if early else where:
        traced = matrix.run(variants.begun(variant) if subject.from_start else variant)
        if traced.fault is not None:
            break
    is_another = traced.fault is None or traced.diverged or subject.ended == "success"
    if traced.files_newer_than_run and is_another and launcher.HOLDS not in traced.error_text:
        traced = _run_without_later_files(subject, traced, matrix)
    shown = traced
    failed = subject.ended not in ("success", "running")
    failed = failed and not any(step.number > subject.number for step in subject.flight.steps)
    if shown.fault is None and not shown.error_text and not subject.on_gpu and failed:
        shown = matrix.run(variants.AS_IT_WAS)  # tracing may have hidden it
    if not subject.from_start and ((shown.fault is None and failed) or (traced.diverged and not subject.on_gpu)):
        left = matrix.timeout - matrix.seconds if shown.fault is None else ENOUGH - matrix.seconds
        shown = _run_from_start(subject, traced, matrix, left) or shown
    unplaced = subject.step is None and not shown.error_text if shown.fault is None else variants.spoilt(shown.fault)
    if unplaced and not early:
        earlier = matrix.run(before)
        shown = earlier if earlier.fault is not None else shown
    fault = shown.fault
    if fault is not None and variants.is_carried_over(fault) and fault.get("phase") == "validation":
        fault = matrix.run(variants.VALIDATION).fault or fault  # of a batch before the one in which it ended
    if fault is None:
        return
    if fault.get("micro") is not None:
        subject.number = int(fault["step"])  # what follows is about that step
    if variants.wants_alone(fault, shown.count, subject.on_gpu):
        seconds = max(EACH[0], EACH[1] * subject.seconds)
        if replay_summary.name_samples(fault, matrix.run(variants.per_sample(round(seconds, 1), fault))):
            return
    replay_summary.name_samples(fault, shown)
    is_answered = not subject.on_gpu or (fault.get("kind") == "nonfinite" and variants.is_placed(fault))
    for variant in variants.contrasts(fault, subject.on_gpu):
        if is_answered and matrix.seconds + max(result.seconds for result in matrix.results) > ENOUGH:
            return  # the fault has its place; what would make it go away is not worth a longer wait
        result = matrix.run(variant)
        if not result.error_text and variants.settles(variant, fault, result.fault):
            return


def _run_without_later_files(subject: RecordedStep, before: TrialResult, matrix: _Matrix) -> TrialResult:
    """Run the same variant without the files written since the run began, which stay hidden for the next variants;
    return its result, or the one before where it says nothing.
    """
    subject.hide_later_files = True
    shown = matrix.run(replace(before.variant, name=f"{before.variant.name}, without later files"))
    if shown.error_text or (shown.diverged and shown.fault is None):
        subject.hide_later_files = False
        return before
    names = [replay_summary.short(path) for path in dict.fromkeys(before.files_newer_than_run)]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    before.fault = None
    before.error_text = f"it began with {', '.join(names[:NAMED])}{more}, written since the run began"
    return shown


def _run_from_start(subject: RecordedStep, traced: TrialResult, matrix: _Matrix, left: float) -> TrialResult | None:
    """Run the program from its beginning where no snapshot leads to the fault, as it lacks something that the program
    keeps; return the result where it has a fault. It may take `left` seconds.
    """
    if subject.full_run_seconds is None:
        return None
    if _seconds(subject) <= left:
        snapshot, subject.snapshot, subject.from_start = subject.snapshot, None, True
        result = matrix.run(variants.begun(traced.variant))
        if result.fault is not None:
            return result
        subject.snapshot, subject.from_start = snapshot, False
        return None
    needed = math.ceil(_seconds(subject) + matrix.seconds)
    text = f"it was not run again from its beginning, which needs --timeout {needed}"
    if traced.diverged:
        keeps = "the program keeps something that the recorder was not given (pass it as extra={...})"
        text = f"its state is not that of the run: {keeps}; {text}"
    subject.warnings.append(text)
    return None


def _seconds(subject: RecordedStep) -> float:
    """Return how long it may take to repeat a whole run."""
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
