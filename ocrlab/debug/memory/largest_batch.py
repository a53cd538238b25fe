"""The largest batch that fits, found by trainings of a few steps in watched children: what dies of it dies there.

The first guess is the estimate; each measured peak corrects it, until a batch fits and the next one does not.
That batch must then fit in a longer training too, whose heap has had the time to grow holes; else it is made smaller.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ocrlab import run_folder
from ocrlab.config import schema as configs
from ocrlab.config.fields import flat
from ocrlab.config.schema import Config
from ocrlab.debug.memory import memory_limit
from ocrlab.debug.memory.fit_trials import KILLS, PATIENCE, RETRIES, MemoryTrial, Report, TrialRunner
from ocrlab.debug.memory.memory_limit import Limit
from ocrlab.debug.trials import trial
from ocrlab.errors import RunError

PASSES = 10  # each crop of a batch is trained so many times in a trial, with what is around the steps
MOST = 4096  # crops: no larger batch is tried
SMALLEST = "resnet18_slim"
EXPANDABLE = ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
CLOSE = 0.90  # of the limit: a batch that needs so much is not made larger


@dataclass
class Fit:
    """The largest batch that fits (0 for none), its peak, the limit, the config words, and every try."""

    batch: int
    peak: int | None
    limit: Limit
    usable: int
    settings: list[str]
    most: int
    proven: str  # why there is nothing larger: batch + 1 fails, close, most, slow, time, unverified, not measured
    tries: list[MemoryTrial]
    remedies: list[MemoryTrial] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    estimate: dict[str, Any] = field(default_factory=dict)


def largest_batch(
    config: Config, *, limit: float | None = None, margin: float = 0.1, minutes: float = 5.0, cuda: bool = False
) -> Fit:
    """Return the largest batch that fits a config, measured by trainings of a few steps in child processes.

    `limit` is in GB (10^9 bytes); the default is what this process may use, on the GPU with `cuda`. `margin` is the
    fraction of it to leave free. Raises RunError if the training fails for another reason than memory.
    """
    bytes_limit = memory_limit.find_limit(limit, cuda=cuda)
    with tempfile.TemporaryDirectory(prefix="ocrlab-fit-", ignore_cleanup_errors=True) as folder:
        return fit(config, Path(folder), limit=bytes_limit, margin=margin, seconds=60 * minutes)


def fit(
    config: Config, folder: Path, *, limit: Limit, margin: float, seconds: float, report: Report = lambda _text: None
) -> Fit:
    """Return the largest batch that fits a config; `folder` is new and private, whoever made it removes it.

    Raises RunError where the training fails of another cause, or where the time is over before anything was measured.
    """
    run_folder.write_text(folder / "config.yaml", configs.dump(config), private=True)
    room = TrialRunner(config, folder, limit, margin, time.monotonic() + seconds, report)
    try:
        guess = estimate(room)
    except NotEstimated as error:
        return Fit(0, None, limit, room.usable, [], MOST, error.proven, [])
    first = max(1, guess["pages"], config.batch_size * config.trainer.accumulate_grad_batches)
    batch, proven = verify_longer(room, *search(room, guess, MOST, first))
    if batch == 0 and limit.wanted and not limit.chosen and limit.kind == "resident":
        proven = "not measured"  # less is free than what was asked about
    peak = next((attempt.peak for attempt in reversed(room.tries) if attempt.batch == batch and attempt.fits), None)
    tries = list(room.tries)
    result = Fit(batch, peak, limit, room.usable, as_settings(config, batch), MOST, proven, tries, estimate=guess)
    if batch == 0 and proven == "batch + 1 fails":
        result.remedies = try_changes(room, tries[-1])
        if config.weights is None:
            why = "random weights have no statistics to keep; with weights=... it is tried"
            result.left_out = {"frozen BatchNorm": why}
    return result


class NotEstimated(RunError):
    """The estimate was ended by other processes or by the clock; `proven` is that of the Fit."""

    def __init__(self, what: str, proven: str, *, got: str, do: str) -> None:
        super().__init__(what, got=got, do=do)
        self.proven = proven


def estimate(room: TrialRunner) -> dict[str, Any]:
    """Return what a child says that one crop and all the rest need: {"pages", "offset", "slope", "parts"...}.

    Raises RunError, NotEstimated where another try may give an answer.
    """
    room.report("estimating with fake tensors")
    for retry in range(1 + RETRIES):
        answer, ended = room.child("estimate_memory", {})
        if answer is not None:
            room.settled = dict(answer["settled"])
            return dict(answer)
        if ended.fingerprint not in KILLS or retry == RETRIES or room.left() < PATIENCE:
            break
        room.report("the estimate was ended because other processes took the memory; trying again")
        room.wait_for_memory()
    proven = {**dict.fromkeys(KILLS, "not measured"), trial.SLOW: "time", trial.HANG: "time"}.get(ended.fingerprint)
    what, got = "The training cannot be estimated", ended.description
    if proven:
        raise NotEstimated(what, proven, got=got, do="Start it again when more memory or time is left")
    raise RunError(what, got=got, do="Try it: ocrlab train trainer.max_steps=2")


def search(room: TrialRunner, guess: Mapping[str, Any], most: int, first: int | None = None) -> tuple[int, str]:
    """Return the largest batch that fits, 0 for none, and why there is nothing larger; larger than `first` comes later.

    What cannot be done in the time that is left is not begun: each child takes as long as its batch is large.
    """
    low, high = 0, most + 1
    slope, offset = max(1.0, guess["slope"]), guess["offset"]
    if room.limit.kind == "address":
        offset += guess["space"]
    wanted = (room.usable - offset) / slope
    peaks: dict[int, int] = {}
    while high - low > 1:
        if room.left() < 5 and room.tries:
            return low, "time"
        ceiling = high - 1 if low or first is None else min(high - 1, first)
        batch = max(low + 1, min(ceiling, int(wanted)))
        if low and (batch := min(batch, _reach(room, low))) == low:
            return low, "time"
        done = room.attempt(batch)
        if not done.measured and not done.answer.get("slow"):
            return low, "not measured"
        if done.peak is not None:
            peaks[done.batch] = done.peak
        if done.fits:
            low = done.batch
            if done.peak is not None and done.peak >= CLOSE * room.limit.bytes:
                return low, "close"
        else:
            high = done.batch
        wanted = _next(room.usable, low, high, peaks, slope, failed=high <= most)
    slow = any(attempt.answer.get("slow") and attempt.batch == high for attempt in room.tries)
    return low, "most" if low == most else "slow" if slow else "batch + 1 fails"


def verify_longer(room: TrialRunner, batch: int, proven: str) -> tuple[int, str]:
    """Return the largest batch up to `batch` that fits for longer as well, and why there is nothing larger."""
    low, high, at, down = 0, batch + 1, batch, max(1, batch // 10)
    while high - low > 1:
        short = max((attempt.batch for attempt in room.tries if attempt.fits and attempt.batch < high), default=0)
        if room.left() < 5:
            return low or short, "time"
        done = room.attempt(at, long=True)
        if not done.measured:
            return low or min(short, at), "unverified"
        if done.fits:
            low, at = at, (at + high) // 2
        else:
            high, proven = at, "batch + 1 fails"
            at, down = ((low + high) // 2, down) if low else (max(1, at - down), 2 * down)
    return low, proven


def _reach(room: TrialRunner, low: int) -> int:
    """Return the largest batch whose trial ends in the time that is left, by the speed of `low`."""
    fitted = next(trial for trial in reversed(room.tries) if trial.batch == low)
    if not fitted.crops_a_second:
        return MOST
    return low + int(fitted.crops_a_second * max(0.0, room.left() - fitted.seconds) / PASSES)


def _next(usable: int, low: int, high: int, peaks: Mapping[int, int], slope: float, *, failed: bool) -> float:
    """Return the batch to try next: where the line through what was measured meets the limit."""
    if low == 0:
        return high / 2
    below = [batch for batch in peaks if batch < low]
    if below:
        measured = (peaks[low] - peaks[max(below)]) / (low - max(below))
        slope = max(slope / 20, measured)
    reach = low + (usable - peaks[low]) / slope
    if reach < high:
        return reach
    return (low + high) / 2 if failed else high - 1


def as_settings(config: Config, batch: int) -> list[str]:
    """Return the settings of the batch that fits, or of the effective batch of the config in steps that fit."""
    if not batch:
        return []
    whole = config.batch_size * config.trainer.accumulate_grad_batches
    if batch >= whole:
        return [f"batch_size={batch}", "trainer.accumulate_grad_batches=1"]
    size = max(divisor for divisor in range(1, min(batch, whole) + 1) if whole % divisor == 0)
    return [f"batch_size={size}", f"trainer.accumulate_grad_batches={whole // size}"]


# What to change where not even one crop fits: each change is tried, and says what it needs then. A child is ended at
# the limit, so that nobody learns how much a change saves that is not enough. Where only several together are, they
# are taken back one by one, what costs the most accuracy first, as long as it still fits.


def possible_changes(settings: dict[str, Any], phase: str, *, cuda: bool) -> list[dict[str, str]]:
    """Return the changes that the config can express, what costs the least accuracy first."""
    crop, width, side = settings["crop"], settings["width"], settings["evaluate.long_side"]
    random = settings["weights"] is None
    changes: tuple[tuple[bool, tuple[str, str]], ...] = (
        (cuda, EXPANDABLE),
        (settings["runtime.cache"] == "memory" and not cuda, ("runtime.cache", "none")),
        ((settings["runtime.workers"] or 0) > 0 and not cuda, ("runtime.workers", "0")),
        (not settings["runtime.activation_checkpointing"], ("runtime.activation_checkpointing", "true")),
        (settings["trainer.precision"] == "fp32", ("trainer.precision", "bf16")),
        (not random and not settings["optim.freeze_batchnorm"], ("optim.freeze_batchnorm", "true")),
        (phase in ("check", "validate", "final", "start"), ("evaluate.long_side", str(max(64, side // 2)))),
        (crop > 128, ("crop", str(max(64, crop // 64 * 32)))),
        (width > 32, ("width", str(max(16, width // 8 * 4)))),
        (settings["encoder"] != SMALLEST and random, ("encoder", SMALLEST)),
    )
    return [{name: value} for possible, (name, value) in changes if possible]


def try_changes(room: TrialRunner, failed: MemoryTrial) -> list[MemoryTrial]:
    """Try every change with one crop, and where none is enough the fewest together; what fits comes first."""
    settings = {**flat(room.config), **room.settled}
    done: list[MemoryTrial] = []
    changes = possible_changes(settings, failed.phase, cuda=room.limit.kind == "device")
    for change in changes:
        if room.left() < 10:
            break
        done.append(_try_change(room, [change]))
    if len(changes) > 1 and not any(attempt.fits for attempt in done) and room.left() >= 10:
        done += _together(room, changes)
    return sorted(done, key=lambda attempt: (not attempt.fits, len(attempt.changes), attempt.peak or 0))


def _together(room: TrialRunner, changes: list[dict[str, str]]) -> list[MemoryTrial]:
    """Try all changes at once, then without each that is not needed, as far as the time goes."""
    needed = changes
    done = [_try_change(room, needed)]
    for change in reversed(changes) if done[0].fits else ():
        fewer = [other for other in needed if other is not change]
        if len(fewer) < 2 or room.left() < 10:  # each alone was not enough
            break
        done.append(_try_change(room, fewer))
        needed = fewer if done[-1].fits else needed
    return done


def _try_change(room: TrialRunner, changes: list[dict[str, str]]) -> MemoryTrial:
    together = {key: value for change in changes for key, value in change.items()}
    settled = room.settled
    room.settled = {key: value for key, value in settled.items() if key not in together}
    try:
        return room.attempt(1, together)
    finally:
        room.settled = settled
