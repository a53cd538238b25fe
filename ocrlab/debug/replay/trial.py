"""One variant of the matrix: the step run again in a watched child, and what became of it.

A child whose trail does not move any more is looked into and ended: what a step takes is known from the record.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ocrlab import run_folder
from ocrlab.debug.flight_record import notebook_cells, replay_position, ring_reader
from ocrlab.debug.flight_record.worker_status import WorkerStatus
from ocrlab.debug.instruments.user_code import is_own
from ocrlab.debug.replay import variants
from ocrlab.debug.replay.child import file_sandbox
from ocrlab.debug.replay.child_watchdog import ChildWatchdog, is_still, read_json
from ocrlab.debug.replay.recorded_step import RecordedStep, command, environment
from ocrlab.debug.replay.variants import AFTER_LOOP, Variant
from ocrlab.debug.trials.trial import pass_signal_on, watch_into
from ocrlab.debug.watch.supervisor import Ended, Options
from ocrlab.errors import OcrlabError
from ocrlab.records import SCHEMA
from ocrlab.run_folder import launcher
from ocrlab.run_folder.fail_safe import NAME as OWN_ERRORS
from ocrlab.run_folder.fail_safe import TRACER_NAME, append_own_error

SESSION = "ocrlab.debug.replay.child.replay_session"  # the module that makes the session of a replay in its child
PATIENCE = (6.0, 8.0)  # seconds that one operator may take at least, and times a recorded step
ENDLESS = (15.0, 200.0)  # seconds that a traced step may take at least (twice that where none is known), and times one
LARGE = 1 << 20  # bytes of a file that is not kept
FAULT_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<function>\S+)')
STARTED = re.compile(r"process \d+ terminated with (?:signal (?P<signal>\w+)|exit code (?P<status>\d+))")
INTERRUPTS = ("KeyboardInterrupt", "SystemExit")  # errors of a run that somebody has ended
TAKEN = re.compile(rf"^{re.escape(launcher.TAKES)}(\w+)$", re.MULTILINE)
EXITED = re.compile(r"DataLoader worker \(pid(?:\(s\))? (?P<pid>\d+)")
PIPES = ("ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "EOFError", "FileNotFoundError")
# which the loader meets when a worker is gone before torch has noticed it
BATCH = "batch of "  # begins the message about a batch whose samples could not be collated


@dataclass
class TrialResult:
    """What became of a variant: its fault (None: the step went well), losses, seconds, and why it says nothing."""

    variant: Variant
    fault: dict[str, Any] | None = None
    seconds: float = 0.0
    steps: list[dict[str, Any]] = field(default_factory=list)
    per_sample: list[dict[str, Any]] = field(default_factory=list)
    count: int = 0  # samples in the batch
    partial: bool = False  # something of it belonged to none of them when each was tried alone
    names: list[str] = field(default_factory=list)  # of them
    failed_elsewhere: bool = False  # it failed where the run had not: its state was another one
    error_text: str = ""  # the replay itself failed, or was not done: nothing follows from it
    warnings: list[str] = field(default_factory=list)
    world: int = 1  # ranks of the run, of which one was run
    files_newer_than_run: list[str] = field(default_factory=list)  # which the program began with
    compiled: bool = False  # the program compiles its model, and the replay traced it without

    @property
    def diverged(self) -> bool:
        """Whether it went another way than the run, other than it must."""
        differs = any(step.get("equal") is False for step in self.steps)
        return self.failed_elsewhere or (differs and not self.compiled and self.world == 1)

    def names_of(self, position: int) -> str:
        """Return the name of a sample of the batch, `sample 3 of the batch` where it has none."""
        name = next((str(t["names"][0]) for t in self.per_sample if t["samples"] == [position] and t["names"]), None)
        if self.names and self.count not in (0, len(self.names)):  # some were left out, or make several rows
            return name or f"row {position} of the batch"
        names = [name] if name else self.names[position : position + 1]
        return names[0] if names else f"sample {position} of the batch"


def run_variant(subject: RecordedStep, variant: Variant, place: Path, seconds: float) -> TrialResult:
    """Run one variant in `place`, a new folder, for `seconds` at most; a signal that reached us meanwhile goes on."""
    place.mkdir(parents=True, mode=0o700)
    job = place / "job.json"
    content = {
        "schema": SCHEMA,
        "run": str(subject.run.absolute()),
        "rank": subject.flight.rank,
        "start": subject.flight.start,
        "snapshot": str(subject.snapshot.absolute()) if subject.snapshot else None,
        "first_step": 0,
        "last_step": subject.number,
        "cell": dict(variant.options),
        "out": str(place.absolute()),
        "nth": subject.previous_trainings,
        "started": subject.process_path,
        "world": subject.world,
        "whole": subject.from_start,
        "hides": subject.hide_later_files,
        "session": SESSION,
        "trust": subject.trust,
    }
    content |= {} if subject.validation_batch is None else {"validate": subject.validation_batch}
    run_folder.write_json(job, content, private=True)
    words = [*variant.wrapper, *command(subject, job.absolute())]
    env = environment(subject, job.absolute()) | {**variant.environment}
    if variant.options.get("threads"):
        env |= {name: str(variant.options["threads"]) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    began, step_seconds = time.monotonic(), subject.seconds
    patience, endless = max(PATIENCE[0], PATIENCE[1] * step_seconds), max(ENDLESS[0], ENDLESS[1] * step_seconds)
    endless = endless if step_seconds else 2 * endless
    guard = ChildWatchdog(place, patience, endless, loading=subject.is_loading, several=subject.world > 1)
    guard.start()
    try:
        options = Options(place / "watched", silence=max(seconds, 10.0), timeout=max(seconds, 1.0), on_hang="report")
        ended = watch_into(place / "output.txt", words, options, env)
    finally:
        guard.over.set()
        guard.join()
    result = TrialResult(
        variant, seconds=time.monotonic() - began, files_newer_than_run=_text(place / file_sandbox.LATER).splitlines()
    )
    _remove_checkpoints(place / "aside")
    pass_signal_on(ended, read_json(place / "watched" / "incident" / "facts.json"))
    done = read_json(place / "result.json").get("finished")
    if guard.is_left or (done and ended.status == "hung"):  # that says nothing of the process that was replayed
        ended = replace(ended, status="success" if done else "failure", exit_code=None, signal=None)
    if ended.status == "hung" and not guard.stacks and (guard.gone is not None or not is_still(place, endless)):
        result.error_text = f"the time was over; --timeout gives it more than {seconds:.0f} s"
        return result
    _gather(result, subject, place, ended, guard)
    if failed := _text(place / TRACER_NAME):
        append_own_error(subject.run, f"replay, cell {variant.name}", failed)
        result.warnings.append(f"the tracer failed ({failed.strip().splitlines()[-1]}): see flight/{OWN_ERRORS}")
    result.fault = notebook_cells.shorten_paths(result.fault, place)
    return result


def _remove_checkpoints(folder: Path) -> None:
    """Remove the large files that a replayed program has written: each variant writes its checkpoints again."""
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink() and path.stat().st_size > LARGE:
                path.unlink()


def _gather(result: TrialResult, subject: RecordedStep, place: Path, ended: Ended, guard: ChildWatchdog) -> None:
    """Read what a child has left: the record of its steps, its trace, its trail, what each sample did alone."""
    session, trace = read_json(place / "result.json"), read_json(place / "trace.json")
    last = replay_position.read(place / "trail.bin")
    result.world = subject.world
    result.steps = list(session.get("steps") or ())
    result.warnings = [str(text) for text in session.get("warnings") or ()]
    alone = read_json(place / "alone.json")
    result.per_sample, result.count = list(alone.get("tried") or ()), int(alone.get("count") or 0)
    result.partial = bool(alone.get("partial"))
    result.names = [str(name) for name in trace.get("samples") or ()]
    result.count = result.count or int(trace.get("count") or len(result.names))
    result.compiled = bool(trace.get("compiled"))
    fault = trace.get("fault")
    if "alone" in result.variant.options:
        result.error_text = "" if result.per_sample else _last_line(place) or "no sample was tried"
    elif isinstance(fault, dict):
        result.fault = fault
    elif last is not None and trace.get("state") == "running" and (guard.stacks or _died(ended, session)):
        hung = bool(guard.stacks) or ended.status == "hung"
        at = _around(guard.places) if guard.is_moving else _at(last)
        result.fault = {"kind": "hang" if hung else "crash", **at, "samples": None, "names": None}
        result.fault |= {} if hung else _end(ended, subject, place)
        result.fault |= {"surfaced": frame} if (frame := guard.frame or _frame(place)) else {}
    elif not (ended.status == "success" and (session.get("finished") or alone)):
        _without_a_trace(result, subject, place, ended, session, guard)
    message = str((result.fault or {}).get("exception") or "")
    if launcher.HOLDS in message:  # the program did nothing wrong
        result.fault, result.error_text = None, message.rpartition("RunError: ")[2]
    elif result.fault is not None and (message := _depends_on_ranks(subject, result.fault, guard)):
        result.fault, result.error_text = None, message
    exact = not subject.on_gpu and not (subject.from_start and session.get("ahead"))  # else its step is not sure
    failed = trace.get("micro") if trace.get("state") == "failed" else None
    if result.fault is not None and exact and variants.was_passed(result.fault, subject.flight.steps, failed):
        where = f"step {result.fault.get('step')} ({result.fault.get('exception') or result.fault['kind']})"
        why = "which the run had passed: it keeps what no snapshot holds, see extra="
        result.error_text = f"the program failed at {where}, {why}"
        result.fault, result.failed_elsewhere = None, True


def _depends_on_ranks(subject: RecordedStep, fault: Mapping[str, Any], guard: ChildWatchdog) -> str:
    """Return why a fault of one rank replayed alone may depend on the others: it raises another error than in the run,
    or waits for something that another rank may do; "" where it may be the fault of the run.
    """
    raised, recorded = str(fault.get("exception") or ""), subject.error[0]
    own, in_run = (text.partition(":")[0].rpartition(".")[2] for text in (raised, recorded))
    if subject.world < 2:
        return ""
    if fault["kind"] == "hang":
        ended_itself = recorded.partition(":")[0] not in ("", *INTERRUPTS)
        went_on = ended_itself or any(step.number > int(fault.get("step") or 0) for step in subject.flight.steps)
        if not (guard.awaits or went_on):
            return ""
        where = f" in `{guard.frame}`" if guard.frame else ""
        what = "for another process" if guard.awaits else "where it went on in the run, maybe for another rank"
        return f"rank {subject.flight.rank} waits at step {fault.get('step')}{where}, {what}, and {launcher.HOLDS}"
    if fault["kind"] not in ("exception", "data") or not (raised and recorded):
        return ""
    if own == in_run or own in recorded or in_run in INTERRUPTS:
        return ""
    if launcher.secondary({"type": in_run, "message": recorded}):
        return ""
    what = f"rank {subject.flight.rank} of {subject.world} alone fails with {raised}, and in the run it failed with"
    return f"{what} {recorded}: the fault depends on values of other ranks, and {launcher.HOLDS}"


def _died(ended: Ended, session: Mapping[str, Any]) -> bool:
    """Return whether a program was killed, hung, or ended itself without a word in a step (os._exit, exit() of C)."""
    return ended.status in ("hung", "killed") or not (session.get("finished") or session.get("error"))


def _end(ended: Ended, subject: RecordedStep, place: Path) -> dict[str, Any]:
    """Return how the process ended; of one that its program has started nobody but torch may have said it."""
    if subject.process_path:
        match = STARTED.search(_text(place / "output.txt")) or {"signal": None, "status": None}
        return {"signal": match["signal"]} if match["signal"] else {"status": match["status"] and int(match["status"])}
    return {"signal": ended.signal} if ended.status == "killed" else {"status": ended.exit_code}


def _around(places: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the place that all of some places lie in: the module of a loop, which calls those that are seen."""
    paths = [str(place.get("path") or "").split(".") for place in places]
    common = [parts[0] for parts in itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))]
    common_place = {key: value for key, value in places[-1].items() if key in ("step", "micro")}
    phases = list(dict.fromkeys(str(place.get("phase")) for place in places))
    # An optimiser that searches for its step goes through several.
    common_place |= {"phase": phases[0]} if len(phases) == 1 else {"phases": phases}
    labels = {str(place.get("path") or ""): str(place.get("module") or "") for place in places}
    path = ".".join(common)
    common_place |= {"path": path} if path else {}
    return common_place | ({"module": labels[path]} if labels.get(path) else {})


def _at(last: replay_position.ReplayPosition) -> dict[str, Any]:
    """Return the last place; an operator that has ended is not where it happened, but what was before it.

    Inside of the user's own operator, which torch's dispatcher does not see, that operator is returned.
    """
    place = dict(last.place)
    if last.done and place.get("op"):
        place.pop("inputs", None)
        place["after"] = place.pop("op")
    if place.get("function") and not place.get("op"):
        place["op"] = place["function"]
    return place


def _frame(place: Path) -> str:
    """Return the innermost line of the program's own that faulthandler has written of a crash."""
    text = _text(place / "output.txt")
    _, _, stack = text.rpartition("(most recent call first):")
    return next(iter(own_lines(stack)), "")


def own_lines(stack: str) -> list[str]:
    """Return the lines of a stack as text that are the program's own, in its order."""
    matches = [match for match in FAULT_LINE.finditer(stack) if is_own(match["file"])]
    return [f"{match['file']}:{match['line']} {match['function']}" for match in matches]


def _without_a_trace(
    result: TrialResult,
    subject: RecordedStep,
    place: Path,
    ended: Ended,
    session: Mapping[str, Any],
    guard: ChildWatchdog,
) -> None:
    """Tell a fault outside of the traced part (loading data, an earlier step) from a replay that itself failed."""
    error = session.get("error")
    phase, samples, stage = "", [], ""
    number = None if subject.flight.steps else 0  # it failed at its first batch
    has_step = False  # step
    with contextlib.suppress(OcrlabError, OSError):
        flight = ring_reader.read_ring(place / "ring.bin")
        if flight.now is not None:
            phase, number, stage, has_step = flight.now.phase, flight.now.number, flight.now.stage, True
        elif number == 0:
            phase = "data"
        exit_match = EXITED.search(str(error)) if error else None  # raised before torch had handed out its iterator
        exited = session.get("exited") or ([int(exit_match["pid"])] if exit_match else [])
        refused = _refused(flight.workers, exited)
        refused = refused or [w.sample for w in flight.workers if w.pid in guard.stuck]
        samples = refused or [w.sample for w in flight.workers if w.sample and not error][:4]
        number = subject.number if number is None and session.get("ahead") else number
        behind = bool(session.get("behind"))
        if behind:
            phase, stage, samples = AFTER_LOOP, "", []
        elif refused or (subject.step is None and number is not None and number < subject.number):
            phase, number, stage = "data", subject.number, ""  # its batch was never there
    if number is None or not (error or ended.status in ("killed", "hung") or (has_step and _died(ended, session))):
        result.error_text = _last_line(place) or f"ended as {ended.status}, exit status {ended.exit_code}"
        if subject.world > 1 and (names := TAKEN.findall(_text(place / "output.txt"))):
            by = f"takes values of other ranks ({', '.join(names)}), and {launcher.HOLDS}"
            result.error_text = f"rank {subject.flight.rank} of {subject.world} {by}: {result.error_text}"
        return
    kind = "hang" if guard.stacks else {"killed": "crash", "hung": "hang"}.get(ended.status, "exception")
    kind = "crash" if kind == "exception" and not error else kind
    kind = "data" if phase == "data" and kind == "exception" else kind
    fault: dict[str, Any] = {"kind": kind, "step": number, "phase": phase}
    fault |= {"path": stage} if stage else {}
    fault |= {"ahead": True} if session.get("ahead") and phase != "data" else {}
    fault |= _describe_error(error, phase) if isinstance(error, dict) else {}
    fault |= _end(ended, subject, place) if kind == "crash" else {}
    end = _dead_worker(error, session) if phase == "data" else ""
    fault |= {"exception": f"{end}, surfaced as {fault['exception']}", "line": None} if end else {}
    died = kind in ("crash", "hang") or end or (error and EXITED.search(str(error)))
    frame = guard.frame or (_frame(place) if died else "")
    fault |= {"surfaced": frame, "line": frame} if frame else {}
    fault |= {"samples": None, "names": samples if phase == "data" else None}
    if fault["names"] and samples[0].startswith(BATCH):
        fault |= {"names": None, "batch": samples[0]}
    result.fault = fault


def _describe_error(error: Mapping[str, Any], phase: str) -> dict[str, Any]:
    """Return message and source line of the root exception, following `__cause__` and the tracebacks of workers."""
    text = str(error.get("traceback"))
    first, again, _ = text.partition("\n\nThe above exception was the direct cause")
    own = own_lines(text)
    inner = own_lines(first) if phase in ("data", AFTER_LOOP) else []
    line = next(reversed(inner or own), None)
    message = _original(error)
    cause = first.strip().splitlines()[-1] if again else message
    message = cause if EXITED.search(cause) else f"{cause}, raised again as {message}" if again else message
    return {"exception": message, "surfaced": own[-1] if own else None, "line": line}


def _dead_worker(error: Any, session: Mapping[str, Any]) -> str:
    """Return how a worker ended, where an exception only tells that it, its pipe or its memory is gone; else ''."""
    statuses = session.get("statuses") or ()
    if not statuses or not isinstance(error, dict) or "killed by signal" in str(error.get("message")):
        return ""
    if error.get("type") not in PIPES and not EXITED.search(str(error.get("message"))):
        return ""
    status = min(int(code) for code in statuses)  # of a signal negative
    return f"a worker of the DataLoader {f'was killed by {_signal(-status)}' if status < 0 else f'ended with {status}'}"


def _signal(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def _refused(workers: Sequence[WorkerStatus], exited: Sequence[int]) -> list[str]:
    """Return the samples at which loading failed: with an exception, or with the end of a worker's process."""
    named = [(w.failed or w.sample).replace("this worker's", f"worker {w.worker}'s") for w in workers]
    failed = [name for name, worker in zip(named, workers, strict=True) if worker.failed]
    return failed or [name for name, worker in zip(named, workers, strict=True) if worker.pid in exited and name]


def _original(error: Mapping[str, Any]) -> str:
    """Return type and message of an exception; of one that a worker has passed on, as it was in the worker."""
    text = f"{error.get('type')}: {error.get('message')}"
    lines = str(error.get("message")).strip().splitlines()
    return lines[-1] if lines and lines[0].startswith("Caught ") and ": " in lines[-1] else text


def _last_line(place: Path) -> str:
    """Return the last line that a child said, without the watcher's own."""
    text = _text(place / "output.txt")
    lines = f"\n{text}".partition("\nocrlab watch: ")[0].splitlines()
    printed: Sequence[str] = [line.strip() for line in lines if line.strip() and not line.startswith("ocrlab watch")]
    return printed[-1][:300] if printed else ""


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
