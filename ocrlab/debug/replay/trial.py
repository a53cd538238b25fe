"""One variant of the matrix: the step run again in a watched child, and what became of it.

A child whose trail does not move any more is looked into and ended: what a step takes is known from the record.
"""

from __future__ import annotations

import contextlib
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
        ended = watch_into(place / "output.txt", command(subject, job.absolute()), options, env)
    finally:
        guard.over.set()
        guard.join()
    result = TrialResult(variant, seconds=time.monotonic() - began, world=subject.world)
    result.files_newer_than_run = _text(place / file_sandbox.LATER).splitlines()
    _remove_checkpoints(place / "aside")
    pass_signal_on(ended, read_json(place / "watched" / "incident" / "facts.json"))
    done = read_json(place / "result.json").get("finished")
    if guard.is_left or (done and ended.status == "hung"):  # that says nothing of the process that was replayed
        ended = replace(ended, status="success" if done else "failure", exit_code=None, signal=None)
    if ended.status == "hung" and not guard.stacks and (guard.gone is not None or not is_still(place, endless)):
        result.error_text = f"the time was over; --timeout gives it more than {seconds:.0f} s"
        return result
    _Child(subject, place, ended, guard).fill(result)
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


class _Child:
    """A child that has ended, and what it has left: the record of its steps, its trace and trail, its output."""

    def __init__(self, subject: RecordedStep, place: Path, ended: Ended, guard: ChildWatchdog) -> None:
        self.subject, self.place, self.ended, self.guard = subject, place, ended, guard
        self.session, self.trace = read_json(place / "result.json"), read_json(place / "trace.json")
        self.output = _text(place / "output.txt")
        # Killed, hung, or it ended itself without a word (os._exit, exit() of C).
        self.died = ended.status in ("hung", "killed") or not (
            self.session.get("finished") or self.session.get("error")
        )

    def fill(self, result: TrialResult) -> None:
        """Complete the result: the fault that the child shows, or why nothing follows from it."""
        alone, steps = read_json(self.place / "alone.json"), self.subject.flight.steps
        result.steps = list(self.session.get("steps") or ())
        result.warnings = [str(text) for text in self.session.get("warnings") or ()]
        result.per_sample, result.partial = list(alone.get("tried") or ()), bool(alone.get("partial"))
        result.names = [str(name) for name in self.trace.get("samples") or ()]
        result.count = int(alone.get("count") or self.trace.get("count") or len(result.names))
        result.compiled = bool(self.trace.get("compiled"))
        if "alone" in result.variant.options:
            result.error_text = "" if alone.get("tried") else self.last_line() or "no sample was tried"
            return
        fault = self.fault()
        why = fault if isinstance(fault, str) else self.depends_on_ranks(fault) if fault else ""
        failed = self.trace.get("micro") if self.trace.get("state") == "failed" else None
        is_sure = not self.subject.on_gpu and not (self.subject.from_start and self.session.get("ahead"))  # of its step
        if isinstance(fault, dict) and not why and is_sure and variants.was_passed(fault, steps, failed):
            where = f"step {fault.get('step')} ({fault.get('exception') or fault['kind']})"
            why = (
                f"the program failed at {where}, which the run had passed: it keeps what no snapshot holds, see extra="
            )
            result.failed_elsewhere = True
        result.fault, result.error_text = fault if isinstance(fault, dict) and not why else None, why

    def fault(self) -> dict[str, Any] | str | None:
        """Return the fault, None where the step went well, or why the replay itself failed."""
        last, fault = replay_position.read(self.place / "trail.bin"), self.trace.get("fault")
        if isinstance(fault, dict):
            return fault
        if last is not None and self.trace.get("state") == "running" and (self.guard.stacks or self.died):
            hung = bool(self.guard.stacks) or self.ended.status == "hung"
            fault = {"kind": "hang" if hung else "crash", **_at(last), "samples": None, "names": None}
            frame = self.guard.frame or self.frame()
            return fault | ({} if hung else self.end()) | ({"surfaced": frame} if frame else {})
        return None if self.ended.status == "success" and self.session.get("finished") else self.untraced_fault()

    def depends_on_ranks(self, fault: Mapping[str, Any]) -> str:
        """Return why a fault of one rank replayed alone may depend on the others: it raises another error than in the
        run, or waits for something that another rank may do; "" where it may be the fault of the run.
        """
        raised, recorded = str(fault.get("exception") or ""), self.subject.error[0]
        rank, world, steps = self.subject.flight.rank, self.subject.world, self.subject.flight.steps
        own, in_run = (text.partition(":")[0].rpartition(".")[2] for text in (raised, recorded))
        if launcher.HOLDS in raised:  # the program did nothing wrong
            return raised.rpartition("RunError: ")[2]
        if world > 1 and fault["kind"] == "hang":
            went_on = in_run not in ("", *INTERRUPTS) or any(
                step.number > int(fault.get("step") or 0) for step in steps
            )
            where = f" in `{self.guard.frame}`" if self.guard.frame else ""
            what = "for another process" if self.guard.awaits else "where it went on in the run, maybe for another rank"
            text = f"rank {rank} waits at step {fault.get('step')}{where}, {what}, and {launcher.HOLDS}"
            return text if self.guard.awaits or went_on else ""
        if world < 2 or fault["kind"] not in ("exception", "data") or not (raised and recorded):
            return ""
        is_same = own == in_run or own in recorded or in_run in INTERRUPTS
        if is_same or launcher.secondary({"type": in_run, "message": recorded}):
            return ""
        what = f"rank {rank} of {world} alone fails with {raised}, and in the run it failed with {recorded}"
        return f"{what}: the fault depends on values of other ranks, and {launcher.HOLDS}"

    def end(self) -> dict[str, Any]:
        """Return how the process ended; of one that its program has started nobody but torch may have said it."""
        if self.subject.process_path:
            match = STARTED.search(self.output) or {"signal": None, "status": None}
            return (
                {"signal": match["signal"]} if match["signal"] else {"status": match["status"] and int(match["status"])}
            )
        killed = self.ended.status == "killed"
        return {"signal": self.ended.signal} if killed else {"status": self.ended.exit_code}

    def frame(self) -> str:
        """Return the innermost line of the program's own that faulthandler has written of a crash."""
        return next(iter(own_lines(self.output.rpartition("(most recent call first):")[2])), "")

    def last_line(self) -> str:
        """Return the last line that it said, without the watcher's own."""
        lines = f"\n{self.output}".partition("\nocrlab watch: ")[0].splitlines()
        printed = [line.strip() for line in lines if line.strip() and not line.startswith("ocrlab watch")]
        return printed[-1][:300] if printed else ""

    def untraced_fault(self) -> dict[str, Any] | str:
        """Tell a fault outside of the traced part (loading data, an earlier step) from a replay that itself failed."""
        session, subject, status = self.session, self.subject, self.ended.status
        error = session.get("error")
        number = None if subject.flight.steps else 0  # it failed at its first batch
        phase, stage, samples, has_step = "" if number is None else "data", "", [], False
        ended_worker = EXITED.search(str(error)) if error else None  # raised before torch had handed out its iterator
        with contextlib.suppress(OcrlabError, OSError):
            flight = ring_reader.read_ring(self.place / "ring.bin")
            if flight.now is not None:
                phase, number, stage, has_step = flight.now.phase, flight.now.number, flight.now.stage, True
            refused = _refused(
                flight.workers, session.get("exited") or ([int(ended_worker["pid"])] if ended_worker else [])
            )
            refused = refused or [w.sample for w in flight.workers if w.pid in self.guard.stuck]
            samples = refused or [w.sample for w in flight.workers if w.sample and not error][:4]
            number = subject.number if number is None and session.get("ahead") else number
            if session.get("behind"):
                phase, stage, samples = AFTER_LOOP, "", []
            elif refused or (subject.step is None and number is not None and number < subject.number):
                phase, number, stage = "data", subject.number, ""  # its batch was never there
        if number is None or not (error or status in ("killed", "hung") or (has_step and self.died)):
            why = self.last_line() or f"ended as {status}, exit status {self.ended.exit_code}"
            if subject.world > 1 and (names := TAKEN.findall(self.output)):
                by = f"takes values of other ranks ({', '.join(names)}), and {launcher.HOLDS}"
                why = f"rank {subject.flight.rank} of {subject.world} {by}: {why}"
            return why
        kind = (
            "hang" if self.guard.stacks or status == "hung" else "crash" if status == "killed" or not error else "data"
        )
        kind = "exception" if kind == "data" and phase != "data" else kind
        fault: dict[str, Any] = {"kind": kind, "step": number, "phase": phase}
        fault |= {"path": stage} if stage else {}
        fault |= {"ahead": True} if session.get("ahead") and phase != "data" else {}
        fault |= _describe_error(error, phase) if isinstance(error, dict) else {}
        fault |= self.end() if kind == "crash" else {}
        end = _dead_worker(error, session) if phase == "data" else ""
        fault |= {"exception": f"{end}, surfaced as {fault['exception']}", "line": None} if end else {}
        frame = self.guard.frame or (self.frame() if kind in ("crash", "hang") or end or ended_worker else "")
        fault |= {"surfaced": frame, "line": frame} if frame else {}
        is_batch = bool(samples) and samples[0].startswith(BATCH)  # of which no sample is known
        fault |= {"samples": None, "names": samples if phase == "data" and not is_batch else None}
        return fault | ({"batch": samples[0]} if phase == "data" and is_batch else {})


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


def own_lines(stack: str) -> list[str]:
    """Return the lines of a stack as text that are the program's own, in its order."""
    matches = [match for match in FAULT_LINE.finditer(stack) if is_own(match["file"])]
    return [f"{match['file']}:{match['line']} {match['function']}" for match in matches]


def _describe_error(error: Mapping[str, Any], phase: str) -> dict[str, Any]:
    """Return message and source line of the root exception, following `__cause__` and the tracebacks of workers."""
    text = str(error.get("traceback"))
    first, again, _ = text.partition("\n\nThe above exception was the direct cause")
    own = own_lines(text)
    inner = own_lines(first) if phase in ("data", AFTER_LOOP) else []
    lines = str(error.get("message")).strip().splitlines()
    is_passed_on = bool(lines) and lines[0].startswith("Caught ") and ": " in lines[-1]  # by a worker
    message = lines[-1] if is_passed_on else f"{error.get('type')}: {error.get('message')}"
    if again:
        cause = first.strip().splitlines()[-1]
        message = cause if EXITED.search(cause) else f"{cause}, raised again as {message}"
    return {"exception": message, "surfaced": own[-1] if own else None, "line": next(reversed(inner or own), None)}


def _dead_worker(error: Any, session: Mapping[str, Any]) -> str:
    """Return how a worker ended, where an exception only tells that it, its pipe or its memory is gone; else ''."""
    statuses = session.get("statuses") or ()
    if not statuses or not isinstance(error, dict) or "killed by signal" in str(error.get("message")):
        return ""
    if error.get("type") not in PIPES and not EXITED.search(str(error.get("message"))):
        return ""
    status = min(int(code) for code in statuses)  # of a signal negative
    names = {int(number): number.name for number in signal.Signals}
    how = f"was killed by {names.get(-status, f'signal {-status}')}" if status < 0 else f"ended with {status}"
    return f"a worker of the DataLoader {how}"


def _refused(workers: Sequence[WorkerStatus], exited: Sequence[int]) -> list[str]:
    """Return the samples at which loading failed: with an exception, or with the end of a worker's process."""
    named = [(w.failed or w.sample).replace("this worker's", f"worker {w.worker}'s") for w in workers]
    failed = [name for name, worker in zip(named, workers, strict=True) if worker.failed]
    return failed or [name for name, worker in zip(named, workers, strict=True) if worker.pid in exited and name]


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
