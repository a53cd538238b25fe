"""Leaks while a training runs: memory that grows step by step, what holds it, and on which line.

with leak_watch.watch(model, loader) as watch:
    for batch in loader:
        ...                     a step as ever; or watch.step() where there is no model
print(watch.finding())          watch.leaks has the leaks

Each step three figures are read (resident memory, what malloc has given out, CUDA's allocator), which costs some
microseconds. Only when they grow, a census is taken at four steps: see `object_census`. Caches that have a bound, and
what levels off, are no leaks.
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
from ocrlab.debug.instruments.leaks import growth_lines
from ocrlab.debug.instruments.leaks.growth_lines import Line
from ocrlab.debug.instruments.leaks.growth_slope import Slope, slope, still_grows
from ocrlab.debug.instruments.leaks.leak_report import FIXES, MIB, Leak
from ocrlab.debug.instruments.leaks.object_census import PROBE, SEES_GRAPHS, Candidate, Probe, stored_tensors
from ocrlab.debug.instruments.leaks.referrers import Holder
from ocrlab.debug.instruments.leaks.worker_leaks import Workers
from ocrlab.debug.instruments.memory import host_memory
from ocrlab.errors import ConfigError
from ocrlab.run_folder.fail_safe import InstrumentGuard

WARM, SETTLED = 5, 14  # steps in which optimiser state is created and caches fill; until resident memory settles
EVERY = 4  # steps between two judgements of the slope
RECENT = 24  # samples that are judged first
SLOW, ROUGH = 0.06 * MIB, 0.25 * MIB  # bytes a step, from which growth is suspicious; of resident memory
SURE = 0.95
COST = 0.004  # of the time, that reading the figures may take
LONGEST = 16  # steps of a census
CALLS = 4  # of the model for each step of the optimiser, that count as one step

Samples = list[tuple[int, float]]


@contextlib.contextmanager
def watch(model: nn.Module | None = None, loader: Any = None) -> Iterator[LeakWatch]:
    """Look inside the block for memory that grows step by step, what holds it, and the line that lets it grow.

    model      any nn.Module: each of its calls is a step; without one each step of an optimizer is, or `watch.step()`
    loader     a DataLoader whose workers are watched, too, from its next iteration on

    Growth is in MiB a step, with the interval in which it lies and how sure that is. Raises ConfigError for a model
    that is no nn.Module.
    """
    if model is not None and not isinstance(model, nn.Module):
        raise ConfigError("leaks.watch looks at a model", got=type(model).__name__, need="a torch.nn.Module, or None")
    watched = LeakWatch(model, loader)
    watched._begin()
    try:
        yield watched
    finally:
        watched._end()


class LeakWatch:
    """The leaks of one training: `leaks`, the largest first; `notes` says what grew and is no leak."""

    def __init__(self, model: nn.Module | None, loader: Any = None) -> None:
        self.leaks: list[Leak] = []
        self.notes: list[str] = []
        self.ticks = 0
        self.cost = 0.0  # seconds that the figures of each step took, without censuses
        self.looked = 0.0  # seconds that censuses took
        self._before = 0  # of the ticks: forward calls, before watch.step() said what a step is
        self._model = weakref.ref(model) if model is not None else lambda: None
        self._optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # the tick of its last step
        self._calls = 1  # of the model for each step of an optimiser: a validation in each step makes it two
        self._workers = Workers(loader)
        self._samples: dict[str, Samples] = {"process": [], "malloc": [], "cuda": []}
        self._probe: Probe | None = None
        self._length, self._next = PROBE, WARM + 2 * EVERY
        self._source = ""  # what counts the steps: forward, optimizer, step
        self._handles: list[Any] = []
        self._started = time.perf_counter()
        self._reported: set[str] = set()
        self._guard = InstrumentGuard("leaks.watch", self._stop)

    def finding(self) -> str:
        """Return the leaks, one a line, or that there is none."""
        if self.leaks:
            return "\n".join(str(leak) for leak in self.leaks)
        blind = "" if SEES_GRAPHS else f" What autograd's graphs keep is not seen with torch {torch.__version__}."
        steps = self.ticks - self._before
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
            self._source, self._before = "step", self.ticks
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
            if self._probe is not None and self._probe.ripe(self.ticks + 1, wait=3):
                self._judge(self._probe)
            self._add(self._workers.judge(self.ticks))
        self._stop()
        self._workers.end()

    def _on_forward(self, _module: nn.Module, _args: Any) -> None:
        if torch._C._current_autograd_node() is None and self._source != "step":  # not where it is computed again
            self._source = "forward"
            self._tick()

    def _on_optimizer(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        before = self._optimizers.get(optimizer)
        if before is not None and self._source == "forward":
            self._calls = max(1, min(CALLS, self.ticks - before))
        self._optimizers[optimizer] = self.ticks
        if self._source in ("", "optimizer"):
            self._source = "optimizer"
            self._tick()

    def _stop(self, _error: BaseException | None = None) -> None:
        probe, self._probe = self._probe, None
        if probe is not None:
            probe.close()

    def _tick(self) -> None:
        self.ticks += 1
        if self._guard.problem:
            return
        with self._guard():
            self._workers.tick(self.ticks)
            began = time.perf_counter()
            if self._probe is not None:
                self._probe.tick(self.ticks)
                self._sample()
                if self._probe.ripe(self.ticks):
                    self._judge(self._probe)
                self.looked += time.perf_counter() - began
            elif self.ticks <= 60 or self.cost <= COST * (began - self._started - self.looked):
                self._sample()
                suspicious = self.ticks % EVERY == 0 and self.ticks >= self._next and self._suspicious()
                self.cost += time.perf_counter() - began
                if suspicious:
                    self._probe = Probe(self.ticks, self._length, self._mode, self._owned, self._calls)
                    self._probe.start()
                    self.looked += time.perf_counter() - began

    def _sample(self) -> None:
        figures = {"process": host_memory.anonymous_memory(), "malloc": host_memory.malloc_in_use()}
        if torch.cuda.is_initialized():
            figures["cuda"] = torch.cuda.memory_allocated()
        for name, value in figures.items():
            self._samples[name].append((self.ticks, float(value)))
            if len(self._samples[name]) > 1024:
                del self._samples[name][:512:2]  # older steps are kept more coarsely
        self._workers.sample(self.ticks)

    def _suspicious(self) -> bool:
        """Tell whether something grows: fast over the last steps, or slowly over all of them.

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
        return "evaluation with gradients" if torch.is_grad_enabled() else "evaluation"

    def _owned(self) -> Iterable[Tensor]:
        """Return the tensors that may live for ever: the model's and the optimisers'."""
        model = self._model()
        parameters = [] if model is None else list(model.parameters())
        for optimizer in list(self._optimizers):
            parameters += [p for group in optimizer.param_groups for p in group["params"]]
            yield from stored_tensors(list(optimizer.state.values()), depth=5)
        yield from parameters
        yield from (p.grad for p in parameters if p.grad is not None)
        yield from () if model is None else model.buffers()

    def _judge(self, probe: Probe) -> None:
        """End a census: report what it shows and plan the next one."""
        try:
            candidates = probe.judge(self.ticks)
        finally:
            self._stop()
        growth = self.slope().of(probe.calls)
        for candidate in sorted(candidates, key=lambda candidate: -sum(candidate.bytes_by_step)):
            holder = candidate.holder
            if holder is not None and holder.text not in self._reported:
                self._reported.add(holder.text)
                self._report(candidate, holder, growth)
        self._add(self._workers.judge(self.ticks))
        self._length = min(LONGEST, 2 * self._length)  # what happens now and then needs a longer census
        self._next = self.ticks * (1 if not candidates and self._length < LONGEST else 2)

    def _report(self, candidate: Candidate, holder: Holder, growth: Slope) -> None:
        """Add a leak, or a note where its holder or its line has a bound."""
        lines = _lines(candidate, holder)
        line = lines[0] if lines else None
        most = getattr(holder.container, "maxlen", None)
        bound = holder.bounded or (f"its length is {most} at most" if most else "")
        bound = bound or (f"{line}: {line.bounded}" if line and line.bounded else "")
        if bound:
            self.notes.append(f"{holder.text} grows, but not for ever: {bound}.")
            return
        steps = [size / MIB for size in candidate.bytes_by_step]
        kind = "evaluation" if candidate.evaluation and candidate.kind == "graph" else candidate.kind
        origin = candidate.stack[0].partition(" ")[0] if candidate.stack else ""
        leak = Leak(
            kind=kind,
            mib_per_step=sum(steps) / len(steps),
            low=min(min(steps), growth.low / MIB),
            high=max(max(steps), growth.high / MIB),
            confidence=max(growth.confidence, SURE),
            holder=holder.text,
            location=str(line) if line else origin,
            code=line.text if line else "",
            origin=origin,
            stack=candidate.stack,
            steps=self.ticks,
            fix=FIXES["evaluation"] if candidate.evaluation else FIXES[kind],
            also=tuple(map(str, lines[1:4])),
        )
        self._add([leak])

    def _add(self, leaks: Iterable[Leak]) -> None:
        for leak in leaks:
            if (leak.kind, leak.holder) not in {(other.kind, other.holder) for other in self.leaks}:
                self.leaks.append(leak)
        self.leaks.sort(key=lambda leak: -leak.mib_per_step)


def _lines(candidate: Candidate, holder: Holder) -> list[Line]:
    """Return the lines of the source that let a holder grow, the likeliest first."""
    if candidate.kind == "figures":
        return growth_lines.calls({"figure", "subplots", "subplot_mosaic"}, holder.files)
    if holder.kind == "cache" and holder.container is not None:
        return []
    lines = growth_lines.growth(holder.name, holder.files, holder.near)
    return lines if holder.container is not None else lines + growth_lines.assigned(holder.name, holder.files)


def _rises(samples: Samples, least: float) -> bool:
    """Tell whether the last quarter lies above the first one throughout, by enough, and with a slope that is sure.

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
