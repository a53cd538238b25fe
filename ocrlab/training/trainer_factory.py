"""The Lightning trainer of a run: what it is told, how it writes checkpoints, and which of its warnings are known."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.plugins import TorchCheckpointIO

from ocrlab.inference import checkpoint
from ocrlab.inference.checkpoint import save  # where Lightning's own argument is called `checkpoint`
from ocrlab.training.distributed import collectives
from ocrlab.training.lightning_module import Training


class AtomicIO(TorchCheckpointIO):
    """Lightning's checkpoint reader and writer with `checkpoint.save` and `load` in place of its own."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        save(checkpoint, Path(path))

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        # To the host, whatever Lightning says: a state of a GPU that is not here any more can be read nowhere else, and
        # all ranks would read theirs into the memory of the GPU of rank 0.
        return checkpoint.load(Path(path))


def trainer_for(module: Training, callbacks: list[Any], folder: Path, sanity: int = 0) -> lightning.Trainer:
    """Return the trainer of a run; its devices and hints stay unsaid, ours say what was chosen."""
    config, machine = module.config, module.machine
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    spread = collectives.strategy(module.ranks, machine.accelerator, folder)
    if config.trainer.sync_batchnorm and module.ranks.several:
        torch.nn.SyncBatchNorm.convert_sync_batchnorm(module.detector, collectives.among(spread["strategy"]))
    trainer = lightning.Trainer(
        accelerator="gpu" if machine.accelerator == "cuda" else "cpu",
        **spread,
        precision="bf16-mixed" if machine.bf16 else "32-true",
        max_epochs=1,  # Lightning's epoch is the whole run; ours are in PageOrder
        max_steps=config.trainer.max_steps,
        max_time=timedelta(minutes=config.trainer.max_minutes) if config.trainer.max_minutes else None,
        accumulate_grad_batches=config.trainer.accumulate_grad_batches,
        gradient_clip_val=config.optim.grad_clip or None,
        val_check_interval=config.trainer.val_every * config.trainer.accumulate_grad_batches,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=sanity,
        callbacks=callbacks,
        plugins=[AtomicIO()],
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        benchmark=True if machine.accelerator == "cuda" else None,
    )
    collectives.alone_with_signals(trainer, module.ranks)
    return trainer


@contextlib.contextmanager
def expected_warnings() -> Iterator[None]:
    """Keep quiet about what was chosen so: see machine.py, PageOrder, `averaged`."""
    patterns: tuple[str, ...] = (
        "does not have many workers",
        "not resumable",
        "LeafSpec",
        "module.s. in eval mode",
        "val_check_interval",
    )
    patterns += ("Grad strides do not match bucket view", "find_unused_parameters")
    with warnings.catch_warnings():
        for words in patterns:
            warnings.filterwarnings("ignore", f".*{words}.*")
        yield
