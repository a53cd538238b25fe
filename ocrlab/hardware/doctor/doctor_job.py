"""Runs the probes of the ten steps, two at a time, judges their answers, and always reports every step."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

from ocrlab.hardware.doctor import check_gpus, check_machine, check_packages, check_training, failed_probe, probe_runner
from ocrlab.hardware.doctor.check_spec import Answer, Options, Probe, fail, interpreter, skip
from ocrlab.hardware.doctor.probe_runner import ProbeResult
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
WORST = ("fail", "warn", "ok", "skip")  # the first of these that occurs stands for several judgements


def asks(options: Options) -> list[Probe]:
    """Return all probes, in the order of the ten steps."""
    every = [
        *check_packages.package_probes(options),
        *check_machine.machine_probes(options),
        *check_gpus.gpu_probes(options),
        *check_training.training_probes(options),
    ]
    return sorted(every, key=lambda probe: probe.step)


def run(
    options: Options,
    report: Callable[[dict[int, list[Check]], list[str]], None] = lambda complete, running: None,
    planned: Sequence[Probe] | None = None,
) -> list[Check]:
    """Return the findings of all ten steps in their order; no check can stop it: what misbehaves is a finding.

    `report` gets the findings of each step that is complete and the names of the probes that run, at each change and
    in this thread. `planned` replaces the probes.
    """
    every = list(asks(options) if planned is None else planned)
    complete: dict[int, list[Check]] = {}
    waiting, running = list(every), dict[Future[ProbeResult], Probe]()
    facts: dict[str, Answer] = {}
    findings: dict[str, list[Check]] = {}
    stop = threading.Event()

    def finish(probe: Probe, checks: list[Check], seconds: float = 0.0) -> None:
        findings[probe.name] = [_cleaned(check, probe, seconds) for check in checks]
        step = [other.name for other in every if other.step == probe.step]
        if all(name in findings for name in step):
            complete[probe.step] = [check for name in step for check in findings[name]]
        report(complete, [other.name for other in running.values()])

    with ThreadPoolExecutor(AT_ONCE, "doctor") as pool:
        try:
            while waiting or running:
                pending = {probe.name for probe in (*waiting, *running.values())}
                ready = [probe for probe in waiting if pending.isdisjoint(probe.after)]
                if not (ready or running):
                    ready = list(waiting)  # they wait for each other
                for probe in ready:
                    reason = _reason_to_skip(probe, facts)
                    if reason is not None:
                        waiting.remove(probe)
                        finish(probe, [skip(probe.name, reason)])
                    elif len(running) < AT_ONCE:
                        waiting.remove(probe)
                        running[pool.submit(_run_probe, probe, options, stop)] = probe
                        report(complete, [other.name for other in running.values()])
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    probe, result = running.pop(future), future.result()
                    finish(probe, _judge(probe, result, facts), result.seconds)
        finally:
            stop.set()  # on Ctrl-C the children are ended, not left behind
    return [check for probe in every for check in findings[probe.name]]


def run_doctor(python: str = sys.executable, runs: Path | str = "runs") -> list[Check]:
    """Return the findings on a Python and its machine in ten steps; each check runs in a child with a deadline.

    `python` is the interpreter to check (path or name), `runs` the folder whose disk is tested. Raises ConfigError
    where `python` is not an interpreter.
    """
    return run(Options(interpreter(python), Path(runs)))


def worst(checks: Sequence[Check]) -> str:
    """Return the judgement that stands for several: fail, then warn, then ok, and skip where nothing was judged."""
    judged = {check.judgement for check in checks}
    return next((word for word in WORST if word in judged), "skip")


def _run_probe(probe: Probe, options: Options, stop: threading.Event) -> ProbeResult:
    python, call = sys.executable if probe.own else options.python, (probe.probe, probe.function, probe.arguments)
    try:
        return probe_runner.run(python, *call, deadline=probe.deadline, idle=probe.idle, own=probe.own, stop=stop)
    except Exception as error:  # out of descriptors, of memory: the report goes on without this one
        return ProbeResult(ended="unstarted", errors=f"{type(error).__name__}: {error}")


def _reason_to_skip(probe: Probe, facts: dict[str, Answer]) -> str | None:
    """Return why a probe need not run; a condition that cannot read damaged answers does not count."""
    with contextlib.suppress(Exception):
        return probe.skip(facts)
    return None


def _judge(probe: Probe, result: ProbeResult, facts: dict[str, Answer]) -> list[Check]:
    """Return the findings on what a child answered, or on what became of it; good answers are added to the facts."""
    checks, failures = [], failed_probe.checks(probe, result)
    good = failed_probe.ended_well(result)
    if good:
        try:
            checks = [replace(check, step=probe.step) for check in probe.judge(result.answer, facts)]
        except Exception as error:
            answer, good = str(result.answer)[:120], False
            what = f"its answer is garbage ({type(error).__name__}: {error}): {answer}"
            checks = [fail(probe.name, what, "an answer of the agreed form", failed_probe.remedy(probe))]
    checks = [check_packages.explain_by_shadowing(check, facts) for check in (*checks, *failures)]
    if good:
        facts[probe.name] = result.answer
    return checks


def _cleaned(check: Check, probe: Probe, seconds: float) -> Check:
    """Return a finding without secrets, and each text in one line without the control characters of a library."""
    texts = {
        name: str(clean(" ".join("".join(c if c.isprintable() else " " for c in text).split())))
        for name, text in (("observed", check.observed), ("need", check.need), ("do", check.do))
    }
    return replace(check, step=probe.step, seconds=round(seconds, 3), **texts)
