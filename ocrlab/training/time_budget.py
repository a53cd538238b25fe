"""A training that has so many minutes plans, once and early, as many steps as fit.

A schedule that is cut off in the middle ends with a large learning rate and noisy weights; one that is planned for the
time there is comes down to nothing in it (Li et al. 2020, Budgeted Training, arXiv:1905.04753).
"""

from __future__ import annotations

import bisect
import itertools
import statistics
import time
from typing import Any

import lightning
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Timer

from ocrlab import run_folder
from ocrlab.config import schema as configuration
from ocrlab.config.schema import Config
from ocrlab.debug.recorder.lightning_callback import Recorder
from ocrlab.training.distributed import collectives
from ocrlab.training.lightning_module import Training
from ocrlab.training.optimizer import shorten_warmup
from ocrlab.training.run_callback import Progress

LOOK = 30  # optimizer steps before the plan, if the warm-up is as long: until then no step depends on it
TIMED = 20  # of them, the last ones: the first read the pages and compile kernels
SHARE = 0.95  # of the time that is planned


def steps_that_fit(steps: int, done: int, seconds: float, step: float, validation: float, every: int) -> int:
    """Return the largest number of steps, from `done` to `steps`, that fits into `seconds` more.

    `step` and `validation` are seconds of one; there is a validation after each `every` steps and at the end.
    """

    def cost(number: int) -> float:
        return (number - done) * step + (-(-number // every) - done // every) * validation

    return done + max(0, bisect.bisect_right(range(done, steps + 1), seconds, key=cost) - 1)


class Budget(lightning.Callback):
    """Times the first steps of a run, and has it make fewer where `max_minutes` would cut it off.

    A run that was stopped before its plan, with `begun` steps made, is timed anew, and planned before its warm-up ends.
    """

    def __init__(
        self,
        config: Config,
        folder: run_folder.RunFolder,
        progress: Progress,
        recorder: Recorder | None = None,
        begun: int = 0,
    ) -> None:
        self.config, self.folder, self.progress, self.recorder = config, folder, progress, recorder
        self.times = max(2, min(LOOK, config.optim.warmup_steps - begun))
        self.steps: list[float] = []  # when training began, and when each optimizer step ended
        self.page = self.page_began = 0.0  # seconds of a page in validation, and when it began

    def on_validation_batch_start(self, *_: Any) -> None:
        self.page_began = time.monotonic()

    def on_validation_batch_end(self, *_: Any) -> None:
        self.page = time.monotonic() - self.page_began

    def on_train_start(self, trainer: Trainer, module: Any) -> None:
        self.steps = [time.monotonic()]

    def on_train_batch_end(self, trainer: Trainer, module: Any, _out: Any, _batch: Any, index: int) -> None:
        if (index + 1) % trainer.accumulate_grad_batches:
            return
        self.steps.append(time.monotonic())
        if len(self.steps) == self.times:
            self.plan(trainer, module)

    def plan(self, trainer: Trainer, module: Training) -> None:
        """Settle the number of steps, in config.yaml too, so that a resume and a replay find the same one."""
        wanted, minutes = self.config.trainer, self.config.trainer.max_minutes or 0.0
        ends = self.steps[-TIMED - 1 :]
        step = statistics.median(b - a for a, b in itertools.pairwise(ends))
        loaders: Any = trainer.val_dataloaders
        callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]
        before = [timer.time_elapsed() for timer in callbacks if isinstance(timer, Timer)]  # earlier starts count
        left = SHARE * 60 * minutes - max([time.monotonic() - self.steps[0], *before])
        validation, done = self.page * len(loaders), trainer.global_step
        fit = steps_that_fit(wanted.max_steps, done, left, step, validation, wanted.val_every)
        fit = int(collectives.broadcast(module.ranks, fit))
        if fit >= wanted.max_steps:
            return
        text = f"trainer.max_minutes={minutes:g} allows {fit} of {wanted.max_steps} steps of {step:.2f} s"
        self.progress({"kind": "warning", "text": f"{text}; the schedule is planned for {fit}"})
        wanted.max_steps = trainer.fit_loop.epoch_loop.max_steps = fit
        self.config.optim.warmup_steps = max(trainer.global_step, shorten_warmup(self.config.optim.warmup_steps, fit))
        if self.recorder is not None:
            self.recorder.start_anew()
        if module.ranks.first:
            self.folder.write_config(configuration.dump(self.config))


def make_budget(
    config: Config, folder: run_folder.RunFolder, progress: Progress, recorder: Recorder | None, begun: int
) -> Budget | None:
    """Return what plans a run that has made `begun` steps; None without max_minutes, or if it was planned before."""
    looked = begun >= max(2, min(LOOK, config.optim.warmup_steps)) - 1
    return None if looked or not config.trainer.max_minutes else Budget(config, folder, progress, recorder, begun)
