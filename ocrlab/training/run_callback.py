"""The Lightning callback of every run: metrics.csv, checkpoints, progress, early stopping, stopping in order."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn

from ocrlab import run_folder
from ocrlab.config.schema import Config
from ocrlab.data.dataset import Batch
from ocrlab.errors import RunError
from ocrlab.inference import checkpoint
from ocrlab.losses.db_loss import LossParts
from ocrlab.run_folder import heartbeat
from ocrlab.run_folder.launcher import Ranks
from ocrlab.training.auto_settings import spread
from ocrlab.training.distributed.collectives import mean_over_ranks
from ocrlab.training.distributed.stop_together import REACHED, StopAgreement, StopDeadline, allowed
from ocrlab.training.lightning_module import Training
from ocrlab.training.tracking.client import Tracker

SHOWN = 6  # pages that are named
MOST = 0.5  # of all micro-batches: a run with more of them has learned from the few others
DO = "Look at these pages and their boxes (ocrlab samples check DIR); `ocrlab replay` names the module and operator"


class NonFiniteLosses:
    """Counts losses that are not finite; of several ranks each one counts its own."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.count = self.total = 0
        self.first: int | None = None  # the step at which the first was noticed
        self.pages: dict[str, None] = {}

    def see(self, losses: Sequence[Tensor], pages: Sequence[Sequence[str]], step: int) -> bool:
        """Count some micro-batches, with the pages of each; tell whether any is the first that is not finite."""
        self.total += len(losses)
        pairs = zip(losses, pages, strict=True)
        wrong = [names for loss, names in pairs if not bool(loss.detach().isfinite().all())]
        begins = bool(wrong) and not self.count
        self.count += len(wrong)
        self.first = step if begins else self.first
        self.pages |= dict.fromkeys(name for names in wrong for name in names)
        return begins

    def state(self) -> dict[str, Any]:
        """Return what a resumed run goes on with, in types that `weights_only=True` reads."""
        return {"count": self.count, "total": self.total, "first": self.first, "pages": list(self.pages)}

    def go_on(self, state: dict[str, Any]) -> None:
        """Take up the state of rank 0, which wrote the checkpoint; the counts of the others are lost."""
        if self.ranks.first:
            self.count, self.total, self.first = state["count"], state["total"], state["first"]
            self.pages = dict.fromkeys(state["pages"])

    def check(self, model: nn.Module, step: int) -> None:
        """Raise RunError, on all ranks, where a weight is not finite: no later step can repair that."""
        weights = [getattr(p, "_local_tensor", p).detach() for p in model.parameters()]
        broken = any(not bool(p.isfinite().all()) for p in weights)
        if mean_over_ranks(self.ranks, [float(broken)])[0]:
            got = f"NaN or infinity in weights at step {step}" if broken else "weights of another rank"
            do = f"{DO}; continue from an older checkpoint with a smaller optim.lr"
            what = "The weights are not finite any more"
            raise RunError(what, got=f"{got}; {self}", need="a finite loss", do=do)

    def judge(self) -> None:
        """Raise RunError at the end, on all ranks, where most of the losses were not finite."""
        share = mean_over_ranks(self.ranks, [self.count / max(1, self.total)])[0]
        if share > MOST:
            what = "The loss was not finite in most of the training"
            raise RunError(what, got=str(self), need="a finite loss", do=DO)

    def __str__(self) -> str:
        if not self.count:
            return "every loss of this rank was finite"
        names = ", ".join(list(self.pages)[:SHOWN]) or "pages before the resume"
        more = f" and {len(self.pages) - SHOWN} more" if len(self.pages) > SHOWN else ""
        counted = f"the loss of {self.count} of {self.total} micro-batches was NaN or infinity"
        return f"{counted}, first seen at step {self.first}; their pages: {names}{more}"


Progress = Callable[[dict[str, Any]], None]  # {"kind": start|train|validate|end, "step", "total", figures...}
SAVE_EVERY = 60.0  # seconds between two writings of last.ckpt
RECENT = 50  # micro-batches, of which the longest tells how long the next may take
UNEVEN = 3.0  # a 95th percentile of so many medians is worth a word


class RunCallback(lightning.Callback):
    """Writes down what a run does, and stops it between two micro-batches, or two pages of a validation, when SIGINT or
    SIGTERM asks for it."""

    def __init__(
        self,
        config: Config,
        folder: run_folder.RunFolder,
        tracker: Tracker,
        progress: Progress,
        ranks: Ranks | None = None,
    ) -> None:
        self.config, self.folder, self.tracker, self.progress = config, folder, tracker, progress
        self.ranks = ranks or Ranks()
        self.agreement = StopAgreement(self.ranks) if self.ranks.several else None
        self.table = run_folder.Table(folder.metrics_file)
        self.best = -math.inf
        self.best_path: Path | None = None
        self.stale = 0  # validations without gain
        self.stop_signal: int | None = None
        self.stop_deadline: StopDeadline | None = None
        self.seconds: list[float] = []  # of each step, for the spread
        self.fit_seconds = 0.0  # in fit with data, without validation
        self.losses: list[LossParts] = []  # since the last row; read from the device only then
        self.named: list[list[str]] = []  # the pages of each of them
        self.numbers = NonFiniteLosses(self.ranks)
        self.clock = self.saved = time.perf_counter()
        self.saved_step = -1
        self.bad_pages: set[str] = set()

    def state_dict(self) -> dict[str, Any]:
        # One by one to the host: those that a resumed run has begun with lie there already.
        waiting = [torch.stack(tuple(parts)).detach().cpu() for parts in self.losses]
        losses = torch.stack(waiting) if waiting else torch.empty(0, 4)
        state = {"best": self.best, "stale": self.stale, "fit_seconds": self.fit_seconds}
        return state | {"losses": losses, "numbers": self.numbers.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.stale, self.fit_seconds = state["best"], state["stale"], state["fit_seconds"]
        self.losses = [LossParts(*row.unbind()) for row in state["losses"]]
        self.named = [[] for _ in self.losses]  # nobody knows their pages any more
        if "numbers" in state:  # not in a checkpoint of before
            self.numbers.go_on(state["numbers"])
        self.best_path = max(self.folder.checkpoints.glob("best-*.ckpt"), default=None, key=lambda p: p.stat().st_mtime)

    def ask_to_stop(self, number: int, _frame: object) -> None:
        """Signal handler: the first signal stops after this micro-batch or page, the second at once."""
        if self.stop_signal is not None:
            raise KeyboardInterrupt
        self.stop_signal = number
        if self.stop_deadline is not None:
            self.stop_deadline.note(number)

    def until_stopped(self) -> float:
        """Return the seconds within which a stop that is asked for should be there: see `StopDeadline`."""
        steps = 2 * self.config.trainer.accumulate_grad_batches if self.ranks.several else 1
        return allowed(max(self.seconds[-RECENT:], default=0.0), steps)

    def _reached(self) -> None:
        heartbeat.beat(phase=heartbeat.STOPS)
        if self.stop_deadline is not None:
            self.stop_deadline.note(REACHED)

    def on_sanity_check_start(self, trainer: Trainer, module: lightning.LightningModule) -> None:
        if self.ranks.several:  # Lightning's handler of SIGTERM would wait in a collective
            install_stop_handlers(self)

    def on_train_start(self, trainer: Trainer, module: lightning.LightningModule) -> None:
        self.on_sanity_check_start(trainer, module)
        if self.ranks.first:
            self.table.rewind(trainer.global_step)  # also to 0: a run that died before its first checkpoint begins anew
        self.progress({"kind": "start", "step": trainer.global_step, "total": self.config.trainer.max_steps})
        self.clock = time.perf_counter()
        heartbeat.beat(step=trainer.global_step, phase="train")

    def on_train_batch_end(self, trainer: Trainer, module: Any, _out: Any, batch: Batch, index: int) -> None:
        heartbeat.beat(step=trainer.global_step, phase="train")
        now = time.perf_counter()
        self.seconds.append(now - self.clock)
        self.fit_seconds += now - self.clock
        self.clock = now
        self.losses.append(module.parts)
        self.named.append(batch.pages)
        if self.agreement is not None:
            self.agreement.note_batch(batch.images)
        for problem in batch.problems:
            if problem not in self.bad_pages:
                self.bad_pages.add(problem)
                self.warn(f"Page left out: {problem}")
                if not self.ranks.first:  # its progress is shown nowhere, and the page was its alone
                    print(f"ocrlab: rank {self.ranks.rank}: Page left out: {problem}", file=sys.stderr, flush=True)
        whole = (index + 1) % trainer.accumulate_grad_batches == 0
        if whole and trainer.global_step % self.config.trainer.log_every == 0:
            self._log(trainer, len(batch.pages))

    def finish_batch(self, trainer: Trainer) -> None:
        """Save when it is time to, and stop when asked to; called when averaging, too, has seen the micro-batch."""
        stop, save = self.stop_signal or 0, time.perf_counter() - self.saved > SAVE_EVERY
        if self.agreement is not None:
            module: Any = trainer.lightning_module
            if module.micro % trainer.accumulate_grad_batches:
                return  # gradients of this step are not those of all ranks yet
            stop, save = self.agreement.exchange(module.micro, stop, save and self.ranks.first)
        if stop:
            self._reached()
            self.save_last(trainer)
            raise SystemExit(128 + stop)
        if save:
            self.save_last(trainer)
            self.clock = time.perf_counter()

    def settle(self) -> None:
        """Exchange the last messages with the other ranks, when all steps are done."""
        if self.agreement is not None:
            stop, _ = self.agreement.settle()
            self.stop_signal = stop or None  # one that came later finds nothing left to stop

    def save_last(self, trainer: Trainer) -> None:
        """Write last.ckpt: everything that resuming needs."""
        trainer.save_checkpoint(self.folder.checkpoints / "last.ckpt")
        self.saved, self.saved_step = time.perf_counter(), trainer.global_step

    def on_validation_start(self, trainer: Trainer, module: Any) -> None:
        if not trainer.sanity_checking:
            self.fit_seconds += time.perf_counter() - self.clock

    def on_validation_batch_end(self, trainer: Trainer, module: Any, _out: Any, page: Any, index: int, *_: Any) -> None:
        heartbeat.beat(step=trainer.global_step, phase="validate")
        if self.stop_signal is not None and self.agreement is None:  # several ranks stop together, after a step
            self._reached()
            if not trainer.sanity_checking:
                self.save_last(trainer)
            raise SystemExit(128 + self.stop_signal)

    def on_validation_end(self, trainer: Trainer, module: Any) -> None:
        if trainer.sanity_checking:
            return
        heartbeat.beat(phase="train")
        scores = module.scores
        self.write({"step": trainer.global_step, **self.spent(), **scores}, trainer.global_step)
        place = {"step": trainer.global_step, "total": self.config.trainer.max_steps}
        self.progress({"kind": "validate", **place, **scores})
        hmean = scores["hmean@0.5"]
        if hmean > self.best:
            self.best, self.stale = hmean, 0
            self.save_best(module, scores)
        else:
            self.stale += 1
        patience = self.config.trainer.patience
        if patience is not None and self.stale >= patience:
            self.warn(f"Stopped early: {self.stale} validations without gain")
            trainer.should_stop = True
        self.save_last(trainer)
        self.clock = time.perf_counter()

    def save_best(self, module: Training, scores: dict[str, float]) -> None:
        """Write best-….ckpt with the averaged weights, then drop the one before."""
        config = self.config
        step = module.trainer.global_step
        name = f"best-{config.encoder}-{config.decoder}-step{step:06d}-hmean{scores['hmean@0.5']:.4f}.ckpt"
        old, self.best_path = self.best_path, self.folder.checkpoints / name
        if not self.ranks.first:
            return
        checkpoint.save_detector(module.averaged, self.best_path, config, step, scores)
        if old is not None and old != self.best_path:
            old.unlink(missing_ok=True)

    def warn(self, text: str) -> None:
        """Show a warning beside the progress."""
        self.progress({"kind": "warning", "text": text})

    def spent(self) -> dict[str, float]:
        """Return the seconds in fit with data but without validation, and the CPU seconds of this process in all."""
        return {"fit_seconds": round(self.fit_seconds, 3), "cpu_seconds": round(time.process_time(), 1)}

    def write(self, row: dict[str, Any], step: int) -> None:
        """Put one row into metrics.csv and to the tracker."""
        if not self.ranks.first:
            return
        self.table.write(row)
        self.tracker.log({k: float(v) for k, v in row.items() if k != "step"}, step)

    def _log(self, trainer: Trainer, batch: int) -> None:
        count = len(self.losses)
        fields = {"loss": "total", "bce": "bce", "dice": "dice", "l1": "l1"}
        sums = [float(sum(getattr(parts, field).detach() for parts in self.losses)) for field in fields.values()]
        means = dict(zip(fields, mean_over_ranks(self.ranks, [total / count for total in sums]), strict=True))
        self._look(trainer, not math.isfinite(means["loss"]))
        median, _ = spread(self.seconds[-count:])
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        row = {"step": trainer.global_step, **means, "lr": rate}
        row |= {"step_seconds": median * trainer.accumulate_grad_batches}  # of an optimizer step, as all steps are
        row |= {"images_per_second": self.ranks.world * batch / median}
        self.write(row | self.spent(), trainer.global_step)
        self.progress({"kind": "train", "total": self.config.trainer.max_steps, **row})

    def _look(self, trainer: Trainer, wrong: bool) -> None:
        """Judge the numbers of the micro-batches since the last row; `wrong`: on some rank one is not finite."""
        losses, named, self.losses, self.named = self.losses, self.named, [], []
        if self.numbers.see([parts.total for parts in losses], named, trainer.global_step):
            self.warn(f"The loss is not finite: {self.numbers}")
        if wrong:
            module: Any = trainer.lightning_module
            self.numbers.check(module.detector, trainer.global_step)

    def on_train_end(self, trainer: Trainer, module: Any) -> None:
        self._look(trainer, True)
        self.numbers.judge()
        if self.numbers.count:
            self.warn(f"In all {self.numbers}")
        if self.saved_step != trainer.global_step:  # no validation was due at the last step
            self.save_last(trainer)
        if len(self.seconds) < 20:
            return
        median, high = spread(self.seconds[3:])
        if high > UNEVEN * median:
            text = f"Step times vary: median {median:.2f} s, 95th percentile {high:.2f} s. Another busy process or a"
            self.warn(f"{text} second thread pool on these cores does that; try runtime.threads or runtime.workers=0")


def install_stop_handlers(watcher: RunCallback) -> dict[int, Any]:
    """Install the stop handlers (main thread only) and return the old ones, to be put back after the fit."""
    try:
        return {s: signal.signal(s, watcher.ask_to_stop) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: the program around us owns the signals
        return {}
