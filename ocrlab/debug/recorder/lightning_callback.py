"""The flight recorder as a Lightning callback for any project: `Trainer(callbacks=[Recorder()])`.

For a loop written by hand there is `ocrlab.record`, in `loop_recorder.py`, which needs no Lightning.
"""

# ruff: noqa: E402
from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

BEFORE = random.getstate()  # rich, which Lightning imports, draws from it; the program may have seeded it already

import lightning
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader
from torch import nn

from ocrlab.debug.flight_record import program_info
from ocrlab.debug.instruments import sample_names
from ocrlab.debug.recorder import loader_recorder, rng_state, saved_rng_states
from ocrlab.debug.recorder.loop_recorder import recording
from ocrlab.debug.recorder.recording import Recording
from ocrlab.debug.recorder.replay_registration import Session
from ocrlab.debug.recorder.sample_recorder import BatchOrigin, StatusLocation
from ocrlab.debug.recorder.stage_hooks import unwrap
from ocrlab.debug.recorder.step_recorder import StepRecorder
from ocrlab.run_folder import launcher
from ocrlab.run_folder.fail_safe import guard, print_message

random.setstate(BEFORE)
saved_rng_states.record_import()

__all__ = ["Recorder", "recording"]

RANKS_EVERY = 192  # micro-batches between two snapshots of several ranks: a replay makes so many again at the most
UNSHARDED = ("SingleDeviceStrategy", "DDPStrategy", "SingleDeviceXLAStrategy")  # each process holds the whole state


def do_nothing() -> None:
    """Do nothing; a callback that holds a lambda cannot be sent to processes that are spawned."""


class Recorder(Recording, lightning.Callback):
    """Record every step in `folder`/flight, so that `ocrlab replay folder` can run it again.

    The default of `folder` is the trainer's log_dir, else its default_root_dir. `batches` is "ids" (a replay rebuilds
    them from the data) or "raw" (they are stored). `snapshot_every` counts micro-batches; None takes snapshots for
    about 1 % of the time. `steps` is the number of last micro-batches that are kept. An error of the recorder never
    stops a training. Several loaders at once (CombinedLoader) are recorded, but not replayed.
    """

    def __init__(
        self,
        folder: Path | str | None = None,
        *,
        batches: str = "ids",
        snapshot_every: int | None = None,
        steps: int = 512,
        kind: str = "lightning",
        epoch_of: Callable[[int], int] | None = None,
        model_of: Callable[[Any], nn.Module] | None = None,
    ) -> None:
        self.folder, self.batches, self.every, self.steps = folder, batches, snapshot_every, steps
        self.kind, self.epoch_of, self.model_of = kind, epoch_of, model_of
        self.validation_loaders = 0  # loaders that have been prepared for the next validation
        self.replayed_loaders: dict[int, loader_recorder.LoaderRecorder] = {}  # of a validation that is made again
        self.undo = []
        self.undo_batch: Callable[[], Any] = do_nothing  # the batch that a replayed step was given in place of its own
        self.validation_batch = -1  # batches of this validation, of all its loaders
        self.has_several_loaders = False  # for one batch (CombinedLoader): no record can rebuild it

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        self._begin(lambda: self._open(trainer, pl_module))
        if self.replay is not None:
            validates = self.kind == "lightning"
            self.undo.append(self.replay.start_lightning(trainer, self._model(pl_module), validates=validates))
            self._hook_loaders(trainer)

    def _folder(self, trainer: Trainer) -> Path:
        return Path(self.folder or trainer.log_dir or trainer.default_root_dir)

    def _open(self, trainer: Trainer, module: LightningModule) -> StepRecorder:
        folder, every, rank = self._folder(trainer), self.every, trainer.global_rank
        if trainer.world_size > 1 and every is None:
            # All ranks at the same step: hooks of the user may wait for each other.
            every = min(self.steps * 3 // 4, RANKS_EVERY)
        recorder = StepRecorder(folder, self.kind, rank=rank, batches=self.batches, every=every, steps=self.steps)
        strategy = type(trainer.strategy).__name__
        if strategy not in UNSHARDED:
            recorder.snapshots_on = False
            program_info.update(recorder.folder, rank, spread=True)
            if rank == 0:
                print_message(f"no snapshots with {strategy}, which spreads the state over processes")
        recorder.hook_stages(self._model(module))
        if self.kind == "lightning" and rank == 0:
            print_message(f"writes to {recorder.folder}; `ocrlab replay {folder}` runs its last steps again")
        self._hook_loaders(trainer)
        return recorder

    def _model(self, module: LightningModule) -> nn.Module:
        """Return what stages are named after."""
        return module if self.model_of is None else self.model_of(module)

    def _hook_loaders(self, trainer: Trainer) -> None:
        """Look at each loader when Lightning has prepared it, before it is asked for an iterator."""
        strategy: Any = trainer.strategy
        process = strategy.process_dataloader

        def processed(loader: Any) -> Any:
            loader = process(loader)
            number = 0 if trainer.training else 1 + self.validation_loaders
            self.validation_loaders += not trainer.training
            if self.replay is not None:
                if number and loader_recorder.can_record(loader):
                    place = StatusLocation(self.replay.out, self.replay.rank, 0, number)
                    self.replayed_loaders[number] = loader_recorder.LoaderRecorder(loader, place)
                    self.replayed_loaders[number].start()
                return loader if number else self.replay.feed(loader)
            if self.step_recorder is not None:
                self.step_recorder.record_loader(loader, number)
            return loader

        strategy.process_dataloader = processed
        self.undo.append(lambda: strategy.__dict__.pop("process_dataloader", None))

    @guard
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        recorder, loader = self.step_recorder, trainer.train_dataloader
        self.has_several_loaders = isinstance(loader, dict | list | tuple | CombinedLoader)
        if recorder is None:
            return
        if self.has_several_loaders:
            print_message(
                "several loaders at once: steps are recorded, but their batches cannot be made again by a replay"
            )
        recorder.optimizers = trainer.optimizers
        if recorder.on and recorder.snapshots_on:
            model = self._model(pl_module)  # a LightningModule is not called itself: training_step calls its network
            recorder.monitor_training(model, network=unwrap(model)[1])
            self._hook_steps(trainer.optimizers)

    def start_anew(self) -> None:
        """Take a snapshot before the next step, so that no replay begins before the change that was just made."""
        if self.step_recorder is not None:
            self.step_recorder.snapshots.last = self.step_recorder.snapshots.quiet = -1

    @guard
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        micro = trainer.fit_loop.epoch_loop.total_batch_idx
        if self.replay is not None:
            self.replay.begin(batch, micro)
            self._hand_over(self.replay, pl_module, "training_step", batch, self.replay.batch)
            return
        step_recorder = self.step_recorder
        if step_recorder is None or not step_recorder.on:
            return
        epoch = self.epoch_of(micro) if self.epoch_of else trainer.current_epoch
        source = None if self.has_several_loaders else step_recorder.loaders.get(0)
        origin, number = BatchOrigin() if source is None else source.take_origin(), trainer.global_step
        step_recorder.begin(number, micro, epoch, origin, batch)
        loop = trainer.fit_loop.epoch_loop
        is_first = (loop.batch_progress.current.ready - 1) % trainer.accumulate_grad_batches == 0
        if is_first and micro > step_recorder.snapshots.quiet:
            step_recorder.snapshot(number, lambda: resume_state(trainer))

    @guard
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor) -> None:
        scale = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
        if not _is_scaled(trainer):
            self._record_loss(loss, float(scale))
        self._set_phase("backward")

    @guard
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        self._set_phase("optimiser")

    @guard
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        is_scaled = _is_scaled(trainer)
        if self.replay is not None:
            if is_scaled:
                self.replay.loss(outputs.get("loss") if isinstance(outputs, Mapping) else outputs)
            self.replay.end()
            return
        if self.step_recorder is not None and (is_scaled or not self.step_recorder.has_loss()):
            self.step_recorder.loss(outputs)  # also of a manual optimisation that calls loss.backward() itself
        self._set_phase("optimiser")  # the following hooks average weights; the loader sets "data"

    def _hand_over(self, replay: Session, module: LightningModule, step: str, passed: Any, batch: Any) -> None:
        self.undo_batch()
        self.undo_batch = replay.hand_over(module, step, passed, batch)

    @guard
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.replay is not None:
            self.replay.over(leaving=True)
        elif self.step_recorder is not None:
            self.step_recorder.phase("data")  # later failures are after the loop over the batches

    @guard
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.validation_batch = -1
        self._set_phase("validation")

    @guard
    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self.validation_batch += 1
        loaders = self.step_recorder.loaders if self.step_recorder is not None else self.replayed_loaders
        watched = loaders.get(1 + dataloader_idx)
        origin = BatchOrigin() if watched is None else watched.take_origin()
        if self.replay is not None:
            loader = watched.loader() if isinstance(watched, loader_recorder.LoaderRecorder) else None
            named = sample_names.batch_names(batch) or origin.samples
            chosen = self.replay.validate_loaded(batch, named, self.validation_batch, loader, origin)
            self._hand_over(self.replay, pl_module, "validation_step", batch, chosen)
        if self.step_recorder is not None:
            self.step_recorder.validate(self.validation_batch, batch, origin)

    @guard
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.validation_loaders = 0
        self._set_phase("data")

    @guard
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self.step_recorder is not None:
            batch = trainer.fit_loop.epoch_loop.batch_progress.current.ready
            where = f"batch {batch} of {trainer.num_training_batches} of epoch {trainer.current_epoch + 1}"
            self._record_early_exit(exception, where, trainer.max_epochs)
        elif self.replay is None and hasattr(exception, "error_index"):  # of a process that this one has started
            launcher.note_launched(self._folder(trainer) / "flight", exception)
        self._fail(exception)
        self._remove_hooks()

    @guard
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self.step_recorder is not None:
            self.step_recorder.finish()
            self.step_recorder = None
        if self.replay is not None and stage == "fit":
            self.replay.finish()
        self._remove_hooks()


def _is_scaled(trainer: Trainer) -> bool:
    """Return whether the loss of a backward is scaled, 65536 times too large."""
    return getattr(trainer.precision_plugin, "scaler", None) is not None


def resume_state(trainer: Trainer) -> dict[str, Any]:
    """Return Lightning's whole resume state as it was before the batch at hand was fetched, without hyper-parameters.

    Lightning counts a batch as ready before `on_train_batch_start`; a resume begins with the batch that was completed
    last, and fetches this one again.
    """
    content = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
    for name in [name for name in content if name.startswith(("hyper_parameters", "hparams", "datamodule_hyper"))]:
        del content[name]
    progress = content["loops"]["fit_loop"]["epoch_loop.batch_progress"]
    for part in ("total", "current"):
        progress[part]["ready"] = progress[part]["completed"]
    progress["is_last_batch"] = False
    return {"kind": "lightning", "checkpoint": content, "random": rng_state.take()}
