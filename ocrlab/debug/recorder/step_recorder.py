"""What a training in this process writes to its flight folder; the part that Lightning and a hand-written loop share.

No error in here reaches the training: it is said once, and the recorder is off from then on. Only what torch's signal
handler says in here of a worker that ended is let through.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ocrlab.debug.flight_record import program_info, ring_format, ring_writer, training_findings
from ocrlab.debug.flight_record.ring_format import PHASE_AT, STAGE_AT
from ocrlab.debug.instruments import cuda_sticky_errors
from ocrlab.debug.recorder import dataloader_hooks, import_rng_state, iteration_log, rng_state, sample_names
from ocrlab.debug.recorder.async_losses import LossTransfer
from ocrlab.debug.recorder.batch_store import BatchStore
from ocrlab.debug.recorder.dataloader_hooks import LoaderRecorder
from ocrlab.debug.recorder.dataset_proxy import BatchOrigin, StatusLocation
from ocrlab.debug.recorder.iteration_log import CountingLoader
from ocrlab.debug.recorder.memory_sample import MemoryReader
from ocrlab.debug.recorder.module_stages import StageHooks
from ocrlab.debug.recorder.snapshots import Snapshots
from ocrlab.debug.recorder.training_health.monitor import MANY, TrainingMonitor
from ocrlab.run_folder import launcher, watcher_link
from ocrlab.run_folder.fail_safe import NAME, guard, print_message, report, worker_ended, write_errors_to

RECORDERS: weakref.WeakSet[StepRecorder] = weakref.WeakSet()  # the tapes of this process


class StepRecorder:
    """The ring, the snapshots and the loaders of one training; raises OSError where its folder cannot be written."""

    def __init__(
        self,
        folder: Path,
        kind: str,
        *,
        rank: int = 0,
        batches: str = "ids",
        every: int | None = None,
        steps: int = 512,
    ) -> None:
        facts, self.folder = import_rng_state.program_facts(), Path(folder, "flight")
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_errors_to(self.folder / NAME)
        self.on = self.snapshots_on = self.cuda = True
        world = 1 if kind == "ocrlab train" else program_info.world_size()  # ocrlab train keeps a record of its own
        self.rank, self.member = rank, launcher.member(self.folder, rank, world)
        self.writer, self.start = ring_writer.create(self.folder, rank=rank, slots=steps)
        program_info.write(self.folder, kind, rank=rank, **facts)
        if rank == 0:
            watcher_link.report_record(folder)
        self.snapshots = Snapshots(self.folder, rank, self.start, every=every, most=max(1, steps - 16))
        self.snapshots.written, self.snapshots.cuda = self.saved, lambda: self.cuda
        self.raw = BatchStore(self.folder, rank, steps) if batches == "raw" else None
        self.loaders: dict[int, LoaderRecorder | CountingLoader] = {}
        self.memory = MemoryReader()
        self.reader = rng_state.StateReader()
        self.stages = StageHooks(self.writer)
        self.now = self.stages.now
        self.monitor: TrainingMonitor | None = None
        training_findings.delete(self.folder, rank)
        self.late_loss: float | None = None  # the newest that came from a device
        self.stop_waiting: Callable[[], Any] = lambda: None  # takes out the hook behind a step that is being made
        self.late = LossTransfer()  # losses on their way from a device
        RECORDERS.add(self)

    @property
    def micro(self) -> int:
        """The number of the micro-batch at hand."""
        return self.writer.micro

    @guard
    def hook_stages(self, *models: nn.Module) -> None:
        """Note which stage of a model is entered."""
        self.stages.attach(*models)

    @guard
    def watch(self, loader: Any, number: int = 0) -> LoaderRecorder | CountingLoader:
        """Note what a loader's workers are on and what its batches are made of, until `finish`.

        Loader 0 is the training's. Returns what holds the notes; a `Counted` is to be used in place of the loader.
        """
        if (earlier := self.loaders.get(number)) is not None and earlier.holds(loader):
            return earlier
        on_walk, on_batch = (self.walk, self.batch) if number == 0 else (None, None)
        if dataloader_hooks.can_record(loader):
            place = StatusLocation(self.folder.absolute(), self.rank, self.start, number)
            on_wait = self.wait if number == 0 else None
            entry: LoaderRecorder | CountingLoader = LoaderRecorder(loader, place, on_batch, on_walk, on_wait)
            entry.start()
        else:
            entry = CountingLoader(loader, on_walk, on_batch if self.raw is not None else None, self.may_take_snapshot)
        if earlier is not None:
            earlier.stop()
            entry.walk = earlier.walk
        self.loaders[number] = entry
        return entry

    def may_take_snapshot(self) -> bool:
        """Tell whether a snapshot may be taken before the next micro-batch."""
        return self.micro + 1 > self.snapshots.quiet

    @guard
    def walk(self, number: int) -> None:
        """Note the beginning of a walk over data without indices."""
        iteration_log.save_states(self.folder, self.rank, self.start, number)

    def batch(self, data: Any, origin: BatchOrigin) -> None:
        """Note a batch that has left its loader, before anybody moves it to a device."""
        if not self.on:
            return
        try:
            names = sample_names.batch_names(data)
            origin.samples = names or origin.samples
            if self.raw is not None and (raw_name := self.raw.keep(data)):
                origin.base = {**origin.base, "raw": raw_name}
        except Exception as error:
            self.give_up(error)

    def begin(
        self, number: int, micro: int, epoch: int, lr: float | None, origin: BatchOrigin, batch: Any = None
    ) -> None:
        """Write the record of a micro-batch whose batch is there, before anything is computed with it.

        What belongs to an optimizer step, its memory and its learning rate, is in the record of its first one.
        """
        if not self.on:
            return
        self.now.in_step, self.now.stepped = True, False
        try:
            self.settle()
            if origin.position < 0 or origin.base is iteration_log.ORDER:  # nobody has looked into this batch
                origin.samples = sample_names.batch_names(batch)
            cuda = self.cuda and torch.cuda.is_initialized()
            when, writer = time.time(), self.writer
            step = ring_format.Step(number, micro, epoch, origin.walk, origin.samples, order=origin.base, time=when)
            everything = micro > self.snapshots.quiet or origin.position == 0  # a snapshot, or a walk, begins here
            step.random, step.loaded = self.reader.take(cuda=cuda, everything=everything), origin.states
            step.loss_before = writer.newest_loss if self.late_loss is None else self.late_loss
            if number != writer.number:
                step.lr, step.memory = lr, self.memory.at(when, cuda)
            self.learn_batch(micro, batch, origin)
            writer.begin(step, origin.position)
            self.late_loss = None
        except Exception as error:
            self.give_up(error)

    def learn_batch(self, micro: int, batch: Any, origin: BatchOrigin) -> None:
        """Note a batch for the training monitor."""
        monitor = self.monitor
        if monitor is None or not self.cuda:
            return
        monitor.stats.batches += 1
        if micro >= monitor.due or origin.walk != monitor.walk:
            try:
                monitor.begin(micro, batch, origin.walk)
            except Exception as error:
                self.unlearn(error)
        if origin.base is not iteration_log.ORDER:
            monitor.coverage.note(origin.base.get("indices", ""))

    def wait(self) -> None:
        """Note that the next batch is waited for."""
        self.phase("data")

    def over(self, waits: bool) -> bool:
        """Note that a micro-batch is over, and the next one waited for or not; tells if an optimiser has stepped."""
        if waits:
            self.phase("data")
        return bool(self.now.stepped)

    @guard
    def start_again(self) -> None:
        """Forget the records that were written."""
        self.writer.start_again()

    @guard
    def starts_at_snapshots(self, on: bool) -> None:
        """Take snapshots, if that is `on`, of a loop that says by now where its steps begin."""
        self.snapshots_on = on
        program_info.update(self.folder, self.rank, from_start=False)

    def phase(self, name: str) -> None:
        """Say which part of the step begins; "data" and "validation" lie outside of it."""
        if not self.on:
            return
        try:
            page = self.writer.page
            page[PHASE_AT] = self.writer.words[name]
            if name == "backward":
                page[STAGE_AT] = 0  # the stage that was entered last is the loss's; a recomputed one will say so
        except Exception as error:
            self.give_up(error)
        self.now.in_step = name == "forward"  # the model may be run again in a backward
        monitor = self.monitor
        if monitor is not None and monitor.validating != (name == "validation"):
            self.learn("validate", name == "validation")

    @guard
    def validate(self, number: int, batch: Any, origin: BatchOrigin) -> None:
        """Say which batch of a validation is looked at."""
        names = sample_names.batch_names(batch) or origin.samples
        self.writer.sample(f"validation batch {number}: {', '.join(names[:8])}")

    def loss(self, value: Any, scale: float = 1.0) -> None:
        """Note the loss of this micro-batch; one on a device is not waited for."""
        if not self.on:
            return
        try:
            if isinstance(value, Tensor):
                if value.is_cuda and self.cuda:
                    self.late.send(self.micro, value.detach(), scale)
                if value.is_cuda or value.numel() != 1:
                    return
                value = value.item()
            elif isinstance(value, Mapping):
                self.loss(value.get("loss"), scale)
                return
            if value is None:
                return
            value = float(value) * scale
            self.writer.loss(value)
            monitor = self.monitor
            if monitor is None or not self.cuda:
                return
            monitor.losses.append(value)
            if not monitor.looking and value - value == 0 and len(monitor.losses) < MANY:
                return  # they are counted together
        except Exception as error:
            self.give_up(error)
        else:
            self.learn("loss")

    def settle(self) -> None:
        """Write down the losses that have arrived from the device."""
        for micro, loss in self.late.arrived() if self.cuda and self.late else ():
            self.late_loss = loss
            self.writer.loss(loss, micro)
            if self.monitor is not None:
                self.monitor.losses.append(loss)
                self.learn("loss")

    def has_loss(self) -> bool:
        """Tell whether this micro-batch has a loss, or one on its way from a device."""
        return bool(self.late) or self.writer.newest_loss is not None

    def stepping(self, optimizer: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Note that an optimiser is about to step, called with what its hook is given.

        Where this step is looked at, or makes its gradients itself (a closure, as Lightning gives it always), it is
        noted when it is made; and with a closure the forward is still to come.
        """
        self.stop_waiting()  # behind a step that has raised
        self.now.stepped = True
        closure = args[1] if len(args) > 1 else named.get("closure")
        if closure is None:
            self.phase("optimiser")
        monitor = self.monitor
        if monitor is None or not (self.on and self.cuda):
            return
        try:
            if closure is not None or monitor.looking or monitor.probes:
                monitor.stepping(optimizer)
                self.stop_waiting = optimizer.register_step_post_hook(self.stepped).remove
            else:
                monitor.stepped(optimizer, self.micro)
        except Exception as error:
            self.unlearn(error)

    def stepped(self, optimizer: Any, *_: Any) -> None:
        """Note that an optimiser has made a step, in a hook for this one alone."""
        self.stop_waiting()
        self.learn("stepped", optimizer, self.micro)

    def learn(self, method: str, *args: Any) -> None:
        """Let a method of the training monitor note something; it is switched off instead of raising."""
        if self.monitor is None or not (self.on and self.cuda):
            return
        try:
            getattr(self.monitor, method)(*args)
        except Exception as error:
            self.unlearn(error)

    def unlearn(self, error: Exception) -> None:
        """Switch off the training monitor, with a word about why."""
        if worker_ended(error):
            raise error
        if self.monitor is not None:
            self.monitor.close()
            self.monitor = None
        self.failed(error)
        report(error, "whether it learns is no longer looked at", self.folder)

    def judge(self) -> None:
        """Say and write down what was noticed of a training that ends."""
        self.learn("end")
        if self.monitor is None:
            return
        entry, stats = self.loaders.get(0), self.monitor.stats
        lines = self.monitor.sentences(entry.loader() if isinstance(entry, LoaderRecorder) else None)
        more = {"cut": bool(stats.ended), "end": self.member.record["end"]}
        training_findings.write(self.folder, self.rank, self.start, lines, stats.weights, **more)
        for line in lines if self.rank == 0 else ():
            print_message(line)

    def snapshot(self, number: int, content: Callable[[], dict[str, Any]]) -> None:
        """Take a snapshot of the state before this micro-batch, where it is time for one."""
        try:
            if self.on and self.snapshots_on and self.snapshots.due(self.micro):
                random = rng_state.take(cuda=self.cuda)
                self.snapshots.take(content(), micro=self.micro, number=number)
                if rng_state.take(cuda=self.cuda) != random:  # a hook of the user has drawn
                    rng_state.restore(random)
        except Exception as error:
            if worker_ended(error):
                raise
            self.snapshots_on = False
            self.failed(error)
            report(error, "no more snapshots", self.folder)

    def saved(self, side: int, micro: int, number: int) -> None:
        """Note that a snapshot is whole (in the thread that wrote it)."""
        self.writer.saved(side, micro, number)
        if self.raw is not None:
            self.raw.forget(self.snapshots.complete[0])

    def failed(self, error: BaseException) -> None:
        """Take note of an error of the training: after one of CUDA the context is dead, and no call is made."""
        if worker_ended(error):
            self.phase("data")  # it may come up in any part of a step; what failed is loading
        if self.cuda and cuda_sticky_errors.is_cuda_error(error):
            self.cuda = False
            if self.monitor is not None:
                self.monitor.close()  # its hooks in the model ask for the stream
            cuda_sticky_errors.never_free([*self.late.abandon(), *self.snapshots.abandon()])

    def finish(self) -> None:
        """Take every hook out, and wait for what is being written."""
        self.stop_waiting()
        self.member.end("success")
        self.stages.detach()
        for entry in self.loaders.values():
            entry.stop()
        try:
            if self.on:
                self.settle()
                self.judge()
            self.snapshots.close()
        except Exception as error:
            self.failed(error)
            report(error, "the record may lack its end", self.folder)
        if self.on:
            self.on = False
            self.writer.close()
            self.memory.close()

    def give_up(self, error: Exception) -> None:
        """Switch off for good, with a word about why."""
        if worker_ended(error):
            raise error
        self.on = False
        self.failed(error)
        self.stages.detach()
        for entry in self.loaders.values():
            entry.stop()
        report(error, "off for the rest of this run, training goes on", self.folder)


def hook_optimizer(optimizer: Any, stepping: Callable[..., Any]) -> list[Callable[[], Any]]:
    """Hear an optimizer's steps by `stepping`; returns what undoes it, nothing for one of another make."""
    register = getattr(optimizer, "register_step_pre_hook", None)
    return [] if register is None else [register(stepping).remove]


def disable_in_fork() -> None:
    """Switch all tapes off in a forked child, which must not write its parent's record."""
    for step_recorder in RECORDERS:
        step_recorder.on = step_recorder.stages.on = step_recorder.cuda = False
        cuda_sticky_errors.never_free(
            [*step_recorder.late.abandon(), *step_recorder.snapshots.abandon()]
        )  # CUDA does not live on in a fork


os.register_at_fork(after_in_child=disable_in_fork)  # once: what is registered can never be taken back
