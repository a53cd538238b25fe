"""What a training in this process writes to its flight folder; the part that Lightning and a hand-written loop share.

No error in here reaches the training: it is said once, and the recorder is off from then on. Only what torch's signal
handler says in here of a worker that ended is let through.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ocrlab.flight import handover, learned, record_program, ring, ring_layout
from ocrlab.flight.ring_layout import ENCODE, PHASE_AT, STAGE_AT
from ocrlab.recording import generators, loading, names, walks
from ocrlab.recording.learning import MANY, Learning
from ocrlab.recording.loading import Loaded, Loader, Place
from ocrlab.recording.memory import Memory
from ocrlab.recording.raw import Raw
from ocrlab.recording.snapshots import Snapshots
from ocrlab.recording.stages import Stages
from ocrlab.recording.walks import Counted
from ocrlab.trace import sticky

CUDA = vars(torch.cuda)  # what is_initialized looks at first
LIVING: weakref.WeakSet[Tape] = weakref.WeakSet()  # the tapes of this process
Method = TypeVar("Method", bound=Callable[..., Any])


def harmless(method: Method) -> Method:
    """Let a method of a Tape do nothing once it is off, and switch it off instead of raising."""

    @functools.wraps(method)
    def guarded(self: Tape, *args: Any, **kwargs: Any) -> Any:
        if not self.on:
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            self.give_up(error)
            return None

    return guarded  # type: ignore[return-value]


class Tape:
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
        self.folder = Path(folder, "flight")
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.on = self.snapshots_on = self.cuda = True
        self.rank = rank
        self.writer, self.start = ring.create(self.folder, rank=rank, slots=steps)
        record_program.write(self.folder, kind, rank=rank)
        if rank == 0:
            handover.tell_record(folder)
        self.snapshots = Snapshots(self.folder, rank, self.start, every=every, most=max(1, steps - 16))
        self.snapshots.written = self.saved
        self.snapshots.cuda = lambda: self.cuda
        self.raw = Raw(self.folder, rank, steps) if batches == "raw" else None
        self.loaders: dict[int, Loader | Counted] = {}
        self.stages = Stages(self.writer)
        self.learning: Learning | None = None
        learned.forget(self.folder, rank)
        self.micro = -1
        self.stepped_now = False  # an optimiser has, in this micro-batch
        self.loss_before: float | None = None
        self.stop_waiting: Callable[[], Any] = lambda: None  # takes out the hook behind a step that is being made
        self.late: deque[tuple[int, Tensor, Any]] = deque()  # losses on their way from a device
        self.memory = Memory()
        self.told: tuple[Any, Any, bytes] = None, None, b""  # of the last record: its batch's JSON, memory, its text
        self.memory_told: tuple[Any, str] = None, ""  # the figures that were written last, and as JSON
        LIVING.add(self)

    @harmless
    def hear(self, model: nn.Module) -> None:
        """Note which stage of a model is entered."""
        self.stages.attach(model)

    @harmless
    def watch(self, loader: Any, number: int = 0) -> Loader | Counted:
        """Note what a loader's workers are on and what its batches are made of, until `finish`.

        Loader 0 is the training's. Returns what holds the notes; a `Counted` is to be used in place of the loader.
        """
        known = self.loaders.get(number)
        if known is not None and known.holds(loader):
            return known
        on_walk, on_batch = (self.walk, self.batch) if number == 0 else (None, None)
        entry: Loader | Counted
        if loading.can_be_watched(loader):
            place = Place(self.folder.absolute(), self.rank, self.start, number)
            on_wait = (lambda: self.phase("data")) if number == 0 else None
            entry = Loader(loader, place, on_batch, on_walk, on_wait)
            entry.start()
        else:
            entry = Counted(loader, on_walk, on_batch if self.raw is not None else None)
        if known is not None:
            known.stop()
            entry.walk = known.walk
        self.loaders[number] = entry
        return entry

    @harmless
    def walk(self, number: int) -> None:
        """Note the beginning of a walk over data without indices."""
        walks.note(self.folder, self.rank, self.start, number)

    def batch(self, data: Any, told: Loaded) -> None:
        """Note a batch that has left its loader, before anybody moves it to a device."""
        if not self.on:
            return
        try:
            told.samples = names.of_batch(data) or told.samples
            if self.raw is not None:
                told.base, told.text = {**told.base, "raw": self.raw.keep(data)}, ""
        except Exception as error:
            self.give_up(error)

    def begin(self, number: int, micro: int, epoch: int, lr: float | None, told: Loaded, batch: Any = None) -> None:
        """Write the record of a step whose batch is there, before anything is computed with it."""
        if not self.on:
            return
        try:
            if self.late:
                self.settle()
            self.micro, self.stepped_now = micro, False
            if told.position < 0 or told.base is walks.BASE:  # nobody has looked into this batch
                told.samples = names.of_batch(batch)
            cuda = self.cuda and CUDA.get("_initialized", True) and torch.cuda.is_initialized()
            self.random = random = generators.parts(cuda)
            when, before, loaded = time.time(), self.loss_before, told.states
            memory = self.memory.at(when, cuda)
            writer = self.writer
            states, same = ring_layout.both(random, loaded, writer.states)
            if told.text and told.text is self.told[0] and memory is self.told[1] and not told.samples:
                text = self.told[2]
            else:
                text = self.text(told, memory).encode()
                self.told = told.text, memory, text
            if len(text) + len(states) > writer.room:
                step = ring.Step(number, micro, epoch, samples=told.samples, memory=memory, order=told.base)
                step.random, step.loaded = generators.whole(random), generators.whole(loaded)
                made = ring_layout.fitting(step, writer.room)
                text, states, same = made.text, made.states, made.same
            learning = self.learning
            if learning is not None and self.cuda:
                learning.told.batches += 1
                if micro >= learning.due or told.walk != learning.walk:
                    try:
                        learning.begin(micro, batch, told.walk)
                    except Exception as error:
                        self.unlearn(error)
                if told.base is not walks.BASE:
                    learning.drawn.note(told.base.get("indices", ""))
            known = (lr is not None) | (before is not None) << 1 | same << 2
            figures = lr or 0.0, before or 0.0, when
            writer.put(number, micro, epoch, told.walk, *figures, known, told.position, text, states)
            self.loss_before = None
            self.stages.in_step = True
        except Exception as error:
            self.give_up(error)

    def text(self, told: Loaded, memory: dict[str, int]) -> str:
        """Return what the record of a step says in words, made of parts that are known already where they are."""
        if not told.text:
            return ring_layout.text_of(told.samples, memory, told.base)
        if memory is not self.memory_told[0]:
            self.memory_told = memory, ENCODE(memory)
        samples = ENCODE(told.samples) if told.samples else "[]"
        return f'{{"samples":{samples},"memory":{self.memory_told[1]},"order":{told.text}}}'

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
        self.stages.in_step = name == "forward"  # the model may be run again in a backward
        learning = self.learning
        if learning is not None and learning.validating != (name == "validation"):
            self.learn("validate", name == "validation")

    @harmless
    def validate(self, number: int, batch: Any, told: Loaded) -> None:
        """Say which batch of a validation is looked at."""
        found = names.of_batch(batch) or told.samples
        self.writer.sample(f"validation batch {number}: {', '.join(found[:8])}")

    def loss(self, value: Any, scale: float = 1.0) -> None:
        """Note the loss of this micro-batch; one on a device is not waited for."""
        if not self.on:
            return
        try:
            if isinstance(value, Tensor):
                if value.is_cuda:
                    self.send(value.detach(), scale)
                    return
                if value.numel() != 1:
                    return
                value = value.item()
            elif isinstance(value, Mapping):
                self.loss(value.get("loss"), scale)
                return
            if value is None:
                return
            self.loss_before = value = float(value) * scale
            self.writer.loss(value)
            learning = self.learning
            if learning is None or not self.cuda:
                return
            learning.losses.append(value)
            if not learning.looking and value - value == 0 and len(learning.losses) < MANY:
                return  # they are counted together
        except Exception as error:
            self.give_up(error)
        else:
            self.learn("loss")

    def send(self, value: Tensor, scale: float) -> None:
        """Start the way of a loss from its device to the host; inside of a CUDA graph it has no value yet."""
        if not self.cuda or value.numel() != 1 or torch.cuda.is_current_stream_capturing():
            return
        with torch.cuda.device(value.device):  # else the event is behind nothing, and passes at once
            held = torch.empty(1, dtype=torch.float64, pin_memory=True)
            held.copy_(value.reshape(1).double() * scale, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
        self.late.append((self.micro, held, arrived))

    def settle(self) -> None:
        """Write down the losses that have arrived from the device."""
        while self.late and self.cuda and self.late[0][2].query():
            micro, held, _ = self.late.popleft()
            self.loss_before = float(held)
            self.writer.loss(self.loss_before, micro)
            if self.learning is not None:
                self.learning.losses.append(self.loss_before)
                self.learn("loss")

    def stepping(self, optimizer: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Note that an optimiser is about to step, called with what its hook is given.

        Where this step is looked at, or makes its gradients itself (a closure, as Lightning gives it always), it is
        noted when it is made; and with a closure the forward is still to come.
        """
        self.stepped_now = True
        closure = given[1] if len(given) > 1 else named.get("closure")
        if closure is None:
            self.phase("optimiser")
        learning = self.learning
        if learning is None or not (self.on and self.cuda):
            return
        try:
            if closure is not None or learning.looking or learning.probes:
                learning.stepping(optimizer)
                self.stop_waiting()
                self.stop_waiting = optimizer.register_step_post_hook(self.stepped).remove
            else:
                learning.stepped(optimizer, self.micro)
        except Exception as error:
            self.unlearn(error)

    def stepped(self, optimizer: Any, *_: Any) -> None:
        """Note that an optimiser has made a step, in a hook for this one alone."""
        self.stop_waiting()
        self.learn("stepped", optimizer, self.micro)

    def learn(self, method: str, *args: Any) -> None:
        """Let a method of what looks at the learning note something; it is switched off instead of raising."""
        if self.learning is None or not (self.on and self.cuda):
            return
        try:
            getattr(self.learning, method)(*args)
        except Exception as error:
            self.unlearn(error)

    def unlearn(self, error: Exception) -> None:
        """Switch off what looks at the learning, with a word about why."""
        if loading.worker_ended(error):
            raise error
        if self.learning is not None:
            self.learning.close()
            self.learning = None
        self.failed(error)
        say(f"whether it learns is no longer looked at: {type(error).__name__}: {error}")

    def judge(self) -> None:
        """Say and write down what was noticed of a training that ends."""
        self.learn("end")
        if self.learning is None:
            return
        entry, told = self.loaders.get(0), self.learning.told
        lines = self.learning.sentences(entry.loader() if isinstance(entry, Loader) else None)
        learned.write(self.folder, self.rank, self.start, lines, told.weights, cut=bool(told.ended))
        for line in lines if self.rank == 0 else ():
            say(line)

    def snapshot(self, number: int, content: Callable[[], dict[str, Any]]) -> None:
        """Take a snapshot of the state before this micro-batch, where it is time for one."""
        try:
            if self.on and self.snapshots_on and self.snapshots.due(self.micro):
                self.snapshots.take(content(), micro=self.micro, number=number)
                if generators.parts(cuda=self.cuda) != self.random:  # a hook of the user has drawn
                    generators.put(generators.whole(self.random))
        except Exception as error:
            if loading.worker_ended(error):
                raise
            self.snapshots_on = False
            self.failed(error)
            say(f"no more snapshots: {error}")

    def saved(self, side: int, micro: int, number: int) -> None:
        """Note that a snapshot is whole (in the thread that wrote it)."""
        self.writer.saved(side, micro, number)
        if self.raw is not None:
            self.raw.forget(self.snapshots.kept[0])

    def failed(self, error: BaseException) -> None:
        """Take note of an error of the training: after one of CUDA the context is dead, and no call is made."""
        if loading.worker_ended(error):
            self.phase("data")  # it may come up in any part of a step; what failed is loading
        if self.cuda and sticky.of_cuda(error):
            self.cuda = False
            sticky.keep([*self.late, *self.snapshots.abandon()])
            self.late.clear()

    def finish(self) -> None:
        """Take every hook out, and wait for what is being written."""
        self.stop_waiting()
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
            say(str(error))
        if self.on:
            self.on = False
            self.writer.close()
            self.memory.close()

    def give_up(self, error: Exception) -> None:
        """Switch off for good, with a word about why."""
        if loading.worker_ended(error):
            raise error
        self.on = False
        self.failed(error)
        self.stages.detach()
        for entry in self.loaders.values():
            entry.stop()
        say(f"off for the rest of this run, training goes on: {type(error).__name__}: {error}")


def silence() -> None:
    """Switch all tapes off in a forked child, which must not write its parent's record."""
    for tape in LIVING:
        tape.on = tape.stages.on = tape.cuda = False
        sticky.keep([*tape.late, *tape.snapshots.abandon()])  # CUDA does not live on in a fork
        tape.late.clear()


os.register_at_fork(after_in_child=silence)  # once: what is registered can never be taken back


def say(text: str) -> None:
    """Say something about the recorder on stderr, if that is still there."""
    try:
        print(f"ocrlab: flight recorder: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        return
