"""What a training in this process writes to its flight folder; the part that Lightning and a hand-written loop share.

No error in here reaches the training: it is reported once, and the recorder is off from then on. Only what a signal
handler raises in here is let through, as torch's does for a worker that ended.
"""

from __future__ import annotations

import os
import shlex
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ocrlab.debug.flight_record import program_info, ring_format, ring_writer, training_findings
from ocrlab.debug.flight_record.ring_format import PHASE_AT, STAGE_AT
from ocrlab.debug.instruments import cuda_sticky_errors, sample_names
from ocrlab.debug.recorder import loader_recorder, rng_state, saved_rng_states
from ocrlab.debug.recorder.batch_store import BatchStore
from ocrlab.debug.recorder.loader_recorder import CountingLoader, LoaderRecorder
from ocrlab.debug.recorder.sample_recorder import BatchOrigin, StatusLocation
from ocrlab.debug.recorder.snapshots import Snapshots
from ocrlab.debug.recorder.stage_hooks import StageHooks
from ocrlab.debug.recorder.step_measurements import LossTransfer, MemoryReader
from ocrlab.debug.recorder.training_health.monitor import AT_END, TrainingMonitor
from ocrlab.debug.recorder.training_state import first_learning_rate
from ocrlab.run_folder import launcher, watcher_link
from ocrlab.run_folder.fail_safe import (
    NAME,
    guard,
    is_device_error,
    print_message,
    recognize_device_errors,
    report,
    worker_ended,
    write_errors_to,
)

RECORDERS: weakref.WeakSet[StepRecorder] = weakref.WeakSet()  # of this process
recognize_device_errors(cuda_sticky_errors.is_cuda_error)


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
        nth, after = saved_rng_states.count_recording(), time.monotonic() - saved_rng_states.STARTED
        self.folder = Path(folder, "flight")
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_errors_to(self.folder / NAME)
        self.on = self.snapshots_on = self.cuda = True
        world = 1 if kind == "ocrlab train" else program_info.world_size()  # ocrlab train keeps a record of its own
        self.rank, self.member = rank, launcher.member(self.folder, rank, world)
        self.writer, self.start = ring_writer.create(self.folder, rank=rank, slots=steps)
        same = any(other.on and (other.folder, other.rank) == (self.folder, rank) for other in RECORDERS)
        if other := os.getpid() if same else program_info.other_process(self.folder, rank):
            print_message(
                f"process {other} records into {folder} too, and each replaces files of the other; give each recording "
                "a folder of its own"
            )
        program_info.write(self.folder, kind, rank=rank, nth=nth, after=after)
        saved_rng_states.save_start(self.folder, rank, self.start)
        if rank == 0:
            watcher_link.report_record(folder)
        self.snapshots = Snapshots(self.folder, rank, self.start, every=every, most=max(1, steps - 16))
        self.snapshots.written, self.snapshots.cuda = self.record_snapshot, lambda: self.cuda
        self.raw = BatchStore(self.folder, rank, steps) if batches == "raw" else None
        self.loaders: dict[int, LoaderRecorder | CountingLoader] = {}
        self.optimizers: Sequence[Any] = ()  # the learning rate of the first one is recorded
        self.memory = MemoryReader()
        self.reader = rng_state.StateReader()
        self.stages = StageHooks(self.writer)
        self.now = self.stages.now
        self.monitor: TrainingMonitor | None = None
        training_findings.set_aside(self.folder, rank, self.start)
        self.arrived_loss: float | None = None  # the newest that came from a device
        self.batch: Any = None  # of the micro-batch at hand
        self.remove_step_hook: Callable[[], Any] = lambda: None  # removes the hook after the step at hand
        self.transfer = LossTransfer()  # of losses from a device
        RECORDERS.add(self)

    @property
    def micro(self) -> int:
        """The number of the current micro-batch."""
        return self.writer.micro

    @guard
    def hook_stages(self, *models: nn.Module) -> None:
        """Record which stage of a model is entered."""
        self.stages.attach(*models)

    @guard
    def record_loader(self, loader: Any, number: int = 0) -> LoaderRecorder | CountingLoader:
        """Record the samples that a loader's workers load and what its batches are made of, until `finish`.

        Loader 0 is the training's. Returns what records it; a `CountingLoader` takes the place of the loader.
        """
        if (earlier := self.loaders.get(number)) is not None and earlier.holds(loader):
            return earlier
        on_pass, on_batch = (self.begin_pass, self.note_batch) if number == 0 else (None, None)
        if loader_recorder.can_record(loader):
            place = StatusLocation(self.folder.absolute(), self.rank, self.start, number)
            on_wait = (lambda: self.phase("data")) if number == 0 else None
            entry: LoaderRecorder | CountingLoader = LoaderRecorder(loader, place, on_batch, on_pass, on_wait)
            entry.start()
        else:
            can_snapshot = lambda: self.micro + 1 > self.snapshots.quiet  # noqa: E731  # before the next micro-batch
            entry = CountingLoader(loader, on_pass, on_batch if self.raw is not None else None, can_snapshot)
        if earlier is not None:
            earlier.stop()
            entry.pass_number = earlier.pass_number
        self.loaders[number] = entry
        return entry

    @guard
    def begin_pass(self, number: int) -> None:
        """Store the random states before a pass over data without indices."""
        saved_rng_states.save_states(self.folder, self.rank, self.start, number)

    @guard
    def note_batch(self, data: Any, origin: BatchOrigin) -> None:
        """Store names and content of a batch that has left its loader, before it is moved to a device."""
        origin.samples = sample_names.batch_names(data) or origin.samples
        if self.raw is not None and (raw_name := self.raw.keep(data)):
            origin.base = {**origin.base, "raw": raw_name}

    @guard
    def begin(self, number: int, micro: int, epoch: int, origin: BatchOrigin, batch: Any = None) -> None:
        """Write the record of a micro-batch before anything is computed with its batch.

        What belongs to an optimizer step, its memory and its learning rate, is in the record of its first one.
        """
        self.now.in_step, self.now.stepped = True, False
        self.batch = batch  # until it has a loss: the loop holds it as long
        self.write_arrived_losses()
        is_counted = origin.base is loader_recorder.COUNTED
        if origin.position < 0 or is_counted:  # its names were not read
            origin.samples = sample_names.batch_names(batch)
        cuda = self.cuda and torch.cuda.is_initialized()
        when, writer, monitor = time.time(), self.writer, self.monitor
        step = ring_format.Step(number, micro, epoch, origin.pass_number, origin.samples, order=origin.base, time=when)
        everything = micro > self.snapshots.quiet or origin.position == 0  # a snapshot, or a pass, begins here
        step.random, step.loaded = self.reader.take(cuda=cuda, everything=everything), origin.states
        step.loss_before = writer.newest_loss if self.arrived_loss is None else self.arrived_loss
        if number != writer.number:
            step.lr, step.memory = first_learning_rate(self.optimizers), self.memory.read(when, cuda)
        if monitor is not None and monitor.on:
            monitor.stats.batches += 1
            if micro >= monitor.due or origin.pass_number != monitor.pass_number:
                monitor.begin(micro, batch, origin.pass_number)
            if not is_counted:
                monitor.coverage.note(origin.base.get("indices", ""))
        writer.begin(step, origin.position)
        self.arrived_loss = None

    @guard
    def enable_snapshots(self, on: bool, *, from_start: bool) -> None:
        """Take snapshots or none; `from_start` tells that a replay runs the program from its beginning."""
        self.snapshots_on = on
        program_info.update(self.folder, self.rank, from_start=from_start)

    def phase(self, name: str) -> None:
        """Record which part of the step begins; "data" and "validation" are outside of it."""
        if not self.on:
            return
        try:
            page = self.writer.page
            page[PHASE_AT] = self.writer.words[name]
            if name == "backward":
                page[STAGE_AT] = 0  # the last stage is the loss's; recomputation enters stages again
        except Exception as error:
            self.give_up(error)
        self.now.in_step = name == "forward"  # a backward may run the model again
        monitor = self.monitor
        if monitor is not None and monitor.validating != (name == "validation"):
            monitor.validate(name == "validation")

    @guard
    def validate(self, number: int, batch: Any, origin: BatchOrigin) -> None:
        """Record the batch of a validation."""
        names = sample_names.batch_names(batch) or origin.samples
        self.writer.sample(f"validation batch {number}: {', '.join(names[:8])}")

    @guard
    def loss(self, value: Any, scale: float = 1.0) -> None:
        """Record the loss of this micro-batch, without waiting for a device."""
        batch, self.batch = self.batch, None
        if isinstance(value, Mapping):
            value = value.get("loss")
        if isinstance(value, Tensor):
            if value.is_cuda and self.cuda:
                self.transfer.send(self.micro, value.detach(), scale)
            if value.is_cuda or value.numel() != 1:
                return
            value = value.item()
        if value is not None:
            value = float(value) * scale
            self.writer.loss(value)
            if self.monitor is not None:
                self.monitor.loss(value, self.micro, batch)

    def write_arrived_losses(self, seconds: float = 0.0) -> None:
        """Record the losses that have arrived from the device, and use the figures of the training monitor.

        The end of a training waits for them, for some seconds: a kernel may be endless.
        """
        if self.cuda and self.monitor is not None and self.monitor.transfer:
            self.monitor.arrive()
        for micro, loss in self.transfer.arrived(seconds) if self.cuda and self.transfer else ():
            self.arrived_loss = loss
            self.writer.loss(loss, micro)
            if self.monitor is not None:
                self.monitor.loss(loss, micro)

    def has_loss(self) -> bool:
        """Return whether this micro-batch has a loss, or one on its way from a device."""
        return bool(self.transfer) or self.writer.newest_loss is not None

    def monitor_training(self, model: nn.Module, *, extra: Any = None, network: nn.Module | None = None) -> None:
        """Look at what the training learns; `network` is what is called in place of the model."""
        self.monitor = TrainingMonitor(model, self.optimizers, extra or {}, network, self.stop_monitor)

    def before_step(self, optimizer: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Record that an optimizer is about to step; called with the arguments of its hook.

        Where this step is looked at, or makes its gradients itself (a closure, as Lightning gives it always), it is
        noted when it is made; and with a closure the forward is still to come.
        """
        self.remove_step_hook()  # after a step that has raised
        self.now.stepped = True
        closure = args[1] if len(args) > 1 else named.get("closure")
        if closure is None:
            self.phase("optimiser")
        monitor = self.monitor
        if monitor is None or not monitor.on:
            return
        if closure is None and not monitor.looking and not monitor.probes:
            monitor.stepped(optimizer, self.micro)
            return
        monitor.stepping(optimizer)

        def after_step(*_: Any) -> None:
            self.remove_step_hook()
            if self.monitor is not None:
                self.monitor.stepped(optimizer, self.micro)

        self.remove_step_hook = optimizer.register_step_post_hook(after_step).remove

    def stop_monitor(self, error: Exception) -> None:
        """Forget the training monitor, which has failed."""
        self.failed(error)
        self.monitor = None

    def write_findings(self) -> None:
        """Print and write the findings of a training that ends."""
        if self.monitor is not None:
            self.monitor.end()
        if self.monitor is None:  # it has failed there
            return
        entry, stats = self.loaders.get(0), self.monitor.stats
        lines = self.monitor.sentences(entry.loader() if isinstance(entry, LoaderRecorder) else None)
        more = {"cut": bool(stats.ended), "end": self.member.record["end"]}
        more["batches"] = [hash(sums) for sums in stats.contents]
        training_findings.write(self.folder, self.rank, self.start, lines, stats.weights, **more)
        diverged = training_findings.diverged_ranks(self.folder.parent)  # known to the rank that ends last
        for line in [*(lines if self.rank == 0 else ()), *diverged]:
            print_message(line, "ocrlab")
        if self.rank == 0 and lines and (stats.broken or stats.lost):
            run = shlex.quote(os.path.relpath(self.folder.parent))
            print_message(f"`ocrlab replay {run}` names module, operator and sample", "ocrlab")

    def snapshot(self, number: int, content: Callable[[], dict[str, Any]]) -> None:
        """Take a snapshot of the state before this micro-batch, where one is due."""
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

    def record_snapshot(self, side: int, micro: int, number: int) -> None:
        """Record that a snapshot is complete (in the thread that wrote it)."""
        self.writer.saved(side, micro, number)
        if self.raw is not None:
            self.raw.forget(self.snapshots.complete[0])

    def failed(self, error: BaseException) -> None:
        """Record an error of the training. After a CUDA error the context is dead: no further call is made."""
        if worker_ended(error):
            self.phase("data")  # loading failed, wherever torch raises it
        if self.cuda and cuda_sticky_errors.is_cuda_error(error):
            self.cuda = False
            if self.monitor is not None:
                self.monitor.stop()  # its hooks query the stream
                cuda_sticky_errors.never_free(self.monitor.abandon())
            cuda_sticky_errors.never_free([*self.transfer.abandon(), *self.snapshots.abandon()])

    def finish(self) -> None:
        """Remove every hook, and wait for pending writes."""
        self.remove_step_hook()
        self.member.end("success")
        self.stages.detach()
        for entry in self.loaders.values():
            entry.stop()
        try:
            if self.on:
                self.write_arrived_losses(AT_END)
                self.write_findings()
            self.snapshots.close()
        except Exception as error:
            self.failed(error)
            report(error, "the record may lack its end", self.folder)
        if self.on:
            self.on = False
            self.writer.close()
            self.memory.close()

    def give_up(self, error: Exception) -> None:
        """Switch off for good, and report why."""
        if worker_ended(error):
            raise error
        self.on = False
        self.failed(error)
        if self.monitor is not None:
            self.monitor.stop()
        self.stages.detach()
        for entry in self.loaders.values():
            entry.stop()
        if is_device_error(error):
            print_message("the CUDA context is dead since an error of the program: recording stops here")
        report(error, "off for the rest of this run; training continues", self.folder)


def disable_in_fork() -> None:
    """Switch all recorders off in a forked child, which must not write its parent's record."""
    for recorder in RECORDERS:
        recorder.on = recorder.stages.on = recorder.cuda = False
        if recorder.monitor is not None:
            recorder.monitor.on = False
            cuda_sticky_errors.never_free(recorder.monitor.abandon())
        abandoned = [*recorder.transfer.abandon(), *recorder.snapshots.abandon()]
        cuda_sticky_errors.never_free(abandoned)  # CUDA does not survive a fork


os.register_at_fork(after_in_child=disable_in_fork)  # once: Python cannot remove it
