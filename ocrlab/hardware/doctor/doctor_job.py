"""The ladder of ten steps: asks two children at a time, judges what they answer, and always reports every step."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ocrlab.hardware.doctor import check_gpus, check_machine, check_packages, check_training, failed_probe, probe_runner
from ocrlab.hardware.doctor.check_spec import Answers, Options, Probe, fail, interpreter, skip
from ocrlab.records import Check
from ocrlab.redaction import clean

STEPS = (
    "Python and packages",
    "Imports",
    "Processor",
    "Driver and GPU",
    "CUDA libraries",
    "Smoke test",
    "GPU health, kernel log",
    "WSL2",
    "Limits",
    "Data loading and tracker",
)
AT_ONCE = 2  # children; more only slow each other down on the two cores of a small machine
WORST = ("fail", "warn", "ok", "skip")  # of several judgements the first of these is that of all


@dataclass(frozen=True)
class Event:
    """What has just happened: an ask of a step began, or ended with these findings.

    `step_checks` holds all findings of the step in their order once it is complete, else None.
    """

    step: int
    name: str
    checks: tuple[Check, ...] = ()
    began: bool = False
    step_checks: tuple[Check, ...] | None = None


@dataclass
class _State:
    """What is known while the ladder is climbed; only the thread that called `run` touches it."""

    waiting: list[Probe]
    running: set[str] = field(default_factory=set)
    answered: dict[str, Answers] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    checks: dict[str, list[Check]] = field(default_factory=dict)


def asks(options: Options) -> list[Probe]:
    """Return everything that is asked, in the order of the ten steps."""
    groups = (
        check_packages.package_probes,
        check_packages.import_probes,
        check_machine.processor_probes,
        check_gpus.driver_probes,
        check_gpus.torch_gpu_probes,
        check_training.library_probes,
        check_training.smoke_probes,
        check_gpus.health_probes,
        check_machine.wsl_probes,
        check_machine.limit_probes,
        check_training.loader_probes,
        check_training.tracker_probes,
    )
    every = [probe for probes in groups for probe in probes(options)]
    return sorted(every, key=lambda ask: ask.step)


def run(
    options: Options, report: Callable[[Event], None] | None = None, planned: Sequence[Probe] | None = None
) -> list[Check]:
    """Return the findings of all ten steps in their order; `report` is called with each as it comes, in this thread.

    No check can stop it: one that hangs, dies, floods or answers nonsense is a finding. `planned` replaces the asks.
    """
    every = list(asks(options) if planned is None else planned)
    state, came, stop = (
        _State(list(every)),
        queue.SimpleQueue[tuple[Probe, probe_runner.ProbeResult]](),
        threading.Event(),
    )
    threads: list[threading.Thread] = []
    notify = report or (lambda event: None)

    def start(ask: Probe) -> None:
        def body() -> None:
            came.put((ask, _call(ask, options, stop)))

        thread = threading.Thread(target=body, name=f"doctor: {ask.name}", daemon=True)
        thread.start()
        threads.append(thread)
        state.running.add(ask.name)
        notify(Event(ask.step, ask.name, began=True))

    try:
        while state.waiting or state.running:
            for ask in _ready(state):
                why = _reason(ask, state)
                if why is not None or len(state.running) < AT_ONCE:
                    state.waiting.remove(ask)
                    if why is None:
                        start(ask)
                    else:
                        _end(state, ask, [skip(ask.name, why)], 0.0, every, notify)
            if state.running:
                ask, ran = came.get()
                _end(state, ask, _judge(ask, ran, state), ran.seconds, every, notify)
    finally:
        stop.set()  # on Ctrl-C the children are ended, not left behind
        for thread in threads:
            thread.join()
    return [check for ask in every for check in state.checks[ask.name]]


def run_doctor(python: str = sys.executable, runs: Path | str = "runs") -> list[Check]:
    """Return the findings on a Python and its machine in ten steps; each check runs in a child with a deadline.

    `python` is the interpreter to check (path or name), `runs` the folder whose disk is tried. Raises ConfigError
    where `python` is no interpreter.
    """
    return run(Options(interpreter(python), Path(runs)))


def worst(checks: Sequence[Check]) -> str:
    """Return the judgement that stands for several: fail, then warn, then ok, and skip where nothing was judged."""
    judged = {check.judgement for check in checks}
    return next((word for word in WORST if word in judged), "skip")


def _call(ask: Probe, options: Options, stop: threading.Event) -> probe_runner.ProbeResult:
    """Run the child of an ask; whatever goes wrong here belongs into the report too."""
    python = sys.executable if ask.own else options.python
    try:
        return probe_runner.run(
            python,
            ask.probe,
            ask.function,
            ask.arguments,
            deadline=ask.deadline,
            idle=ask.idle,
            own=ask.own,
            stop=stop,
        )
    except Exception as error:  # out of descriptors, of threads, of memory: the report goes on without this one
        return probe_runner.ProbeResult(ended="unstarted", errors=f"{type(error).__name__}: {error}")


def _ready(state: _State) -> list[Probe]:
    """Return the asks that wait for nothing that is still to come; all of them should they wait for each other."""
    pending = state.running | {ask.name for ask in state.waiting}
    free = [ask for ask in state.waiting if pending.isdisjoint(ask.after)]
    return free or ([] if state.running else list(state.waiting))


def _reason(ask: Probe, state: _State) -> str | None:
    """Return why an ask need not be asked; a condition that cannot read damaged answers does not count."""
    try:
        return ask.skip(state.answered)
    except Exception:
        return None


def _judge(ask: Probe, ran: probe_runner.ProbeResult, state: _State) -> list[Check]:
    """Return the findings on what a child answered, or on what became of it."""
    failures = failed_probe.checks(ask, ran)
    if not failed_probe.ended_well(ran):
        return [check_packages.explain_by_shadowing(check, state.answered) for check in failures]
    try:
        checks = [
            check_packages.explain_by_shadowing(check, state.answered)
            for check in ask.judge(ran.answers, state.answered)
        ]
        judged = [replace(check, step=ask.step) for check in checks]
    except Exception as error:
        what = f"its answer is garbage ({type(error).__name__}: {error}): {str(ran.answers)[:120]}"
        return [*failures, fail(ask.name, what, "an answer of the agreed form", failed_probe.again(ask))]
    state.answered[ask.name] = ran.answers
    return judged + failures


def _end(
    state: _State,
    ask: Probe,
    checks: list[Check],
    seconds: float,
    every: Sequence[Probe],
    notify: Callable[[Event], None],
) -> None:
    """Keep the findings of an ask, without secrets, and tell them."""
    state.running.discard(ask.name)
    state.ended.add(ask.name)
    state.checks[ask.name] = [_cleaned(check, ask, seconds) for check in checks]
    step = [other.name for other in every if other.step == ask.step]
    complete = all(name in state.ended for name in step)
    whole = tuple(check for name in step for check in state.checks[name]) if complete else None
    notify(Event(ask.step, ask.name, tuple(state.checks[ask.name]), step_checks=whole))


def _cleaned(check: Check, ask: Probe, seconds: float) -> Check:
    observed, need, do = (str(clean(_printable(text))) for text in (check.observed, check.need, check.do))
    return replace(check, step=ask.step, seconds=round(seconds, 3), observed=observed, need=need, do=do)


def _printable(text: str) -> str:
    """Return a text in one line without control characters, which a library may have put into its message."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
