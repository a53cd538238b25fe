"""Statistics of tensors and times of calls: each tensor once, on a GPU without waiting for it, read when they arrive.

Time is measured with CUDA events on a GPU, with the monotonic clock elsewhere. What the instrument itself takes,
between two marks, is known too and left out of the time of the modules around it.
"""

from __future__ import annotations

import itertools
import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ocrlab.debug.instruments import cuda_sticky_errors, tensor_facts
from ocrlab.debug.instruments.layers.table import GRADIENT, INPUT, OUTPUT, WEIGHT, Call, Row, Slot, worst_rows
from ocrlab.debug.instruments.tensor_facts import Figures

MOST = 50_000  # rows that are stored; above it the oldest go, but for the first fault and the worst of each module
WAITING = 4  # steps whose figures may be on their way from a device

Mark = Any  # seconds on the CPU, a torch.cuda.Event on a GPU


@dataclass
class StepClock:
    """Marks of one step; `own` holds begin and end of what the instrument itself did, in order."""

    cuda: bool = False
    own: list[tuple[Mark, Mark]] = field(default_factory=list)

    def mark(self) -> Mark:
        """Return this moment, on a GPU that of the work queued so far."""
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def done(self, begin: Mark) -> Mark:
        """Note that the instrument worked since `begin`, and return this moment."""
        end = self.mark()
        self.own.append((begin, end))
        return end

    def ms(self, begin: Mark, end: Mark, first: int, last: int) -> float | None:
        """Return the milliseconds between two marks without `own[first:last]`, None for a missing one or of two GPUs.

        On a GPU both must have passed.
        """
        if begin is None or end is None:
            return None
        try:
            inside = sum(self._between(*pair) for pair in self.own[first:last])
            return max(0.0, self._between(begin, end) - inside)
        except (RuntimeError, ValueError):
            return None

    def _between(self, begin: Mark, end: Mark) -> float:
        return float(begin.elapsed_time(end)) if self.cuda else 1000.0 * (end - begin)

    def memory(self) -> int | None:
        """Return the bytes that tensors take on the current GPU, None on the CPU, which does not count them."""
        if not self.cuda:
            return None
        return int(torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["current"])


@dataclass(slots=True)
class _TensorRecord:
    """A tensor of this step: its identity, its figures, and the calls whose output or input it is."""

    tensor: weakref.ref[Tensor]
    version: int
    slot: Slot
    roles: list[tuple[Call, str, str]] | None = None


@dataclass
class _Transfer:
    """Figures on their way from one device, or the times of calls."""

    taken: list[tuple[Slot, Row | None]]
    calls: list[Call]
    clock: StepClock
    numbers: Tensor
    arrived: torch.cuda.Event | None
    last: bool = False  # nothing more comes of these calls


@dataclass
class StatisticsStore:
    """The rows of a watch, and what is still to be read."""

    rows: list[Row] = field(default_factory=list)
    dropped: int = 0
    first: Row | None = None  # of the rows that were dropped
    worst: dict[str, Row] = field(default_factory=dict)  # the same
    clock: StepClock = field(default_factory=StepClock)
    order: Iterator[int] = field(default_factory=lambda: itertools.count(1))  # of computing, over the whole watch
    calls: list[Call] = field(default_factory=list)  # of this step
    _tensors: dict[int, _TensorRecord] = field(default_factory=dict)
    _hooks: list[Any] = field(default_factory=list)
    _taken: list[tuple[Slot, Row | None]] = field(default_factory=list)  # of a weight, which has a sum, with its row
    _checked_weights: set[tuple[int, int]] = field(default_factory=set)
    _sent: deque[_Transfer] = field(default_factory=deque)

    def add(self, call: Call, what: str, path: str, tensor: Tensor, gradient: Callable[..., None] | None) -> None:
        """Take a row of a tensor that goes into a call or comes out; `gradient` is called with its gradient."""
        record = self._record(tensor)
        self.rows.append(Row(next(self.order), call, what, path, record.slot))
        if gradient is None or not tensor.requires_grad or not torch.is_grad_enabled():
            return
        if record.roles is None:
            record.roles = []
            self._hooks.append(tensor.register_hook(partial(gradient, record.roles)))
        record.roles.append((call, what, path))

    def gradient(self, roles: list[tuple[Call, str, str]], gradient: Tensor) -> None:
        """Take the rows of a gradient: first for the modules that it comes out of, the innermost first."""
        begin, slot = self.clock.mark(), self._record(gradient).slot
        consumers = [role for role in reversed(roles) if role[1] == INPUT]
        producers = [role for role in reversed(roles) if role[1] == OUTPUT]
        for call, what, path in (*consumers, *producers):
            self.rows.append(Row(next(self.order), call, GRADIENT[what], path, slot))
        for call, *_ in consumers:
            call.back_end, call.back_own = begin, (call.back_own[0], len(self.clock.own))
        end = self.clock.done(begin)
        for call, *_ in producers:
            if call.back_begin is None:
                call.back_begin, call.back_own = end, (len(self.clock.own), 0)

    def weights(self, call: Call, module: nn.Module) -> None:
        """Take rows of the module's own parameters and buffers that hold NaN or Inf: a sum shows that there are any."""
        counts = isinstance(module, nn.modules.batchnorm._NormBase)
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if nn.parameter.is_lazy(tensor) or not tensor.is_floating_point():
                continue
            key, read = (id(tensor), tensor._version), tensor_facts.values(tensor)
            if key in self._checked_weights or isinstance(read, str):
                continue
            self._checked_weights.add(key)
            total = read.sum(dtype=read.dtype if read.dtype == torch.float64 else torch.float32)
            on_device = read.device.type != "cpu"
            if not on_device and math.isfinite(float(total)):
                continue
            slot = _slot_to_read(tensor, read, total) if on_device else _slot_of_values(tensor, read)
            slot.mask = slot.mask and not counts  # no statistics are a mask
            row = Row(next(self.order), call, WEIGHT, name, slot)
            if on_device:
                self._taken.append((slot, row))
            elif row.bad:
                self.rows.append(row)

    def _record(self, tensor: Tensor) -> _TensorRecord:
        """Return the record of a tensor, which is read again only if it has changed since."""
        version = -1 if tensor.is_inference() else tensor._version
        record = self._tensors.get(id(tensor))
        if record is None or record.tensor() is not tensor or record.version != version or version < 0:
            read = tensor_facts.values(tensor)
            if isinstance(read, str):
                slot = Slot(tensor_facts.facts(tensor), why=read)
            elif read.device.type == "cpu":
                slot = _slot_of_values(tensor, read)
            else:
                slot = _slot_to_read(tensor, read, tensor_facts.device_figures(read))
                self._taken.append((slot, None))
            record = self._tensors[id(tensor)] = _TensorRecord(weakref.ref(tensor), version, slot)
        return record

    def flush(self, end: bool = True) -> None:
        """Let what was taken travel to the host; at the end of a step forget its tensors and take its hooks off."""
        for device in {slot.read_on for slot, _ in self._taken}:
            taken = [pair for pair in self._taken if pair[0].read_on == device]
            self._sent.append(_Transfer(taken, [], self.clock, *_pack_vectors([slot for slot, _ in taken])))
        if self.calls:
            arrived = _queue_event() if self.clock.cuda else None
            self._sent.append(_Transfer([], list(self.calls), self.clock, torch.empty(0), arrived, end))
        self._taken = []
        if end:
            self.forget()

    def forget(self) -> None:
        """Drop what belongs to this step alone, with what was taken and not sent."""
        for hook in self._hooks:
            hook.remove()
        self._taken, self.calls, self._hooks = [], [], []
        self._tensors.clear()
        self._checked_weights.clear()

    def lose(self) -> None:
        """Drop also what is on its way: after a sticky CUDA error the device must not be read."""
        cuda_sticky_errors.never_free((sent.numbers, sent.arrived) for sent in self._sent)
        self.forget()
        self._sent.clear()

    def read(self, wait: bool) -> None:
        """Read the figures that have arrived; with `wait` all of them."""
        while self._sent:
            sent = self._sent[0]
            if sent.arrived is not None and not wait and len(self._sent) <= WAITING and not sent.arrived.query():
                return
            if sent.arrived is not None:
                sent.arrived.synchronize()
            self.rows += _unpack_vectors(self._sent.popleft())
        if len(self.rows) > MOST:
            self._drop(len(self.rows) - MOST * 9 // 10)

    def _drop(self, count: int) -> None:
        gone, self.rows = self.rows[:count], self.rows[count:]
        self.dropped += count
        bad = [row for row in gone if row.bad]
        self.first = min([*bad, *([self.first] if self.first else [])], key=lambda row: row.order, default=None)
        self.worst = worst_rows([*self.worst.values(), *bad])


def _slot_of_values(tensor: Tensor, read: Tensor) -> Slot:
    """Return what is in a tensor that the host can read at once."""
    slot = Slot(tensor_facts.facts(tensor), figures := tensor_facts.figures_of(read))
    bad = tensor_facts.first_bad(tensor) if figures.bad else None
    if bad:
        slot.mask, slot.index = _may_mask(tensor) and _is_mask(figures, float(read.max())), bad.index
    return slot


def _slot_to_read(tensor: Tensor, read: Tensor, vector: Tensor) -> Slot:
    """Return what is in a tensor on a device, still unknown to the host."""
    placed = (tuple(read.shape), tuple(read.stride()))
    return Slot(tensor_facts.facts(tensor), vector=vector, mask=_may_mask(tensor), read=placed, read_on=read.device)


def _may_mask(tensor: Tensor) -> bool:
    """Return whether a tensor could be a mask of attention: it is not learned and nothing before it is."""
    return not tensor.requires_grad and not isinstance(tensor, nn.Parameter)


def _is_mask(figures: Figures, high: float) -> bool:
    """Return whether all values are 0 or -Inf; `high` is the largest."""
    return not figures.nan and high == 0 and figures.zeros + figures.inf == figures.count


def _pack_vectors(slots: list[Slot]) -> tuple[Tensor, torch.cuda.Event | None]:
    """Return the vectors and sums of one device as one tensor that will be on the host once the event has passed."""
    taken = [slot.vector.reshape(-1).double() for slot in slots if slot.vector is not None]
    for slot in slots:
        slot.vector = None
    packed = torch.cat(taken)
    if packed.device.type != "cuda":
        return packed.cpu(), None
    numbers = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
    with torch.cuda.device(packed.device):
        numbers.copy_(packed, non_blocking=True)
        return numbers, _queue_event()


def _queue_event() -> torch.cuda.Event:
    """Return an event after the work that is queued on the current GPU."""
    event = torch.cuda.Event()
    event.record()
    return event


def _unpack_vectors(sent: _Transfer) -> Iterator[Row]:
    """Fill in what has arrived, and yield the rows of weights that are not finite."""
    with torch._C._DisableFuncTorch():  # type: ignore[no-untyped-call]  # torch 2.8 reads nothing inside of torch.func.grad
        numbers = iter(sent.numbers.tolist())
    for slot, row in sent.taken:
        if row is None:
            read = list(itertools.islice(numbers, 8))
            slot.figures, slot.index = tensor_facts.unpack_figures(read, *slot.read)
            slot.mask = slot.mask and _is_mask(slot.figures, read[1])
        elif not math.isfinite(total := next(numbers)):
            nan = math.isnan(total)
            slot.mask = slot.mask and total == -math.inf
            slot.figures = Figures(*(math.nan,) * 4, 0, int(nan), int(not nan), math.prod(slot.read[0]))
            yield row
    for call in sent.calls:
        call.ms = sent.clock.ms(call.begin, call.end, *call.own)
        call.backward_ms = sent.clock.ms(call.back_begin, call.back_end, *call.back_own)
        if sent.last:
            call.begin = call.end = call.back_begin = call.back_end = None
