"""Is a step replayed bit for bit, and is a planted fault named? Two rows of flight.py."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import flight_truth
from flight_faults import FAULTS, PROGRAMS, Plan, draw, expected

ROOT = Path(__file__).parents[1]
VICTIM = Path(__file__).with_name("flight_victim.py")
COMMAND = [sys.executable, "-m", "ocrlab"]
NEVER = 10**6
LIMIT = 60.0  # seconds for a replay that answers
PATIENCE = 240.0  # seconds after which a training is ended
SETTINGS: tuple[dict[str, Any], ...] = (  # of the runs whose losses are compared
    {"program": "loop", "workers": 0, "accumulate": 2, "steps": 10},
    {"program": "lightning", "workers": 2, "accumulate": 1, "steps": 20},
    {"program": "train", "workers": 2, "accumulate": 2, "steps": 10},
    {"program": "loop", "workers": 2, "accumulate": 1, "steps": 20, "bf16": True, "names": False},
    {"program": "lightning", "workers": 0, "accumulate": 3, "steps": 7, "batches": "raw"},
    {"program": "train", "workers": 2, "accumulate": 2, "steps": 12, "snapshot_every": 7},  # from the middle
    {"program": "lightning", "workers": 2, "accumulate": 2, "steps": 12, "snapshot_every": 7, "bf16": True},
    {"program": "loop", "workers": 0, "accumulate": 1, "steps": 24, "snapshot_every": 9},
)


@dataclass
class FaultResult:
    """One fault: what was planted, what the answer names, and which parts of it are right."""

    plan: Plan
    parts: dict[str, Any]
    right: dict[str, bool]
    seconds: float
    note: str = ""


@dataclass
class Losses:
    """Losses compared bit for bit: of how many steps, how many were equal, and what was wrong."""

    steps: int = 0
    equal: int = 0
    notes: list[str] = field(default_factory=list)


def environment() -> dict[str, str]:
    """Return the environment of a program that somebody starts: this tree, one thread."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def trained(plan: Plan) -> int | None:
    """Run a plan to its end, or until its fault has not returned for two seconds; returns the exit status."""
    folder = Path(plan.folder)
    command = [sys.executable, str(VICTIM), str(plan.save())]
    with (folder / "log").open("wb") as log:
        program = subprocess.Popen(
            command, env=environment(), stdout=log, stderr=log, cwd=folder, start_new_session=True
        )
        end, stuck = time.monotonic() + PATIENCE, None
        while program.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
            if plan.fault == "hang" and stuck is None and flight_truth.lines(folder, "fault"):
                stuck = time.monotonic()
            if stuck is not None and time.monotonic() - stuck > 2:
                break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        return program.wait()


def run_folder(plan: Plan) -> Path:
    """Return the run folder that a plan has left."""
    return next(Path(plan.folder).glob("runs/*/"), Path(plan.folder, "run"))


def replay(plan: Plan, *words: str) -> tuple[dict[str, Any], float]:
    """Run `ocrlab replay` on what a plan has left; returns its JSON ({} where there is none) and its seconds."""
    command = [*COMMAND, "replay", str(run_folder(plan)), "--json", *words]
    begin = time.monotonic()
    program = subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = program.communicate(timeout=1.5 * LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(program.pid, signal.SIGTERM)
        out, err = "", "not ended by itself"
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.communicate(timeout=20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
    seconds = time.monotonic() - begin
    Path(plan.folder, "replay.json").write_text(out or "{}", encoding="utf-8")
    Path(plan.folder, "replay.err").write_text(err, encoding="utf-8")
    with contextlib.suppress(ValueError):
        return json.loads(out), seconds
    return {}, seconds


def cases(seeds: int, only: Sequence[str] = ()) -> list[tuple[str, str, str, int]]:
    """Return (program, fault, phase, seed) of every fault and seed, the programs in turn; `only` picks by words."""
    matches = []
    for seed in range(seeds):
        for number, (fault, phase, programs) in enumerate(FAULTS):
            program = programs[(seed + number) % len(programs)]
            if not only or any(word in f"{program}-{fault}-{phase}-{seed}" for word in only):
                matches.append((program, fault, phase, seed))
    return matches


def faults(chosen: Sequence[tuple[str, str, str, int]], keep: Path | None = None) -> list[FaultResult]:
    """Plant, train until it fails, replay, and judge; `keep` is a folder for what the runs left."""
    results = []
    for program, fault, phase, seed in chosen:
        with tempfile.TemporaryDirectory(prefix="ocrlab-bench-") as scratch:
            folder = Path(keep or scratch, f"{program}-{fault}-{phase}-{seed}")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            plan = draw(folder, program, fault, phase, seed)
            status = trained(plan)
            if status == 0:
                result = FaultResult(plan, {}, judged(plan, {}), 0.0, "the planted fault did not happen")
            else:
                record, seconds = replay(plan)
                result = FaultResult(plan, answer_parts(record), judged(plan, record), seconds)
            results.append(result)
            print(line(result), file=sys.stderr, flush=True)
    return results


def line(result: FaultResult) -> str:
    """Return one fault as a line for people."""
    plan = result.plan
    missed = [name for name, right in result.right.items() if not right]
    place = f"{plan.module or 'outside of modules'} ({plan.way})"
    details = "" if not missed else f": named {result.parts}; expected {expected(plan)}"
    head = f"{plan.program} {plan.fault} {plan.phase} in {place}, page {plan.page}: {result.seconds:.0f} s"
    return f"{head}, {'missed ' + ' '.join(missed) if missed else 'right'}{details} {result.note}"


def answer_parts(record: dict[str, Any]) -> dict[str, Any]:
    """Return what an answer of `ocrlab replay` names."""
    first = record.get("fault") or {}
    names = {"module": "path", "op": "op", "sample": "names", "phase": "phase"}
    parts = {name: first.get(key) for name, key in names.items()} | {"answer": record.get("answer")}
    sample = parts["sample"] or re.findall(r"\bsample `([^`]+)`", parts["answer"] or "")
    return parts | {"op": parts["op"] or first.get("node"), "sample": sample}


def judged(plan: Plan, record: dict[str, Any]) -> dict[str, bool]:
    """Return which of module, op, sample and phase are right."""
    want, parts = expected(plan), answer_parts(record)
    op = letters(parts["op"])
    names = list(parts["sample"] or ())
    if want["sample"] is None:
        right_sample = len(names) != 1 or plan.batch == 1
    else:
        right_sample = [Path(str(name)).stem for name in names] == [Path(want["sample"]).stem]
    phase = {"loss": ("loss", "forward")}.get(want["phase"], (want["phase"],))
    return {
        "module": bool(record) and any(same_module(parts["module"], module) for module in want["modules"]),
        "op": bool(record) and (not want["ops"] or any(letters(operator) in op for operator in want["ops"])),
        "sample": bool(record) and right_sample,
        "phase": parts["phase"] in (*phase, "loss") if want["phase"] == "forward" else parts["phase"] in phase,
    }


def letters(name: object) -> str:
    """Return only the letters of a name, small: LineFilterBackward and scan::line_filter_grad both hold linefilter."""
    return re.sub(r"[^a-z0-9]", "", str(name or "").lower())


def same_module(answer: object, want: str) -> bool:
    """Return whether two names are one module, one of them perhaps seen from further outside."""
    name = str(answer or "")
    if not want:  # outside of all modules but the outermost
        return name in ("", "loss", "criterion", "training_step", "model", "net", "detector")
    return name == want or (bool(name) and (want.endswith("." + name) or name.endswith("." + want)))


def losses(settings: Sequence[dict[str, Any]] = SETTINGS, keep: Path | None = None) -> Losses:
    """Replay the last step of healthy runs and compare every loss on the way."""
    total = Losses()
    for number, setting in enumerate(settings):
        with tempfile.TemporaryDirectory(prefix="ocrlab-bench-") as scratch:
            folder = Path(keep or scratch, f"losses-{number}")
            shutil.rmtree(folder, ignore_errors=True)
            plan = Plan(**{"folder": str(folder), "seed": 11 + number, "snapshot_every": NEVER, **setting})
            status = trained(plan)
            if status != 0:
                total.notes.append(f"{setting}: the training ended with {status}")
                continue
            replay(plan, "--step", str(plan.steps - 1))
            steps, equal = compared(folder, from_first=plan.snapshot_every == NEVER)
            total.steps += steps
            total.equal += equal
            print(f"{setting}: {equal} of {steps} equal", file=sys.stderr, flush=True)
            if equal < steps:
                total.notes.append(f"{setting}: {steps - equal} of {steps} differ or were not replayed")
    return total


def compared(folder: Path, from_first: bool = True) -> tuple[int, int]:
    """Return how many losses of a training should have been replayed first, and how many were, equal.

    From its first step all of them should; from a snapshot in the middle those that were, and at least the last.
    """
    lines = flight_truth.lines(folder, "loss")
    recorded = {loss["micro"]: loss["value"] for loss in lines if not loss["replay"]}
    first = next((loss["pid"] for loss in lines if loss["replay"]), None)
    again = {loss["micro"]: loss["value"] for loss in lines if loss["pid"] == first and loss["replay"]}
    asked = recorded.keys() if from_first else {*again, max(recorded)}
    return len(asked), sum(again.get(micro, "") == recorded.get(micro) for micro in asked)


def summary(results: Sequence[FaultResult]) -> list[tuple[object, ...]]:
    """Return a row for each fault: how often module, op, sample, phase and all were right, and the slowest replay."""
    rows: list[tuple[object, ...]] = []
    for fault, phase, _ in FAULTS:
        here = [result for result in results if (result.plan.fault, result.plan.phase) == (fault, phase)]
        if here:
            rows.append((f"{fault}, {phase}", *counts(here)))
    rows += [
        (f"in {program}", *counts(h))
        for program in PROGRAMS
        if (h := [f for f in results if f.plan.program == program])
    ]
    return [*rows, ("in all", *counts(results))] if results else rows


def counts(results: Sequence[FaultResult]) -> tuple[object, ...]:
    """Return of how many, how many named module, op, sample, phase, the first three of them, and the slowest."""
    right = Counter(name for result in results for name, good in result.right.items() if good)
    whole = sum(complete(result) for result in results)
    names = ("module", "op", "sample", "phase")
    return (len(results), *(right[name] for name in names), whole, f"{max(result.seconds for result in results):.0f} s")


def complete(result: FaultResult) -> bool:
    """Return whether module, op and sample were named in time."""
    return all(result.right[name] for name in ("module", "op", "sample")) and result.seconds <= LIMIT
