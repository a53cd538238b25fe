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
import operator
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ocrlab.debug.flight_record import program_info
from ocrlab.debug.recorder import dataloader_hooks, import_rng_state
from ocrlab.debug.recorder.batch_iterator import Batches
from ocrlab.debug.recorder.dataset_proxy import Loaded
from ocrlab.debug.recorder.fail_safe import say
from ocrlab.debug.recorder.iteration_log import Counted
from ocrlab.debug.recorder.module_stages import Now
from ocrlab.debug.recorder.step_recorder import Tape, listen
from ocrlab.debug.recorder.training_health.monitor import Learning
from ocrlab.debug.recorder.training_state import Held
from ocrlab.debug.replay.child.replay_session import Restored

NEVER = 1 << 62  # micro-batches
VALIDATION = 1  # the number of its loader
SHARDED = "FullyShardedDataParallel"  # its state_dict gathers from all ranks: one alone would wait for ever
SPREAD = "FSDPModule"  # of fully_shard


class Loop:
    """What `recording` gives to a loop."""

    def __init__(self, held: Held, tape: Tape | None, replay: Restored | None) -> None:
        self.held, self.tape, self.replay = held, tape, replay
        self.first = held.optimizers[0] if held.optimizers else None  # whose learning rate is written down
        self.now: Any = Now() if tape is None else tape.now  # how far it is
        self.undo: list[Callable[[], Any]] = []
        self.walks: list[list[Any]] = []  # of each walk over a loader: batches that were taken, and those there are
        self.walking = False
        self.epoch_count: int | None = None

    @property
    def micro(self) -> int:
        """The number of the micro-batch at hand, from 0; -1 before the first."""
        return int(self.now.micro)

    def batches(self, loader: Iterable[Any]) -> Batches:
        """Return the batches of a loader, which can be walked over as often as that; each is written down before it is
        used.
        """
        return Batches(self._walk, loader)

    def _walk(self, loader: Iterable[Any]) -> Iterator[Any]:
        if self.replay is not None:
            return self.replay.batches(loader, self)
        return self._batches(loader)

    def _batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a loader."""
        now, tape = self.now, self.tape
        told_by, taken = self._begun(loader)
        for batch in told_by if isinstance(told_by, Counted) else loader:
            taken[0] += 1
            now.micro += 1
            if tape is not None:
                self.begin(batch, Loaded() if told_by is None else told_by.told())
                if now.clean and now.micro > tape.snapshots.quiet:
                    self.snapshot()
            done = False
            try:
                yield batch
                done = True
            finally:
                now.clean = self.over(done) or self.first is None
                now.number += now.clean  # an optimiser step, if the micro-batch that ends made one
        self.ends()

    def _begun(self, loader: Iterable[Any]) -> tuple[Any, list[Any]]:
        """Note that a walk begins; returns what tells of its batches, and a list that begins with their number."""
        taken = [0, length(loader)]
        told_by = self.tape.watch(loader) if self.tape is not None else None
        if self.tape is not None:
            self.tape.wait()
        if isinstance(told_by, dataloader_hooks.Loader):
            told_by.on_wait = None  # a walk says by itself that it waits
        self.walking = True
        self.walks.append(taken)
        return told_by, taken

    def begin(self, batch: Any, told: Loaded) -> None:
        """Write the record of a micro-batch."""
        now, tape = self.now, self.tape
        if tape is not None and tape.on:
            tape.begin(now.number, now.micro, now.epoch, self.held.rate(), told, batch)

    def snapshot(self) -> int:
        """Take a snapshot where it is time for one; returns the micro-batch up to which nobody needs to ask."""
        tape = self.tape
        if tape is None:
            return NEVER
        tape.snapshot(self.now.number, self.state)
        return tape.snapshots.quiet

    def over(self, waits: bool) -> bool:
        """Note that a micro-batch is over, and the next one waited for or not; tells if an optimiser has stepped."""
        return self.tape is not None and self.tape.over(waits)

    def ends(self) -> None:
        """Note that a walk has come to its end."""
        self.walking = False
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
        """Note the loss of this micro-batch, a tensor of one number or a number; returns it. Backward comes next."""
        tape = self.tape
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
        return dataloader_hooks.apart(loader) if trained is not None and trained.holds(loader) else loader

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

    def state(self) -> dict[str, Any]:
        """Return the state of all parts, in this epoch."""
        return self.held.state(self.now.epoch)

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
            where = f"batch {taken}{'' if size is None else f' of {size}'} of epoch {self.now.epoch + 1}"
            learning.told.ended = left(error, where, self.epoch_count)

    def start(self) -> None:
        """Listen to the optimisers."""
        stepping = self._stepping if self.tape is None else self.tape.stepping
        for optimizer in self.held.optimizers:
            self.undo += listen(optimizer, stepping)

    def stop(self) -> None:
        """Take every hook out."""
        while self.undo:
            self.undo.pop()()


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
    if replay is None and not program_info.is_replay():
        try:
            rank = rank if rank is not None else current_rank()
            every = snapshot_every
            tape = Tape(Path(folder), "loop", rank=rank, batches=batches, every=every, steps=steps)
            _spread(tape, held.models)
            tape.hear(*held.models)
            if tape.snapshots_on:
                whole = held.models[0] if len(held.models) == 1 else nn.ModuleList(held.models)
                tape.learning = Learning(whole, held.optimizers, held.extra)
            import_rng_state.note(tape.folder, tape.rank, tape.start)
        except Exception as error:
            if dataloader_hooks.worker_ended(error):
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
            tape.member.end("failed", error=error)
            tape.failed(error)
        raise
    finally:
        loop.stop()
        if tape is not None:
            tape.finish()


def _spread(tape: Tape, models: Sequence[nn.Module]) -> None:
    """Note where weights are spread over ranks: in a replay none of them can stand in for another."""
    kinds = {kind.__name__ for model in models for part in model.modules() for kind in type(part).__mro__}
    if not kinds.isdisjoint((SHARDED, SPREAD)):
        program_info.add(tape.folder, tape.rank, spread=True)
    if SHARDED in kinds:
        tape.snapshots_on = False
        say(f"no snapshots with {SHARDED}, whose ranks would have to take them together")


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


import_rng_state.imported()
