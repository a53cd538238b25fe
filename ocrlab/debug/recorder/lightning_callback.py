"""The flight recorder as a Lightning callback for anybody's project: `Trainer(callbacks=[Recorder()])`.

For a loop written by hand there is `recording`, which is in `loop_recorder.py` and needs no Lightning.
"""

# ruff: noqa: E402
from __future__ import annotations

import contextlib
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
from ocrlab.debug.recorder.loop_recorder import early_exit_text, recording
from ocrlab.debug.recorder.replay_registration import Session, session
from ocrlab.debug.recorder.sample_recorder import BatchOrigin, StatusLocation
from ocrlab.debug.recorder.stage_hooks import unwrap
from ocrlab.debug.recorder.step_recorder import StepRecorder, hook_optimizer
from ocrlab.debug.recorder.training_health.monitor import TrainingMonitor
from ocrlab.debug.recorder.training_state import first_learning_rate
from ocrlab.run_folder import launcher
from ocrlab.run_folder.fail_safe import guard, print_message, report, worker_ended

random.setstate(BEFORE)
saved_rng_states.record_import()

__all__ = ["Recorder", "recording"]

RANKS_EVERY = 192  # micro-batches between two snapshots of several ranks: a replay makes so many again at the most
UNSHARDED = ("SingleDeviceStrategy", "DDPStrategy", "SingleDeviceXLAStrategy")  # each process holds the whole state


def do_nothing() -> None:
    """Do nothing; a callback that holds a lambda cannot be sent to processes that are spawned."""


class Recorder(lightning.Callback):
    """Writes what every step was made of to `folder`/flight, so that `ocrlab replay folder` can run it again.

    `folder` None: the trainer's log_dir, else its default_root_dir. `batches` is ids (rebuilt from the data) or raw
    (kept as they were); `snapshot_every` counts micro-batches, None: as often as 1 % of the time allows; `steps` is how
    many of the last micro-batches are kept. An error of the recorder never stops a training. Several loaders at once
    (CombinedLoader) are recorded, but not replayed.
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
        self.step_recorder: StepRecorder | None = None
        self.replay: Session | None = None
        self.validation_loaders = 0  # loaders that have been prepared for the next validation
        self.replayed_loaders: dict[int, loader_recorder.LoaderRecorder] = {}  # of a validation that is made again
        self.undo: list[Callable[[], Any]] = []
        self.undo_batch: Callable[[], Any] = do_nothing  # the batch that a replayed step was given in place of its own
        self.validation_batch = -1  # batches of this validation, of all its loaders
        self.has_several_loaders = (
            False  # loaders for one batch (CombinedLoader), of which no record can rebuild a batch
        )

    def give_up(self, error: Exception) -> None:
        """Switch the recording off; a replay fails by the error."""
        if self.replay is not None:
            raise error
        if self.step_recorder is not None:
            self.step_recorder.give_up(error)
        else:
            report(error, "off for the rest of this run, training goes on")

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        self.replay = session()
        if self.replay is not None:  # a replay fails by its errors
            validates = self.kind == "lightning"
            undo = self.replay.start_lightning(trainer, self._model(pl_module), validates=validates)
            self.undo.append(undo)
            self._hook_loaders(trainer)
            return
        if program_info.is_replay():  # of another of its trainings
            return
        try:
            self._open(trainer, pl_module)
            self._hook_loaders(trainer)
        except Exception as error:
            if worker_ended(error):
                raise
            report(error, "not started, training goes on")
            self.step_recorder = None

    def _open(self, trainer: Trainer, module: LightningModule) -> None:
        folder = self.folder or trainer.log_dir or trainer.default_root_dir
        every = self.every
        if trainer.world_size > 1 and every is None:
            # All ranks at the same step: hooks of the user may wait for each other.
            every = min(self.steps * 3 // 4, RANKS_EVERY)
        self.step_recorder = StepRecorder(
            Path(folder), self.kind, rank=trainer.global_rank, batches=self.batches, every=every, steps=self.steps
        )
        if type(trainer.strategy).__name__ not in UNSHARDED:
            self.step_recorder.snapshots_on = False
            program_info.update(self.step_recorder.folder, self.step_recorder.rank, spread=True)
            if trainer.global_rank == 0:
                print_message(
                    f"no snapshots with {type(trainer.strategy).__name__}, which spreads the state over processes"
                )
        self.step_recorder.hook_stages(self._model(module))
        saved_rng_states.save_start(self.step_recorder.folder, self.step_recorder.rank, self.step_recorder.start)
        if self.kind == "lightning" and trainer.global_rank == 0:
            print_message(f"writes to {self.step_recorder.folder}; `ocrlab replay {folder}` runs its last steps again")

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
        self.has_several_loaders = isinstance(trainer.train_dataloader, dict | list | tuple | CombinedLoader)
        if self.has_several_loaders and self.step_recorder is not None:
            print_message(
                "several loaders at once: steps are recorded, but their batches cannot be made again by a replay"
            )
        step_recorder = self.step_recorder
        if step_recorder is None or not step_recorder.on or not step_recorder.snapshots_on:
            return
        model = self._model(pl_module)  # a LightningModule is no call itself: training_step calls the network in it
        step_recorder.monitor = TrainingMonitor(model, trainer.optimizers, network=unwrap(model)[1])
        for optimizer in trainer.optimizers:
            self.undo += hook_optimizer(optimizer, step_recorder.before_step)

    def start_anew(self) -> None:
        """Have a snapshot taken before the next step: a replay must not begin before what has just been changed."""
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
        watched = None if self.has_several_loaders else step_recorder.loaders.get(0)
        origin = BatchOrigin() if watched is None else watched.take_origin()
        number = trainer.global_step
        step_recorder.begin(number, micro, epoch, first_learning_rate(trainer.optimizers or ()), origin, batch)
        loop = trainer.fit_loop.epoch_loop
        fresh = (loop.batch_progress.current.ready - 1) % trainer.accumulate_grad_batches == 0
        if fresh and micro > step_recorder.snapshots.quiet:
            step_recorder.snapshot(number, lambda: resume_state(trainer))

    @guard
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor) -> None:
        scale = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
        if (
            getattr(trainer.precision_plugin, "scaler", None) is None
        ):  # else it is the scaled one, 65536 times too large
            self._loss(loss, float(scale))
        self._phase("backward")

    @guard
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        self._phase("optimiser")

    @guard
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        is_scaled = getattr(trainer.precision_plugin, "scaler", None) is not None
        if self.replay is not None:
            if is_scaled:
                self.replay.loss(outputs.get("loss") if isinstance(outputs, Mapping) else outputs)
            self.replay.end()
            return
        if self.step_recorder is not None and (is_scaled or not self.step_recorder.has_loss()):
            self.step_recorder.loss(outputs)  # also of a manual optimisation that calls loss.backward() itself
        self._phase("optimiser")  # the following hooks average weights; the loader sets "data"

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
        self._phase("validation")

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
        self._phase("data")

    @guard
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self.replay is not None:
            self.replay.failed(exception)
        if self.step_recorder is not None:
            self._ended(trainer, exception)
            self.step_recorder.member.end("failed", error=exception)
            self.step_recorder.failed(exception)
            self.step_recorder.finish()
        elif self.replay is None and hasattr(exception, "error_index"):  # of a process that this one has started
            folder = self.folder or trainer.log_dir or trainer.default_root_dir
            launcher.note_launched(Path(folder, "flight"), exception)
        self._leave()

    def _ended(self, trainer: Trainer, error: BaseException) -> None:
        """Note an exit without an error in the middle of the training."""
        if (
            self.step_recorder is not None
            and self.step_recorder.monitor is not None
            and isinstance(error, SystemExit)
            and not error.code
        ):
            batch = trainer.fit_loop.epoch_loop.batch_progress.current.ready
            where = f"batch {batch} of {trainer.num_training_batches} of epoch {trainer.current_epoch + 1}"
            self.step_recorder.monitor.stats.ended = early_exit_text(error, where, trainer.max_epochs)

    @guard
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self.step_recorder is not None:
            self.step_recorder.finish()
            self.step_recorder = None
        if self.replay is not None and stage == "fit":
            self.replay.finish()
        self._leave()

    def _leave(self) -> None:
        while self.undo:
            with contextlib.suppress(Exception):
                self.undo.pop()()

    def _phase(self, name: str) -> None:
        if self.step_recorder is not None:
            self.step_recorder.phase(name)
        elif self.replay is not None:
            self.replay.phase(name)

    def _loss(self, loss: Any, scale: float) -> None:
        if self.step_recorder is not None:
            self.step_recorder.loss(loss, scale)
        elif self.replay is not None:
            self.replay.loss(loss, scale)


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
