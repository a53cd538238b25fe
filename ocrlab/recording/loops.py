"""The flight recorder for a training loop written by hand; it needs torch and nothing else.

    with recording("runs/mine", model, optimizer, scheduler=scheduler, scaler=scaler) as rec:
        for epoch in rec.epochs(10):
            for batch in rec.batches(loader):
                loss = rec.loss(model(batch))
                loss.backward()
                optimizer.step()
            for batch in rec.validation(other): ...

Started again by `ocrlab replay`, the same program restores the state at the first `rec.batches`, gets the recorded
batches, and ends behind the last one.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ocrlab.recording import loading
from ocrlab.recording.harmless import say
from ocrlab.recording.held import Held
from ocrlab.recording.learning import Learning
from ocrlab.recording.loading import Loaded
from ocrlab.recording.restored import Restored
from ocrlab.recording.tape import Tape
from ocrlab.recording.walks import Counted

VALIDATION = 1  # the number of its loader
SHARDED = "FullyShardedDataParallel"  # its state_dict gathers from all ranks: one alone would wait for ever


class Loop:
    """What `recording` gives to a loop."""

    def __init__(self, held: Held, tape: Tape | None, replay: Restored | None) -> None:
        self.held, self.tape, self.replay = held, tape, replay
        self.first = held.optimizers[0] if held.optimizers else None  # whose learning rate is written down
        self.micro = -1  # the micro-batch at hand, from 0
        self.number = 0  # the optimiser step that is being made
        self.epoch = 0
        self.clean = True  # no gradient waits: the last micro-batch ended with a step, or there was none
        self.handles: list[Any] = []
        self.walks: list[list[Any]] = []  # of each walk over a loader: batches that were taken, and those there are
        self.walking = False
        self.epoch_count: int | None = None

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a loader; each is written down before it is used."""
        if self.replay is not None:
            yield from self.replay.batches(loader, self)
            return
        tape = self.tape
        told_by = tape.watch(loader) if tape is not None else None
        walk: list[Any] = [0, length(loader)]
        self.walking = True
        self.walks.append(walk)
        counted = told_by if isinstance(told_by, Counted) else None
        for batch in loader if counted is None else counted:
            walk[0] += 1
            told = counted.now if counted is not None else Loaded() if told_by is None else told_by.told()
            self.begin(batch, told)
            done = False
            try:
                yield batch
                done = True
            finally:
                stepped = None if tape is None or tape.quick is None else tape.quick.over(done)
                if stepped is None:
                    stepped = tape is not None and tape.over(done)
                self.clean = stepped or self.first is None
                self.number += self.clean  # an optimiser step, if the micro-batch that ends made one
        self.walking = False
        self.epoch += 1

    def epochs(self, epochs: int | Iterable[int]) -> Iterator[int]:
        """Yield the numbers of the epochs; a replay begins with the recorded one."""
        numbers = range(epochs) if isinstance(epochs, int) else epochs
        self.epoch_count = length(numbers)
        for epoch in numbers:
            if self.replay is not None and epoch < self.replay.first_epoch:
                continue
            self.epoch = epoch
            yield epoch

    def loss(self, loss: Any) -> Any:
        """Note the loss of this micro-batch, a tensor of one number or a number; returns it. Backward comes next."""
        tape = self.tape
        if tape is not None and tape.quick is not None and tape.quick.loss(loss):
            return loss
        recorder = tape or self.replay
        if recorder is not None:
            recorder.loss(loss)
            recorder.phase("backward")
            if recorder is tape and recorder.learning is not None and recorder.learning.looking:
                recorder.learn("scaling", loss)
        return loss

    def validation(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a validation; each is named before it is used, so that a replay finds the bad one."""
        with self.validating():
            if self.replay is not None:
                yield from self.replay.validation(loader)
                return
            told_by = self.tape.watch(loader := self._apart(loader), VALIDATION) if self.tape is not None else None
            for number, batch in enumerate(told_by if isinstance(told_by, Counted) else loader):
                if self.tape is not None and self.tape.on:
                    told = Loaded() if told_by is None else told_by.told()
                    self.tape.validate(number, batch, told)
                yield batch

    def _apart(self, loader: Any) -> Any:
        """Return what is another loader than the one of the training."""
        trained = self.tape.loaders.get(0) if self.tape is not None else None
        return loading.apart(loader) if trained is not None and trained.holds(loader) else loader

    @contextlib.contextmanager
    def validating(self) -> Iterator[None]:
        """Mark a block as validation, whose batches are not known."""
        self._say_phase("validation")
        yield
        self._say_phase("data")

    def _say_phase(self, name: str) -> None:
        recorder = self.tape or self.replay
        if recorder is not None:
            recorder.phase(name)

    def begin(self, batch: Any, told: Loaded) -> None:
        """Write the record of a micro-batch, and take a snapshot when it is time and no gradient waits."""
        self.micro += 1
        tape, micro = self.tape, self.micro
        if tape is None or not tape.on:
            return
        quick = tape.quick
        if quick is None or not quick.begin(self.number, micro, self.epoch, self.first, told, batch):
            tape.begin(self.number, micro, self.epoch, self.held.rate(), told, batch)
        if self.clean and micro > tape.snapshots.quiet:
            tape.snapshot(self.number, self.state)

    def state(self) -> dict[str, Any]:
        """Return the state of all parts, in this epoch."""
        return self.held.state(self.epoch)

    def _stepping(self, *_: Any) -> None:
        self._say_phase("optimiser")

    def ended(self, error: BaseException | None) -> None:
        """Note how the loop was left: how far each walk over its data came, and an exit without an error."""
        learning = self.tape.learning if self.tape is not None else None
        if learning is None:
            return
        learning.told.walks = [(taken, size) for taken, size in self.walks]
        learning.told.scaler = self.held.scaler is not None
        if self.walking and isinstance(error, SystemExit) and not error.code:
            taken, size = self.walks[-1]
            where = f"batch {taken}{'' if size is None else f' of {size}'} of epoch {self.epoch + 1}"
            learning.told.ended = left(error, where, self.epoch_count)

    def start(self) -> None:
        """Listen to the optimisers."""
        tape = self.tape
        stepping = self._stepping if tape is None else tape.stepping if tape.quick is None else tape.quick.stepping
        for optimizer in self.held.optimizers:
            with contextlib.suppress(AttributeError):  # of another make
                self.handles.append(optimizer.register_step_pre_hook(stepping))

    def stop(self) -> None:
        """Take every hook out."""
        while self.handles:
            self.handles.pop().remove()


@contextlib.contextmanager
def recording(
    folder: Path | str,
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
) -> Iterator[Loop]:
    """Record a training loop in `folder`/flight, so that `ocrlab replay folder` can run its last steps again.

    `model`, `optimizer` and `scheduler` may be lists; `extra` is a dict of whatever else has `state_dict` and
    `load_state_dict` (an average of the weights). `batches`, `snapshot_every` and `steps` as of `Recorder`. An error of
    the recorder never stops a training. torch.cuda.make_graphed_callables refuses a model with hooks: call it before.
    """
    held = Held(model, optimizer, scheduler, scaler, extra)
    replay = Restored.asked()
    tape = None
    if replay is None:
        try:
            rank = rank if rank is not None else current_rank()
            every = snapshot_every
            tape = Tape(Path(folder), "loop", rank=rank, batches=batches, every=every, steps=steps)
            if any(type(part).__name__ == SHARDED for model in held.models for part in model.modules()):
                tape.snapshots_on = False
                say(f"no snapshots with {SHARDED}, whose ranks would have to take them together")
            tape.hear(held.models[0])
            if tape.snapshots_on:
                whole = held.models[0] if len(held.models) == 1 else nn.ModuleList(held.models)
                tape.learning = Learning(whole, held.optimizers, held.extra)
        except Exception as error:
            if loading.worker_ended(error):
                raise
            say(f"not started, training goes on: {error}")
    loop = Loop(held, tape, replay)
    loop.start()
    try:
        if replay is not None:
            replay.start_loop(held)
        yield loop
        loop.ended(None)
        if replay is not None:
            replay.finish()
    except BaseException as error:
        loop.ended(error)
        if replay is not None:
            replay.failed(error)
        if tape is not None:
            tape.failed(error)
        raise
    finally:
        loop.stop()
        if tape is not None:
            tape.finish()


def length(of: Any) -> int | None:
    """Return how many things there are in something, None where it does not know."""
    try:
        return len(of)
    except (TypeError, RuntimeError):
        return None


def left(error: BaseException, where: str, epochs: int | None) -> str:
    """Return in words that a program ended itself in the middle, and at which line."""
    frames = traceback.extract_tb(error.__traceback__)
    line = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    of = "" if epochs is None else f" of {epochs}"
    return f"the training did not end: sys.exit(0){line} ended the program in {where}{of}, without an error"


def current_rank() -> int:
    """Return the number of this process in a distributed training, 0 outside of one."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank())
    return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", 0)) or 0)
