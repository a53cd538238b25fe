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
batches, and ends after the last one. A loop that draws its batches by itself marks where a step begins by
`for step in rec.steps(n)`; one that marks nothing is recorded from one `optimizer.step()` to the next, and a replay
runs it from its beginning.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import operator
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from ocrlab.debug.flight_record import program_info
from ocrlab.debug.instruments.dataloader import loader_proxy
from ocrlab.debug.recorder import saved_rng_states
from ocrlab.debug.recorder.loader_recorder import CountingLoader, LoaderRecorder
from ocrlab.debug.recorder.recording import Recording
from ocrlab.debug.recorder.sample_recorder import BatchOrigin
from ocrlab.debug.recorder.stage_hooks import StepPosition, StepStart
from ocrlab.debug.recorder.step_recorder import StepRecorder
from ocrlab.debug.recorder.training_state import TrainingState
from ocrlab.debug.recorder.unmarked_loop_hooks import StepHooks
from ocrlab.run_folder.fail_safe import guard, print_message

MAX_EPOCH = 1 << 62  # what a record can hold
VALIDATION = 1  # the number of its loader
SHARDED = "FullyShardedDataParallel"  # its state_dict gathers from all ranks: one alone would wait for ever
FULLY_SHARD = "FSDPModule"  # of fully_shard
OPEN_LOOPS: weakref.WeakSet[LoopRecorder] = weakref.WeakSet()  # not closed yet


class LoopRecorder(Recording):
    """The flight recorder of one hand-written loop, until `close` or the end of the program; public as `ocrlab.record`.

    `model`, `optimizer` and `scheduler` may be lists. `extra` is a dict of other objects that have `state_dict` and
    `load_state_dict`, such as an average of the weights. `batches` is "ids" (a replay rebuilds them from the data) or
    "raw" (they are stored). `snapshot_every` counts micro-batches; None takes snapshots for about 1 % of the time.
    `steps` is the number of last micro-batches that are kept. `rank` is that of this process; None takes it from the
    process group or the launcher. An error of the recorder never stops a training. Call
    torch.cuda.make_graphed_callables first: it refuses a model with hooks. Raises ShapeError if `model` is not a model.
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

        def make() -> StepRecorder:
            own = current_rank() if rank is None else rank
            recorder = StepRecorder(Path(run), "loop", rank=own, batches=batches, every=snapshot_every, steps=steps)
            kinds = {kind.__name__ for model in state.models for part in model.modules() for kind in type(part).__mro__}
            if not kinds.isdisjoint((SHARDED, FULLY_SHARD)):  # a replay cannot run one rank alone
                program_info.update(recorder.folder, recorder.rank, spread=True)
            if SHARDED in kinds:
                recorder.snapshots_on = False
                print_message(f"no snapshots with {SHARDED}, whose ranks would have to take them together")
            recorder.optimizers = state.optimizers
            recorder.hook_stages(*state.models)
            if recorder.snapshots_on:
                recorder.monitor_training(
                    state.models[0] if len(state.models) == 1 else nn.ModuleList(state.models), extra=state.extra
                )
            return recorder

        self._begin(make)
        self.now = StepPosition() if self.step_recorder is None else self.step_recorder.now
        self.passes: list[list[Any]] = []  # of each pass over a loader: batches taken, and its length
        self.in_pass = False
        self.epoch_count: int | None = None
        self.step_start = StepStart.UNKNOWN
        self.hooks = StepHooks(self)
        self.is_closed = self.takes_snapshots = False
        self.pid, self.error_before = os.getpid(), last_uncaught_error()
        for other in [other for other in OPEN_LOOPS if self.replay is None and other.training.shares(state)]:
            other.close()  # a cell of a notebook that is executed again
        OPEN_LOOPS.add(self)
        self._hook_steps(state.optimizers)
        self.hooks.start()
        atexit.register(self._at_exit)
        if self.replay is not None:
            self.replay.start_loop(state)
            if self.replay.from_start:
                self.begin_steps(StepStart.UNMARKED)
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
        self._record_how_left(error)
        try:
            if error is not None:
                self._fail(error)
            elif self.replay is not None:
                self.replay.finish()
        finally:
            self.stop()
            if self.step_recorder is not None:
                self.step_recorder.finish()

    @guard
    def _record_how_left(self, error: BaseException | None) -> None:
        """Record how far each pass came, and an exit without an error."""
        monitor = self.step_recorder.monitor if self.step_recorder is not None else None
        if monitor is None:
            return
        monitor.stats.walks = [(taken, size) for taken, size in self.passes]
        monitor.stats.scaler = self.training.scaler is not None
        if self.in_pass:
            taken, size = self.passes[-1]
            where = f"batch {taken}{'' if size is None else f' of {size}'} of epoch {self.now.epoch + 1}"
            self._record_early_exit(error, where, self.epoch_count)

    @guard
    def stop(self) -> None:
        """Remove every hook."""
        self.hooks.stop()
        self._remove_hooks()

    @property
    def micro(self) -> int:
        """The number of the current micro-batch, from 0; -1 before the first."""
        return int(self.now.micro)

    def state(self) -> dict[str, Any]:
        """Return the state of all parts, in this epoch."""
        return self.training.state(self.now.epoch)

    def batches(self, loader: Iterable[Any]) -> BatchIterator:
        """Return the batches of a loader, for any number of passes; each is recorded before it is used."""
        return BatchIterator(self._begin_pass, loader)

    def _begin_pass(self, loader: Iterable[Any]) -> Iterator[Any]:
        self.begin_steps(StepStart.BATCH)
        return self._batches(loader) if self.replay is None else self.replay.batches(loader, self)

    def _batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a loader."""
        now, recorder = self.now, self.step_recorder
        taken: list[Any] = [0, length(loader)]
        source = None
        if recorder is not None:
            source = recorder.record_loader(loader)
            recorder.phase("data")
        if isinstance(source, LoaderRecorder):
            source.on_wait = None  # the pass records its own waits
        self.in_pass = True
        self.passes.append(taken)
        for batch in source if isinstance(source, CountingLoader) else loader:
            taken[0] += 1
            now.micro += 1
            if recorder is not None:
                origin = BatchOrigin() if source is None else source.take_origin()
                recorder.begin(now.number, now.micro, now.epoch, origin, batch)
                if now.clean and now.micro > recorder.snapshots.quiet:
                    recorder.snapshot(now.number, self.state)
            is_used = False
            try:
                yield batch
                is_used = True
            finally:
                if recorder is not None and is_used:
                    recorder.phase("data")
                now.clean = (recorder is not None and now.stepped) or not self.training.optimizers
                now.number += now.clean  # a micro-batch that ended with an optimizer step
        self.in_pass = False
        now.epoch += 1

    def steps(self, steps: int | Iterable[Any] | None = None) -> Iterator[Any]:
        """Yield the numbers below `steps`, the items of `steps`, or endless numbers; each is one optimizer step.

        For a loop that draws its own batches. A replay begins with the step of a snapshot.
        """
        numbers = itertools.count() if steps is None else range(steps) if isinstance(steps, int) else steps
        self.begin_steps(StepStart.MARKED)
        if self.replay is not None:
            yield from self.replay.steps(numbers, self)
            return
        for number in numbers:
            self.begin_step()
            yield number
            self._set_phase("data")

    @guard
    def begin_step(self) -> None:
        """Write the record of an optimizer step without known batches."""
        now, recorder = self.now, self.step_recorder
        now.micro += 1
        now.number = now.micro
        self.hooks.has_loss = False
        if recorder is not None:
            recorder.begin(now.number, now.micro, now.epoch, BatchOrigin())
            if self.step_start is StepStart.MARKED and now.micro > recorder.snapshots.quiet:
                recorder.snapshot(now.number, self.state)

    @guard
    def begin_steps(self, start: StepStart) -> None:
        """Record what marks the beginning of a step from now on."""
        if self.step_start is start:
            return
        recorder, before, self.step_start = self.step_recorder, self.step_start, start
        if recorder is not None and start is StepStart.UNMARKED:
            self.takes_snapshots = recorder.snapshots_on
            recorder.enable_snapshots(False, from_start=True)  # a replay runs the program from its beginning
        elif recorder is not None and before is StepStart.UNMARKED:
            if not self.hooks.has_stepped:  # the records are of model calls before the training
                recorder.writer.start_again()
                self.now.micro, self.now.number = -1, 0
            recorder.enable_snapshots(self.takes_snapshots, from_start=False)
        if start is StepStart.BATCH:
            self.hooks.stop()

    def epochs(self, epochs: int | Iterable[int]) -> Iterator[int]:
        """Yield the numbers of the epochs; a replay begins with the recorded epoch."""
        numbers = range(epochs) if isinstance(epochs, int) else epochs
        self.epoch_count = length(numbers)
        for epoch in numbers:
            if self.replay is not None and epoch < self.replay.first_epoch:
                continue
            with contextlib.suppress(TypeError, OverflowError):  # no numbers
                self.now.epoch = min(operator.index(epoch), MAX_EPOCH)
            yield epoch

    def loss(self, loss: Any) -> Any:
        """Record the loss of this micro-batch, a tensor of one number or a number; returns it. Backward comes next."""
        recorder = self.step_recorder
        self.hooks.has_loss = True
        self._record_loss(loss)
        self._set_phase("backward")
        if recorder is not None and recorder.monitor is not None and recorder.monitor.looking:
            recorder.monitor.scaling(loss)
        return loss

    def validation(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a validation; each is recorded before it is used, so that a replay finds the bad one."""
        recorder = self.step_recorder
        with self.validating():
            if self.replay is not None or recorder is None:
                yield from loader if self.replay is None else self.replay.validation(loader)
                return
            trained = recorder.loaders.get(0)
            if trained is not None and trained.holds(loader):
                loader = loader_proxy.copy_loader(loader)
            source = recorder.record_loader(loader, VALIDATION)
            for number, batch in enumerate(source if isinstance(source, CountingLoader) else loader):
                recorder.validate(number, batch, BatchOrigin() if source is None else source.take_origin())
                yield batch

    @contextlib.contextmanager
    def validating(self) -> Iterator[None]:
        """Mark a block as validation without known batches."""
        self._set_phase("validation")
        yield
        self._set_phase("data")


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


def length(of: Any) -> int | None:
    """Return the length of something, None where it has none."""
    try:
        return len(of)
    except Exception:  # a class of the user's
        return None


def current_rank() -> int:
    """Return the rank of this process in a distributed training, 0 outside of one."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank())
    return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", 0)) or 0)


saved_rng_states.record_import()
