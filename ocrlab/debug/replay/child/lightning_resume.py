"""A replay inside a Lightning trainer: the snapshot is resumed from as a checkpoint, and nothing else is written.

Lightning has no public way to resume from a state in memory; what is used of it in private is pinned by a test.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers.logger import DummyLogger
from torch import nn

from ocrlab.debug.flight_record import program_info
from ocrlab.errors import CheckpointError

if TYPE_CHECKING:
    from ocrlab.debug.replay.child.replay_session import ReplaySession


def start(replay: ReplaySession, trainer: Any, model: nn.Module, *, validates: bool = True) -> None:
    """Make a Lightning trainer, in its `setup` hook, resume from the replay's snapshot and write nothing.

    It `validates` between epochs where something may depend on it: a learning rate, a callback that stops early.
    """
    replay.start(model, ())
    trainer.callbacks = [callback for callback in trainer.callbacks if not isinstance(callback, Checkpoint)]
    trainer.loggers = [DummyLogger() for _ in trainer.loggers]
    trainer.save_checkpoint = lambda *_args, **_kwargs: None
    if replay.whole:
        return
    if not replay.is_before:
        trainer.num_sanity_val_steps = 0
    if replay.validated is None and not validates:
        trainer.limit_val_batches = 0
    connector = trainer._checkpoint_connector
    if replay.state is None:
        connector.resume_start = lambda *_args, **_kwargs: None
        return
    content = replay.state["state"]
    if content.get("kind") != "lightning":
        raise CheckpointError("The snapshot is not of a Lightning training", got=content.get("kind"))

    def resume_start(_path: Any = None, *_args: Any, **_kwargs: Any) -> None:
        connector._ckpt_path = str(replay.job["snapshot"])
        connector._loaded_checkpoint = dict(content["checkpoint"])

    connector.resume_start = resume_start


def report_errors(replay: ReplaySession, trainer: Any) -> Callable[[], Any]:
    """Have the replay take note of an error of the training in a process that Lightning has started (ddp_spawn), where
    it calls no `on_exception`; returns what ends that.
    """
    run = trainer._run_stage
    if not program_info.process_path():
        return lambda: None

    def run_stage() -> Any:
        try:
            return run()
        except BaseException as error:
            replay.failed(error)
            raise

    trainer._run_stage = run_stage
    return lambda: trainer.__dict__.pop("_run_stage", None)


def hand_over(module: Any, step: str, original: Any, batch: Any) -> Callable[[], Any]:
    """Have a module run its `step` with `batch` in place of the `original` that the trainer gave to hooks.

    A batch is changed in place where it can be; tuples in a tuple, as `tuple(zip(*samples))` leaves them, cannot.
    """
    if batch is original:
        return lambda: None
    make, override = getattr(module, step), module.__dict__.get(step)

    @functools.wraps(make)  # Lightning reads in the signature what else is wanted
    def step_with_batch(_original: Any, *rest: Any, **named: Any) -> Any:
        return make(batch, *rest, **named)

    setattr(module, step, step_with_batch)
    return lambda: delattr(module, step) if override is None else setattr(module, step, override)
