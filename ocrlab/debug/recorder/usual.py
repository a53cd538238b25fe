"""The usual step of the recorder, in C where that was built (`quick.c`): prepared by each unusual one.

Nothing is recorded that Python would not record: what C has not prepared for, it leaves to Python.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from ocrlab.debug.flight_record import ring_format, ring_writer
from ocrlab.debug.flight_record.ring_format import States
from ocrlab.debug.recorder import iteration_log, rng_state
from ocrlab.debug.recorder.memory_sample import Memory
from ocrlab.debug.recorder.training_health.monitor import MANY, Learning

PHASES = ("data", "forward", "backward", "optimiser")


def made(writer: ring_writer.Writer, stepping: Callable[..., Any], stepped: Callable[..., Any], memory: Memory) -> Any:
    """Return what writes usual records into the ring of `writer`, None where it was not built.

    `stepping` and `stepped` are the hooks before and behind an optimiser's step that is no usual one.
    """

    def measure() -> tuple[bytes, float]:
        return ring_format.head_of(memory.at(time.time(), cuda=False)).encode(), memory.due

    if rng_state.quick is None:
        return None
    at = ring_format.FIRST, ring_format.SLOT_BYTES, writer.room, writer.large_at, writer.blocks_at, writer.blocks
    places = ring_format.PHASE_AT, ring_format.COUNT_AT, ring_format.BLOCK_AT, writer.together
    words = tuple(writer.words[name] for name in PHASES)
    marks = rng_state.MARKS
    known = vars(torch.cuda), torch.Tensor, iteration_log.BASE
    return rng_state.quick.Quick(
        writer.page, (writer.slots, *at, *places), words, type(marks), marks, *known, stepping, stepped, measure
    )


def listen(optimizer: Any, quick: Any, stepping: Callable[..., Any]) -> list[Callable[[], Any]]:
    """Hear an optimiser's steps, in Python by `stepping`; returns what undoes it, nothing for one of another make."""
    hooks = {"register_step_pre_hook": stepping}
    if quick is not None:
        hooks = {"register_step_pre_hook": quick.stepping, "register_step_post_hook": quick.behind}
    if not all(hasattr(optimizer, name) for name in hooks):
        return []
    return [getattr(optimizer, name)(hook).remove for name, hook in hooks.items()]


def prepare(quick: Any, writer: ring_writer.Writer, random: States, memory: Memory, learning: Learning | None) -> None:
    """Let the next steps be usual ones, behind a record with the states `random`."""
    if quick is None:
        return
    model: Any = None
    optimizer: Any = None
    witness: Any = None
    if learning is not None:
        optimizer = learning.optimizers[0] if len(learning.optimizers) == 1 else None
        witness = learning.witness.get(optimizer) if optimizer is not None else None
        model = learning.called[0] if learning.moving else None
        if witness is None or len(learning.called) != 1 or learning.looking or learning.probes or learning.validating:
            return
    still = random[0] if rng_state.MARKS.states() is random else None
    raw = writer.states(random)
    more = len(random[1])
    quick.prepare(still, raw[: len(raw) - more], more, ring_format.head_of(memory.resident).encode(), memory.due)
    for told in writer.told.values():
        if not writer.old(told.oldest):
            quick.know(told.still, told.raw, told.more)
    if learning is not None:
        quick.look(learning.due, learning.walk, optimizer, model, witness)


def wait(tape: Any) -> None:
    """Note that the next batch is waited for."""
    if tape.quick is None or not tape.quick.wait():
        tape.phase("data")


def drain(quick: Any, learning: Learning | None) -> None:
    """Bring what was noted of usual steps to those who count it."""
    if quick is None or not quick.noted:
        return
    batches, losses, rates, indices = quick.drain()
    if learning is None:
        return
    learning.told.batches += batches
    learning.told.steps += len(rates)
    learning.losses += losses
    learning.steps += [(rate != 0, rate, True, False) for rate in rates]
    for drawn in indices:
        learning.drawn.note(drawn)
    if max(len(learning.losses), len(learning.steps)) >= MANY:
        learning.count()
