"""Leaks while a training runs: memory that grows step by step, what holds it, and on which line.

with leak_watch.watch(model, loader) as watch:
    for batch in loader:
        ...                     a step as ever; or watch.step() where there is no model
print(watch.finding())          watch.leaks has the leaks

Each step three figures are read (resident memory, what malloc has given out, CUDA's allocator), which costs some
microseconds. Only when they grow, a census is taken at four steps: see `object_census`. Caches that have a bound, and
what levels off, are not leaks.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from ocrlab.debug.instruments.call_hook import CallHook
from ocrlab.debug.instruments.compiled_modules import is_compiled_module, is_jit
from ocrlab.debug.instruments.leaks.growth_slope import Slope, slope, still_grows
from ocrlab.debug.instruments.leaks.leak_report import FIXES, MIB, SURE, Leak
from ocrlab.debug.instruments.leaks.object_census import (
    GRADIENTS_IN_EVALUATION,
    LENGTH,
    SEES_GRAPHS,
    Census,
    stored_tensors,
)
from ocrlab.debug.instruments.leaks.worker_leaks import WorkerLeaks
from ocrlab.debug.instruments.memory import host_memory
from ocrlab.errors import ConfigError
from ocrlab.run_folder.fail_safe import InstrumentGuard

WARM, SETTLED = 5, 14  # steps in which optimiser state is created and caches fill; until resident memory settles
EVERY = 4  # steps between two judgements of the slope
RECENT = 24  # samples that are judged first
SLOW, ROUGH = 0.06 * MIB, 0.25 * MIB  # bytes a step, from which growth is suspicious; of resident memory
MOST_COST = 0.004  # of the time, that reading the figures may take
ALWAYS = 60  # first steps, in which the figures are read whatever they cost
LONGEST = 16  # steps of a census
MOST_CALLS = 4  # of the model for each step of the optimizer, that count as one step
MOST_SAMPLES = 1024

Samples = list[tuple[int, float]]


@contextlib.contextmanager
def watch(model: nn.Module | None = None, loader: Any = None) -> Iterator[LeakWatch]:
    """Find memory that grows step by step inside the block, the object that holds it, and the line that adds to it.

    Args:
        model: Any nn.Module: each of its calls is a step. Without one, each step of an optimizer or `watch.step()` is.
        loader: A DataLoader whose workers are watched too, from its next iteration on.

    Growth is in MiB for each step, with its interval and confidence. Raises ConfigError for a model that is not an
    nn.Module.
    """
    if model is not None and not isinstance(model, nn.Module):
        raise ConfigError("watch_leaks needs a model", got=type(model).__name__, need="a torch.nn.Module, or None")
    watched = LeakWatch(model, loader)
    watched._begin()
    try:
        yield watched
    finally:
        watched._end()


class LeakWatch:
    """The leaks of one training: `leaks`, the largest first; `notes` says what grew and is not a leak."""

    def __init__(self, model: nn.Module | None, loader: Any = None) -> None:
        self.leaks: list[Leak] = []
        self.notes: list[str] = []
        self.ticks = 0
        self.cost = 0.0  # seconds that the figures of each step took, without censuses
        self.census_seconds = 0.0
        self._unmarked_ticks = 0  # forward calls before watch.step() said what a step is
        self._model = weakref.ref(model) if model is not None else lambda: None
        self._optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # the tick of its last step
        self._calls = 1  # of the model for each step of an optimizer: a validation in each step makes it two
        self._workers = WorkerLeaks(loader)
        self._samples: dict[str, Samples] = {"process": [], "malloc": [], "cuda": []}
        self._census: Census | None = None
        self._length, self._next = LENGTH, WARM + 2 * EVERY  # of the next census: steps, and the tick from which on
        self._source = ""  # what counts the steps: forward, optimizer, step
        self._handles: list[Any] = []
        self._started = time.perf_counter()
        self._guard = InstrumentGuard("leaks.watch", self._close_census)

    def finding(self) -> str:
        """Return the leaks, one a line, or that there is none."""
        if self.leaks:
            return "\n".join(str(leak) for leak in self.leaks)
        blind = "" if SEES_GRAPHS else f" What autograd's graphs keep is not seen with torch {torch.__version__}."
        steps = self.ticks - self._unmarked_ticks
        return f"No leak in {steps} step{'' if steps == 1 else 's'}.{blind}"

    def __str__(self) -> str:
        return "\n".join([self.finding(), *self.notes])

    def slope(self) -> Slope:
        """Return how fast memory grows, in bytes a step: of the figure that is surest."""
        settled = [[sample for sample in samples if sample[0] > WARM] for samples in self._samples.values()]
        slopes = [slope([step for step, _ in samples], [size for _, size in samples]) for samples in settled]
        return max(slopes, key=lambda growth: (growth.confidence >= SURE, growth.value))

    def step(self) -> None:
        """Say that a step has ended; from then on nothing else counts as one."""
        if self._source != "step":
            self._source, self._unmarked_ticks = "step", self.ticks
        self._tick()

    def _begin(self) -> None:
        model = self._model()
        if model is not None and not is_compiled_module(model) and not is_jit(model):  # a hook would be compiled too
            self._handles.append(model.register_forward_pre_hook(CallHook(self._on_forward), prepend=True))
        self._handles.append(register_optimizer_step_post_hook(self._on_optimizer))
        with self._guard():
            self._workers.begin()
            host_memory.malloc_in_use()  # finds malloc, which takes longer once

    def _end(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        with self._guard():
            if self._census is not None and self._census.is_ready(self.ticks + 1, wait=3):
                self._judge(self._census)
            self._add(self._workers.judge())
        self._close_census()
        self._workers.end()

    def _on_forward(self, _module: nn.Module, _args: Any) -> None:
        if torch._C._current_autograd_node() is None and self._source != "step":  # not where it is computed again
            self._source = "forward"
            self._tick()

    def _on_optimizer(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        before = self._optimizers.get(optimizer)
        if before is not None and self._source == "forward":
            self._calls = max(1, min(MOST_CALLS, self.ticks - before))
        self._optimizers[optimizer] = self.ticks
        if self._source in ("", "optimizer"):
            self._source = "optimizer"
            self._tick()

    def _close_census(self, _error: BaseException | None = None) -> None:
        census, self._census = self._census, None
        if census is not None:
            census.close()

    def _tick(self) -> None:
        self.ticks += 1
        if self._guard.problem:
            return
        with self._guard():
            self._workers.tick()
            began = time.perf_counter()
            if self._census is not None:
                self._census.tick(self.ticks)
                self._sample()
                if self._census.is_ready(self.ticks):
                    self._judge(self._census)
                self.census_seconds += time.perf_counter() - began
            elif self.ticks <= ALWAYS or self.cost <= MOST_COST * (began - self._started - self.census_seconds):
                self._sample()
                suspicious = self.ticks % EVERY == 0 and self.ticks >= self._next and self._is_growing()
                sampled = time.perf_counter()
                self.cost += sampled - began
                if suspicious:
                    self._census = Census(self.ticks, self._length, self._mode, self._owned, self._calls)
                    self.census_seconds += time.perf_counter() - sampled

    def _sample(self) -> None:
        figures = {"process": host_memory.anonymous_memory(), "malloc": host_memory.malloc_in_use()}
        if torch.cuda.is_initialized():
            figures["cuda"] = torch.cuda.memory_allocated()
        for name, value in figures.items():
            self._samples[name].append((self.ticks, float(value)))
            if len(self._samples[name]) > MOST_SAMPLES:
                del self._samples[name][: MOST_SAMPLES // 2 : 2]  # older steps are kept more coarsely

    def _is_growing(self) -> bool:
        """Return whether something grows: fast over the last steps, or slowly over all of them.

        What malloc has given out is exact. Resident memory comes and goes, and must have grown by more to count.
        """
        for name, samples in self._samples.items():
            least, warm = (ROUGH, SETTLED) if name == "process" else (SLOW, WARM)
            settled = [sample for sample in samples if sample[0] > warm]
            if _rises(settled[-RECENT:], least) or (len(settled) > 4 * RECENT and _rises(settled, SLOW / 4)):
                return True
        return False

    def _mode(self) -> str:
        model = self._model()
        if model is None or model.training:
            return "training"
        return GRADIENTS_IN_EVALUATION if torch.is_grad_enabled() else "evaluation"

    def _owned(self) -> Iterable[Tensor]:
        """Return the tensors that may live for ever: the model's and the optimizers'."""
        model = self._model()
        parameters = [] if model is None else list(model.parameters())
        for optimizer in list(self._optimizers):
            parameters += [p for group in optimizer.param_groups for p in group["params"]]
            yield from stored_tensors(list(optimizer.state.values()), depth=5)
        yield from parameters
        yield from (p.grad for p in parameters if p.grad is not None)
        yield from () if model is None else model.buffers()

    def _judge(self, census: Census) -> None:
        """End a census: report what it shows and plan the next one."""
        model = self._model()
        try:
            candidates = census.judge(self.ticks, () if model is None else model.modules())
        finally:
            self._close_census()
        growth = self.slope().of(census.calls)
        for candidate in sorted(candidates, key=lambda candidate: -sum(candidate.bytes_by_step)):
            holder, line = candidate.holder, candidate.holder.line
            if holder.bounded:
                note = f"{holder.text} grows, but not for ever: {holder.bounded}."
                self.notes += [note] if note not in self.notes else []
                continue
            steps = [size / MIB for size in candidate.bytes_by_step]
            origin = candidate.stack[0].partition(" ")[0] if candidate.stack else ""
            kind = "evaluation" if candidate.evaluation and candidate.kind == "graph" else candidate.kind
            leak = Leak(
                kind=kind,
                mib_per_step=sum(steps) / len(steps),
                low=min(*steps, growth.low / MIB),
                high=max(*steps, growth.high / MIB),
                confidence=max(growth.confidence, SURE),
                holder=holder.text,
                location=str(line) if line else origin,
                code=line.text if line else "",
                origin=origin,
                steps=self.ticks,
                fix=FIXES["evaluation" if candidate.evaluation else kind],
            )
            self._add([leak])
        self._add(self._workers.judge())
        self._length = min(LONGEST, 2 * self._length)  # what happens now and then needs a longer census
        self._next = self.ticks * (1 if not candidates and self._length < LONGEST else 2)

    def _add(self, leaks: Iterable[Leak]) -> None:
        for leak in leaks:
            if leak.holder not in {other.holder for other in self.leaks}:
                self.leaks.append(leak)
        self.leaks.sort(key=lambda leak: -leak.mib_per_step)


def _rises(samples: Samples, least: float) -> bool:
    """Return whether the last quarter lies above the first one throughout, by enough, and with a slope that is sure.

    The cheap comparison comes first: the slope of all pairs is computed only where something did rise.
    """
    quarter = len(samples) // 4
    if quarter < 2:
        return False
    first, last = samples[:quarter], samples[-quarter:]
    rise = min(size for _, size in last) - max(size for _, size in first)
    if rise <= 0 or rise < 0.5 * least * (last[0][0] - first[-1][0]):
        return False
    steps, sizes = [step for step, _ in samples], [size for _, size in samples]
    growth = slope(steps, sizes)
    return growth.low > 0 and growth.value > least and growth.confidence > SURE and still_grows(steps, sizes)
