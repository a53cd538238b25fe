"""Where batches are tried: each in a training of a few steps, in a watched child that may run out of memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ocrlab import run_folder
from ocrlab.config.schema import Config
from ocrlab.debug.memory import memory_limit
from ocrlab.debug.memory.memory_limit import Limit
from ocrlab.debug.trials import trial
from ocrlab.errors import RunError
from ocrlab.records import from_json

SLOWEST = 300.0  # seconds that one child may take
QUIET = {
    "trainer.devices": 1,  # what one rank needs
    "trainer.sync_batchnorm": False,
    "tracking.mode": "disabled",
    "trainer.max_minutes": None,
    "runtime.debug_cuda": False,
    "trainer.patience": None,
}
KILLS = ("host.oom_kill", "loader.worker_killed", "SIGKILL")
BELOW = 0.9  # of what a child may need: what is killed further below was killed because of other processes
RETRIES, PATIENCE = 2, 15.0  # of a trial that was not measured, and the seconds to wait for free memory before each
WORDS = ("MemoryError", "bad_alloc", "out of memory", "can't allocate memory", "Cannot allocate memory")
Report = Callable[[str], None]


@dataclass(frozen=True)
class MemoryTrial:
    """One child: its batch, what was set otherwise, whether that fits, and the most that it held, in bytes.

    `peak` of one that does not fit is what it held when it was ended, or None where it died. One that is not `measured`
    was too slow, or was ended below its limit because other processes took the memory: it neither fits nor fails to.
    """

    batch: int
    fits: bool
    peak: int | None = None
    phase: str = ""  # the part of the training that needed most, or in which it ended
    message: str = ""
    seconds: float = 0.0
    crops_a_second: float = 0.0
    changes: dict[str, str] = field(default_factory=dict)
    answer: dict[str, Any] = field(default_factory=dict)
    long: bool = False  # some dozen steps instead of a few
    measured: bool = True


@dataclass
class TrialRunner:
    """Where children are tried: a private folder, the limit, the end of all, and what earlier ones have settled."""

    config: Config
    folder: Path
    limit: Limit
    margin: float
    end: float  # of time.monotonic()
    report: Report
    settled: dict[str, Any] = field(default_factory=dict)
    tries: list[MemoryTrial] = field(default_factory=list)

    @property
    def usable(self) -> int:
        """Return the bytes that a training may need: the limit without the margin."""
        return int(self.limit.bytes * (1 - self.margin))

    def left(self) -> float:
        """Return the seconds that are left."""
        return self.end - time.monotonic()

    def child(self, module: str, changes: Mapping[str, Any], **more: Any) -> tuple[Any, trial.RunResult]:
        """Run a module of `ocrlab.training.jobs` as a child; return its answer, None for none, and how it ended.

        `changes` are settings, and environment variables in capitals.
        """
        env = {name: value for name, value in changes.items() if name.isupper()}
        number = len(list(self.folder.glob("job-*.json")))
        job, out = self.folder / f"job-{number}.json", self.folder / f"out-{number}.json"
        place = self.folder / f"run-{number}"
        runs = {"runs": str(place / "runs"), "name": "fit"}
        settings = {**QUIET, **runs, **self.settled, **changes}
        overrides = {name: value for name, value in settings.items() if name not in env}
        content = {"schema": 1, "config": str(self.folder / "config.yaml"), "overrides": overrides}
        run_folder.write_json(job, {**content, "out": str(out), **more}, private=True)
        command = ([sys.executable, "-m", f"ocrlab.training.jobs.{module}", str(job)], env)
        ended = trial.run_trial(lambda _place: command, place, max(5.0, min(SLOWEST, self.left())))
        answer = from_json(out.read_bytes(), source=str(out)) if out.is_file() else None
        return answer, ended

    def attempt(self, batch: int, changes: dict[str, str] | None = None, *, long: bool = False) -> MemoryTrial:
        """Train some steps with a batch, and say whether they fit; raises RunError for what fails of another cause.

        A trial that was not measured because others took the memory is tried again when there is some.
        """
        changes = dict(changes or {})
        # A child ends itself at the limit; the allocator of a device without a set limit knows its own end.
        ceiling = None if self.limit.kind == "device" and not self.limit.chosen else self.usable
        kind = {"usable": ceiling, "kind": self.limit.kind, "long": long}
        for retry in range(1 + RETRIES):
            began = time.monotonic()
            answer, ended = self.child("measure_memory", {**changes, "batch_size": batch}, **kind)
            self.settled = {**(answer or {}).get("settled", {}), **self.settled}
            seconds = time.monotonic() - began
            done = replace(judge_trial(batch, changes, answer, ended, self.usable, seconds, self.margin), long=long)
            final = done.measured or done.answer.get("slow") or retry == RETRIES
            if final or self.left() < PATIENCE + done.seconds:
                break
            self.report(line(done) + "; trying again")
            self.wait_for_memory()
        self.tries.append(done)
        self.report(line(done))
        return done

    def wait_for_memory(self) -> None:
        """Wait until what a child may need is free, PATIENCE seconds at most."""
        end = time.monotonic() + min(PATIENCE, max(0.0, self.left()))
        while time.monotonic() < end and (memory_limit.free_memory() or 0) < self.usable:
            time.sleep(0.5)


def judge_trial(
    batch: int, changes: dict[str, str], answer: Any, ended: Any, usable: int, seconds: float, margin: float
) -> MemoryTrial:
    """Return what a child's answer and its end say; raises RunError for what fails of another cause than memory."""
    answer = answer or {}
    phase = answer.get("phase", "start")
    refused = MemoryTrial(batch, False, None, phase, ended.description, seconds, changes=changes, answer=answer)
    if answer.get("finished") and not ended.fingerprint:
        peak, phase, room = _peak(answer, usable, margin)
        speed = answer["crops_a_second"]
        return replace(refused, fits=peak <= room, peak=peak, phase=phase, message="", crops_a_second=speed)
    if over := answer.get("over"):
        return replace(refused, peak=over["held"] or None, phase=over["phase"], message="ended at the limit")
    in_use = answer.get("held", 0)
    if answer.get("crowded") or (ended.fingerprint in KILLS and in_use < BELOW * usable):
        why = f"ended at {in_use / memory_limit.MIB:,.0f} MiB, below the limit: other processes took the memory"
        return replace(refused, message=why, measured=False)
    words = any(word in ended.description for word in WORDS)
    memory = ended.fingerprint in (*KILLS, "host.alloc_fail") or ended.fingerprint.startswith("gpumem.")
    if words or memory:
        return refused
    if ended.fingerprint in (trial.SLOW, trial.HANG):
        return replace(refused, message=f"not done in {seconds:.0f} s", answer={"slow": True}, measured=False)
    reason = answer.get("error") or ended.description
    what = f"A training with batch_size={batch} failed for a reason other than memory"
    raise RunError(what, got=reason, do="Run ocrlab train")


def _peak(answer: Mapping[str, Any], usable: int, margin: float) -> tuple[int, str, int]:
    """Return (bytes, the part of the training, bytes that there may be) of a training that was done."""
    device = answer["device"]
    if device:
        room = min(usable, int((device["total"] - device["outside"]) * (1 - margin)))
        phase = max(("train", "validate", "final"), key=lambda name: device.get(name, 0))
        return device["reserved"], phase, room
    peaks = answer["peaks"]
    highest = max(peaks.values())
    # Freed memory stays with the process, so the parts after the highest one read nearly the same.
    phase = next(name for name, value in peaks.items() if value >= 0.99 * highest)
    return highest, phase, usable


def line(done: MemoryTrial) -> str:
    """Return one try as a line of text."""
    changes = "".join(f" {key}={value}" for key, value in done.changes.items())
    size = f"{done.peak / memory_limit.MIB:,.0f} MiB" if done.peak is not None else done.message
    if not done.measured:
        verdict = f"not measured: {done.message}"
    else:
        verdict = f"fits, at most {size}" if done.fits else f"does not fit: {size} in {done.phase}"
    speed = f", {done.crops_a_second:.1f} crops a second" if done.fits else ""
    longer = ", for longer" if done.long else ""
    return f"batch_size={done.batch}{changes}{longer}: {verdict}{speed} ({done.seconds:.0f} s)"
