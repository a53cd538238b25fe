"""What to change where not even one crop fits: each change is tried, and says what it needs then.

A child is ended at the limit, so that nobody learns how much a change saves that is not enough. Where only several
together are, they are taken back one by one, what costs the most accuracy first, as long as it still fits.
"""

from __future__ import annotations

from typing import Any

from ocrlab.config.fields import flat
from ocrlab.debug.memory.fit_trials import MemoryTrial, TrialRunner

SMALLEST = "resnet18_slim"
EXPANDABLE = ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")


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


def left_out_changes(settings: dict[str, Any]) -> dict[str, str]:
    """Return what would save memory and cannot be tried with these settings, and why."""
    if settings["weights"] is None:
        return {"frozen BatchNorm": "random weights have no statistics to keep; with weights=... it is tried"}
    return {}


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
