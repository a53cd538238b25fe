"""The flight recorder for a training loop written by hand; it needs torch and not Lightning.

    rec = ocrlab.record("runs/mine", model, optimizer, scheduler=scheduler, scaler=scaler)
    for epoch in rec.epochs(10):
        for batch in rec.batches(loader):
            loss = rec.loss(model(batch))
            loss.backward()
            optimizer.step()
        for batch in rec.validation(other): ...
    rec.close()  # or at the end of the program, or by `with ocrlab.record(...) as rec:`

Started again by `ocrlab replay`, the same program restores the state at the first `rec.batches`, gets the recorded
batches, and ends after the last one. A loop that draws its batches by itself says where a step begins by
`for step in rec.steps(n)`; one that says nothing is recorded from one `optimizer.step()` to the next, and a replay runs
it from its beginning.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import operator
import os
import sys
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from ocrlab.debug.flight_record import program_info
from ocrlab.debug.instruments.dataloader import loader_proxy
from ocrlab.debug.recorder import loader_recorder, saved_rng_states
from ocrlab.debug.recorder.loader_recorder import CountingLoader
from ocrlab.debug.recorder.replay_registration import session
from ocrlab.debug.recorder.sample_recorder import BatchOrigin
from ocrlab.debug.recorder.stage_hooks import StepPosition
from ocrlab.debug.recorder.step_recorder import StepRecorder, hook_optimizer
from ocrlab.debug.recorder.training_health.monitor import TrainingMonitor
from ocrlab.debug.recorder.training_state import TrainingState
from ocrlab.debug.recorder.unmarked_loop_hooks import StepHooks
from ocrlab.run_folder.fail_safe import guard, print_message, report, worker_ended

NEVER = 1 << 62  # micro-batches
VALIDATION = 1  # the number of its loader
SHARDED = "FullyShardedDataParallel"  # its state_dict gathers from all ranks: one alone would wait for ever
FULLY_SHARD = "FSDPModule"  # of fully_shard
OPEN_LOOPS: weakref.WeakSet[LoopRecorder] = weakref.WeakSet()  # not closed yet


class LoopRecorder:
    """The flight recorder of one hand-written loop, until `close` or the end of the program.

    `model`, `optimizer` and `scheduler` may be lists; `extra` is a dict of whatever else has `state_dict` and
    `load_state_dict` (an average of the weights). `batches` is "ids" (made again from the data) or "raw" (kept as they
    were); `snapshot_every` counts micro-batches, None: as often as 1 % of the time allows; `steps` is how many of the
    last micro-batches are kept; `rank` is that of this process, None: that of its group or of its launcher. An error
    of the recorder never stops a training. torch.cuda.make_graphed_callables refuses a model with hooks: call it
    before. Raises ShapeError for a model that is none.
    """

    def __init__(
        self,
        run: Path | str,
        model: nn.Module | Sequence[nn.Module],
        optimizer: Any = None,
        *,
        scheduler: Any = None,
        scaler: Any = None,
        extra: Any = None,
        batches: str = "ids",
        snapshot_every: int | None = None,
        steps: int = 512,
        rank: int | None = None,
    ) -> None:
        self.training = state = TrainingState(model, optimizer, scheduler, scaler, extra)
        self.replay = session()
        self.step_recorder: StepRecorder | None = None
        if self.replay is None and not program_info.is_replay():
            try:
                rank = rank if rank is not None else current_rank()
                step_recorder = StepRecorder(
                    Path(run), "loop", rank=rank, batches=batches, every=snapshot_every, steps=steps
                )
                _note_sharding(step_recorder, state.models)
                step_recorder.hook_stages(*state.models)
                if step_recorder.snapshots_on:
                    whole = state.models[0] if len(state.models) == 1 else nn.ModuleList(state.models)
                    step_recorder.monitor = TrainingMonitor(whole, state.optimizers, state.extra)
                saved_rng_states.save_start(step_recorder.folder, step_recorder.rank, step_recorder.start)
                self.step_recorder = step_recorder
            except Exception as error:
                if worker_ended(error):
                    raise
                report(error, "not started, training goes on")
        self.first = state.optimizers[0] if state.optimizers else None  # whose learning rate is written down
        self.now = StepPosition() if self.step_recorder is None else self.step_recorder.now  # how far the step is
        self.undo: list[Callable[[], Any]] = []
        self.passes: list[list[Any]] = []  # of each pass over a loader: batches taken, and its length
        self.in_pass = False
        self.epoch_count: int | None = None
        self.mode = ""  # what marks the beginning of a step: "batches", "steps", "optimizer" for neither
        self.hooks = StepHooks(self)
        self.is_closed = self.takes_snapshots = False
        self.pid, self.error_before = os.getpid(), last_uncaught_error()
        for other in [other for other in OPEN_LOOPS if self.replay is None and other.training.shares(state)]:
            other.close()  # a cell of a notebook that is executed again
        OPEN_LOOPS.add(self)
        self.start()
        atexit.register(self._at_exit)
        if self.replay is not None:
            self.replay.start_loop(state)
            if self.replay.from_start:
                self._begin_mode("optimizer")
                self.replay.next_step(self)

    def __enter__(self) -> LoopRecorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error)

    def close(self) -> None:
        """End the recording: remove every hook, and wait for pending writes."""
        self._end(None)

    def _at_exit(self) -> None:
        """End the recording at the end of the program, with its uncaught error if there is one."""
        if os.getpid() == self.pid:  # a forked child goes through the exit of its parent, too
            error = last_uncaught_error()
            self._end(None if error is self.error_before else error)

    def _end(self, error: BaseException | None) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        atexit.unregister(self._at_exit)
        OPEN_LOOPS.discard(self)
        step_recorder, replay = self.step_recorder, self.replay
        self.ended(error)
        try:
            if replay is not None:
                replay.failed(error) if error is not None else replay.finish()
        finally:
            self.stop()
            if step_recorder is not None:
                if error is not None:
                    step_recorder.member.end("failed", error=error)
                    step_recorder.failed(error)
                step_recorder.finish()

    def give_up(self, error: Exception) -> None:
        """Switch the recording off; a replay fails by the error."""
        if self.replay is not None:
            raise error
        if self.step_recorder is not None:
            self.step_recorder.give_up(error)

    @property
    def micro(self) -> int:
        """The number of the current micro-batch, from 0; -1 before the first."""
        return int(self.now.micro)

    def batches(self, loader: Iterable[Any]) -> BatchIterator:
        """Return the batches of a loader, for any number of passes; each is recorded before it is used."""
        return BatchIterator(self._passes, loader)

    def steps(self, steps: int | Iterable[Any] | None = None) -> Iterator[Any]:
        """Yield the numbers below `steps`, its items, or endless numbers; each is one optimizer step.

        For a loop that draws its batches by itself: a replay begins at a snapshot, with that step.
        """
        numbers = itertools.count() if steps is None else range(steps) if isinstance(steps, int) else steps
        self._begin_mode("steps")
        if self.replay is not None:
            yield from self.replay.steps(numbers, self)
            return
        for number in numbers:
            self.begin_step()
            yield number
            self.end_step()

    @guard
    def begin_step(self) -> None:
        """Write the record of an optimizer step without known batches."""
        now, step_recorder = self.now, self.step_recorder
        now.micro += 1
        now.number = now.micro
        self.hooks.has_loss = False
        if step_recorder is not None:
            step_recorder.begin(now.number, now.micro, now.epoch, self.training.rate(), BatchOrigin())
            if self.mode == "steps" and now.micro > step_recorder.snapshots.quiet:
                step_recorder.snapshot(now.number, self.state)

    @guard
    def end_step(self) -> None:
        """Record the end of an optimizer step."""
        self._set_phase("data")

    @guard
    def _begin_mode(self, mode: str) -> None:
        """Record what marks the beginning of a step; the last one counts."""
        if self.mode == mode:
            return
        step_recorder, before, self.mode = self.step_recorder, self.mode, mode
        if step_recorder is not None and mode == "optimizer":
            self.takes_snapshots = step_recorder.snapshots_on
            step_recorder.snapshots_on = False  # a replay runs the program from its beginning
            program_info.update(step_recorder.folder, step_recorder.rank, from_start=True)
        elif step_recorder is not None and before == "optimizer":
            if not self.hooks.has_stepped:  # the records are of model calls before the training
                step_recorder.discard_records()
                self.now.micro, self.now.number = -1, 0
            step_recorder.enable_snapshots(self.takes_snapshots)
        if mode == "batches":
            self.hooks.stop()

    def _passes(self, loader: Iterable[Any]) -> Iterator[Any]:
        self._begin_mode("batches")
        if self.replay is not None:
            return self.replay.batches(loader, self)
        return self._batches(loader)

    def _batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a loader."""
        now, step_recorder = self.now, self.step_recorder
        recorder, taken = self._begin_pass(loader)
        for batch in recorder if isinstance(recorder, CountingLoader) else loader:
            taken[0] += 1
            now.micro += 1
            if step_recorder is not None:
                self.begin(batch, BatchOrigin() if recorder is None else recorder.take_origin())
                if now.clean and now.micro > step_recorder.snapshots.quiet:
                    self.snapshot()
            done = False
            try:
                yield batch
                done = True
            finally:
                now.clean = self.over(done) or self.first is None
                now.number += now.clean  # a micro-batch that ended with an optimizer step
        self.ends()

    def _begin_pass(self, loader: Iterable[Any]) -> tuple[Any, list[Any]]:
        """Begin a pass; returns the recorder of its batches, and a list that begins with their number."""
        taken = [0, length(loader)]
        recorder = self.step_recorder.record_loader(loader) if self.step_recorder is not None else None
        if self.step_recorder is not None:
            self.step_recorder.note_wait()
        if isinstance(recorder, loader_recorder.LoaderRecorder):
            recorder.on_wait = None  # the pass records its own waits
        self.in_pass = True
        self.passes.append(taken)
        return recorder, taken

    @guard
    def begin(self, batch: Any, origin: BatchOrigin) -> None:
        """Write the record of a micro-batch."""
        now, step_recorder = self.now, self.step_recorder
        if step_recorder is not None and step_recorder.on:
            step_recorder.begin(now.number, now.micro, now.epoch, self.training.rate(), origin, batch)

    def snapshot(self) -> int:
        """Take a snapshot where one is due; returns the micro-batch up to which none will be."""
        step_recorder = self.step_recorder
        if step_recorder is None:
            return NEVER
        step_recorder.snapshot(self.now.number, self.state)
        return step_recorder.snapshots.quiet

    def over(self, waits: bool) -> bool:
        """Record the end of a micro-batch, `waits` for the next one or not; returns whether an optimizer stepped."""
        return self.step_recorder is not None and self.step_recorder.end_micro_batch(waits)

    def ends(self) -> None:
        """Record the end of a pass."""
        self.in_pass = False
        self.now.epoch += 1

    def epochs(self, epochs: int | Iterable[int]) -> Iterator[int]:
        """Yield the numbers of the epochs; a replay begins with the recorded one."""
        numbers = range(epochs) if isinstance(epochs, int) else epochs
        self.epoch_count = length(numbers)
        for epoch in numbers:
            if self.replay is not None and epoch < self.replay.first_epoch:
                continue
            with contextlib.suppress(TypeError, OverflowError):  # no numbers
                self.now.epoch = min(operator.index(epoch), NEVER)
            yield epoch

    def loss(self, loss: Any) -> Any:
        """Record the loss of this micro-batch, a tensor of one number or a number; returns it. Backward comes next."""
        step_recorder = self.step_recorder
        recorder = step_recorder or self.replay
        self.hooks.has_loss = True
        if recorder is not None:
            recorder.loss(loss)
            recorder.phase("backward")
            if recorder is step_recorder and recorder.monitor is not None and recorder.monitor.looking:
                recorder.call_monitor("scaling", loss)
        return loss

    def validation(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a validation; each is recorded before it is used, so that a replay finds the bad one."""
        with self.validating():
            if self.replay is not None:
                yield from self.replay.validation(loader)
                return
            recorder = (
                self.step_recorder.record_loader(loader := self._validation_loader(loader), VALIDATION)
                if self.step_recorder is not None
                else None
            )
            for number, batch in enumerate(recorder if isinstance(recorder, CountingLoader) else loader):
                if self.step_recorder is not None and self.step_recorder.on:
                    origin = BatchOrigin() if recorder is None else recorder.take_origin()
                    self.step_recorder.validate(number, batch, origin)
                yield batch

    def _validation_loader(self, loader: Any) -> Any:
        """Return the loader, or a copy where it is the loader of the training."""
        trained = self.step_recorder.loaders.get(0) if self.step_recorder is not None else None
        return loader_proxy.copy_loader(loader) if trained is not None and trained.holds(loader) else loader

    @contextlib.contextmanager
    def validating(self) -> Iterator[None]:
        """Mark a block as validation without known batches."""
        self._set_phase("validation")
        yield
        self._set_phase("data")

    def _set_phase(self, name: str) -> None:
        recorder = self.step_recorder or self.replay
        if recorder is not None:
            recorder.phase(name)

    def state(self) -> dict[str, Any]:
        """Return the state of all parts, in this epoch."""
        return self.training.state(self.now.epoch)

    def _stepping(self, *_: Any) -> None:
        self._set_phase("optimiser")

    @guard
    def ended(self, error: BaseException | None) -> None:
        """Record how the loop was left: how far each pass came, and an exit without an error."""
        monitor = self.step_recorder.monitor if self.step_recorder is not None else None
        if monitor is None:
            return
        monitor.stats.walks = [(taken, size) for taken, size in self.passes]
        monitor.stats.scaler = self.training.scaler is not None
        if self.in_pass and isinstance(error, SystemExit) and not error.code:
            taken, size = self.passes[-1]
            where = f"batch {taken}{'' if size is None else f' of {size}'} of epoch {self.now.epoch + 1}"
            monitor.stats.ended = early_exit_text(error, where, self.epoch_count)

    def start(self) -> None:
        """Hook the optimizers and the model."""
        stepping = self._stepping if self.step_recorder is None else self.step_recorder.before_step
        for optimizer in self.training.optimizers:
            self.undo += hook_optimizer(optimizer, stepping)
        if self.mode != "batches":
            self.hooks.start()

    @guard
    def stop(self) -> None:
        """Remove every hook."""
        self.hooks.stop()
        while self.undo:
            self.undo.pop()()


class BatchIterator:
    """The batches of a loader: each `for` is another pass, and it is an iterator too. `begin` returns one pass."""

    def __init__(self, begin: Callable[[Iterable[Any]], Iterator[Any]], loader: Iterable[Any]) -> None:
        self.begin, self.loader = begin, loader
        self.current: Iterator[Any] | None = None  # the pass that `next` goes through

    def __iter__(self) -> Iterator[Any]:
        current, self.current = self.current, None  # a `for` continues after `next`, once
        return self.begin(self.loader) if current is None else current

    def __next__(self) -> Any:
        if self.current is None:
            self.current = self.begin(self.loader)
        return next(self.current)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]  # TypeError for one without, as of the loader itself

    def close(self) -> None:
        """End the pass that `next` goes through."""
        if self.current is not None:
            self.current.close()  # type: ignore[attr-defined]  # a generator


record = recording = LoopRecorder


def last_uncaught_error() -> BaseException | None:
    """Return the last uncaught error of this process, None where there was none."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)  # last_exc: since 3.12
    return error if isinstance(error, BaseException) else None


def _note_sharding(step_recorder: StepRecorder, models: Sequence[nn.Module]) -> None:
    """Record whether weights are sharded over ranks: a replay then cannot run one rank alone."""
    kinds = {kind.__name__ for model in models for part in model.modules() for kind in type(part).__mro__}
    if not kinds.isdisjoint((SHARDED, FULLY_SHARD)):
        program_info.update(step_recorder.folder, step_recorder.rank, spread=True)
    if SHARDED in kinds:
        step_recorder.snapshots_on = False
        print_message(f"no snapshots with {SHARDED}, whose ranks would have to take them together")


def length(of: Any) -> int | None:
    """Return the length of something, None where it has none."""
    try:
        return len(of)
    except Exception:  # a class of the user's
        return None


def early_exit_text(error: BaseException, where: str, epochs: int | None) -> str:
    """Return the sentence for a program that ended itself in the middle, with the line."""
    frames = traceback.extract_tb(error.__traceback__)
    line = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    of = "" if epochs is None else f" of {epochs}"
    return f"the training did not end: sys.exit(0){line} ended the program in {where}{of}, without an error"


def current_rank() -> int:
    """Return the rank of this process in a distributed training, 0 outside of one."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank())
    return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", 0)) or 0)


saved_rng_states.record_import()
