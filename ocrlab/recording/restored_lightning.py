"""A replay inside a Lightning trainer: the snapshot is resumed from as a checkpoint, and nothing else is written.

Lightning has no public way to resume from a state in memory; what is used of it in private is pinned by a test.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loggers.logger import DummyLogger
from torch import nn

from ocrlab.errors import CheckpointError
from ocrlab.recording.restored import Restored


def start(replay: Restored, trainer: Any, model: nn.Module) -> None:
    """Make a Lightning trainer, in its `setup` hook, resume from the replay's snapshot and write nothing."""
    replay.start(model, ())
    trainer.callbacks = [callback for callback in trainer.callbacks if not isinstance(callback, Checkpoint)]
    trainer.loggers = [DummyLogger() for _ in trainer.loggers]
    trainer.save_checkpoint = lambda *_args, **_kwargs: None
    trainer.num_sanity_val_steps = 0
    if replay.validated is None:
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
