"""Leaks while a training runs: memory that grows step by step, who keeps it, and on which line.

with leaks.watch(model, loader) as seen:
    for batch in loader:
        ...                     a step as ever; or seen.step() where there is no model
print(seen.finding())           seen.leaks has what was found

Each step three figures are read (resident memory, what malloc has given out, CUDA's allocator), which costs some
microseconds. Only when they grow, a closer look is taken at four steps: see `leak_probe`. Caches that have a bound, and
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
from ocrlab.debug.instruments.instrument_guard import InstrumentGuard
from ocrlab.debug.instruments.leaks import autograd_graph, growth_lines
from ocrlab.debug.instruments.leaks.growth_lines import Line
from ocrlab.debug.instruments.leaks.growth_slope import Slope, slope, still_grows
from ocrlab.debug.instruments.leaks.leak_report import FIXES, MIB, Leak
from ocrlab.debug.instruments.leaks.object_census import PROBE, Candidate, Probe
from ocrlab.debug.instruments.leaks.referrers import Holder
from ocrlab.debug.instruments.leaks.worker_leaks import Workers
from ocrlab.debug.instruments.memory import host_memory
from ocrlab.debug.instruments.memory.memory_watch import _nested
from ocrlab.errors import ConfigError

WARM, SETTLED = 5, 14  # steps in which optimiser state is made and caches fill; until resident memory settles
EVERY = 4  # steps between two judgements of the slope
RECENT = 24  # samples that are looked at first
SLOW, ROUGH = 0.06 * MIB, 0.25 * MIB  # bytes a step, from which growth is suspicious; of resident memory
SURE = 0.95
COST = 0.004  # of the time, that reading the figures may take
LONGEST = 16  # steps of a closer look
CALLS = 4  # of the model for each step of the optimiser, that count as one step


@contextlib.contextmanager
def watch(model: nn.Module | None = None, loader: Any = None) -> Iterator[LeakWatch]:
    """Look inside the block for memory that grows step by step, what holds it, and the line that lets it grow.

    model      any nn.Module: each of its calls is a step; without one each step of an optimizer is, or `seen.step()`
    loader     a DataLoader whose workers are looked at, too, from its next iteration on

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


def _risen(samples: list[tuple[int, float]], least: float) -> bool:
    """Tell whether the last quarter lies above the first one throughout, by enough, and with a slope that is sure.

    Comparing comes first: pairs of steps are looked at only where something did rise.
    """
    quarter = len(samples) // 4
    if quarter < 2:
        return False
    first, last = samples[:quarter], samples[-quarter:]
    rise = min(y for _, y in last) - max(y for _, y in first)
    if rise <= 0 or rise < 0.5 * least * (last[0][0] - first[-1][0]):
        return False
    xs, ys = [x for x, _ in samples], [y for _, y in samples]
    growth = slope(xs, ys)
    return growth.low > 0 and growth.value > least and growth.confidence > SURE and still_grows(xs, ys)


class LeakWatch:
    """What a watch has found: `leaks`, the largest first; `notes` says what grew and is no leak."""

    def __init__(self, model: nn.Module | None, loader: Any = None) -> None:
        self.leaks: list[Leak] = []
        self.notes: list[str] = []
        self.ticks = 0
        self._before = 0  # of the ticks: forward calls, before seen.step() said what a step is
        self.cost = 0.0  # seconds that the figures of each step took, closer looks apart
        self.looked = 0.0  # seconds that closer looks took
        self._model = weakref.ref(model) if model is not None else None
        self._optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # the tick of its last step
        self._calls = 1  # of the model for each step of an optimiser: a validation in each step makes it two
        self._workers = Workers(loader)
        self._samples: dict[str, list[tuple[int, float]]] = {"process": [], "malloc": [], "cuda": []}
        self._probe: Probe | None = None
        self._length, self._next = PROBE, WARM + 2 * EVERY
        self._source = ""
        self._handles: list[Any] = []
        self._started = time.perf_counter()
        self._reported: set[str] = set()
        self._guard = InstrumentGuard("leaks.watch", self._stop)

    # What a reader asks for.

    def finding(self) -> str:
        """Return what was found, a leak a line, or that there is none."""
        if not self.leaks:
            blind = (
                ""
                if autograd_graph.SEES
                else f" What autograd's graphs keep is not seen with torch {torch.__version__}."
            )
            steps = self.ticks - self._before
            return f"No leak in {steps} step{'' if steps == 1 else 's'}.{blind}"
        return "\n".join(str(leak) for leak in self.leaks)

    def __str__(self) -> str:
        return "\n".join([self.finding(), *self.notes])

    def slope(self) -> Slope:
        """Return how fast memory grows, in bytes a step: of the figure that is surest."""
        return max(self._slopes(), key=lambda growth: (growth.confidence >= SURE, growth.value))

    def step(self) -> None:
        """Say that a step has ended; from then on nothing else counts as one."""
        if self._source != "step":
            self._source, self._before = "step", self.ticks
        self._tick()

    # How it is seen.

    def _begin(self) -> None:
        model = self._model() if self._model else None
        compiled = model is not None and (is_compiled_module(model) or is_jit(model))
        if model is not None and not compiled:  # a hook on a compiled model would be compiled with it
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
                self._judge()
            self._add(self._workers.judge(self.ticks))
        if self._probe is not None:
            self._probe.close()
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

    def _stop(self, _error: BaseException) -> None:
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
                self._look()
                self.looked += time.perf_counter() - began
                return
            if self.ticks > 60 and self.cost > COST * (began - self._started - self.looked):
                return
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

    def _slopes(self) -> list[Slope]:
        after = [[sample for sample in some if sample[0] > WARM] for some in self._samples.values()]
        return [slope([x for x, _ in some], [y for _, y in some]) for some in after]

    def _suspicious(self) -> bool:
        """Tell whether something grows: fast over the last steps, or slowly over all of them.

        What malloc has given out is exact. Resident memory comes and goes, and must have grown by more to count.
        """
        for name, some in self._samples.items():
            least, warm = (ROUGH, SETTLED) if name == "process" else (SLOW, WARM)
            settled = [sample for sample in some if sample[0] > warm]
            if _risen(settled[-RECENT:], least) or (len(settled) > 4 * RECENT and _risen(settled, SLOW / 4)):
                return True
        return False

    def _mode(self) -> str:
        model = self._model() if self._model else None
        if model is not None and not model.training:
            return "evaluation with gradients" if torch.is_grad_enabled() else "evaluation"
        return "training"

    def _owned(self) -> Iterable[Tensor]:
        """Return the tensors that may live for ever: the model's and the optimisers'."""
        model = self._model() if self._model else None
        if model is not None:
            yield from model.parameters()
            yield from model.buffers()
            yield from (p.grad for p in model.parameters() if p.grad is not None)
        for optimizer in list(self._optimizers):
            for group in optimizer.param_groups:
                yield from group["params"]
                yield from (p.grad for p in group["params"] if p.grad is not None)
            yield from _nested(dict(optimizer.state), 5)

    # The closer look.

    def _look(self) -> None:
        probe = self._probe
        if probe is None:
            return
        probe.tick(self.ticks)
        self._sample()
        if probe.ripe(self.ticks):
            self._judge()

    def _judge(self) -> None:
        probe, self._probe = self._probe, None
        if probe is None:
            return
        try:
            candidates = probe.judge(self.ticks)
        finally:
            probe.close()
        growth = self.slope().of(probe.calls)
        for candidate in sorted(candidates, key=lambda candidate: -sum(candidate.bytes_by_step)):
            if candidate.holder is None or candidate.holder.words not in self._reported:
                self._place(candidate, growth)
        self._add(self._workers.judge(self.ticks))
        self._length = min(LONGEST, 2 * self._length)  # what happens now and then needs a longer look
        wait = 0 if not candidates and self._length < LONGEST else self.ticks
        self._next = self.ticks + wait

    def _place(self, candidate: Candidate, growth: Slope) -> None:
        """Find the line of what grows in the source."""
        holder = candidate.holder
        if holder is None:
            return
        self._reported.add(holder.words)
        if holder.bounded or getattr(holder.container, "maxlen", None):
            self._note(holder, holder.bounded or f"its length is {holder.container.maxlen} at most")
            return
        self._report_leak(candidate, growth, self._lines(candidate, holder))

    def _lines(self, candidate: Candidate, holder: Holder) -> list[Line]:
        if candidate.kind == "figures":
            return growth_lines.calls({"figure", "subplots", "subplot_mosaic"}, holder.files)
        if holder.kind == "cache" and holder.container is not None:
            return []
        lines = growth_lines.growth(holder.name, holder.files, holder.near)
        return lines if holder.container is not None else lines + growth_lines.assigned(holder.name, holder.files)

    def _report_leak(self, candidate: Candidate, growth: Slope, lines: list[Line]) -> None:
        holder = candidate.holder
        if holder is None:
            return
        line = lines[0] if lines else None
        if line is not None and line.bounded:
            self._note(holder, f"{line}: {line.bounded}")
            return
        steps = [count / MIB for count in candidate.bytes_by_step]
        mean = sum(steps) / len(steps)
        kind = "evaluation" if candidate.evaluation and candidate.kind == "graph" else candidate.kind
        born = candidate.stack[0].partition(" ")[0] if candidate.stack else ""
        leak = Leak(
            kind=kind,
            mib_per_step=mean,
            low=min(min(steps), growth.low / MIB),
            high=max(max(steps), growth.high / MIB),
            confidence=max(growth.confidence, SURE),
            holder=holder.words,
            location=str(line) if line else born,
            code=line.text if line else "",
            origin=born,
            stack=candidate.stack,
            steps=self.ticks,
            fix=FIXES["evaluation"] if candidate.evaluation else FIXES[kind],
            also=tuple(map(str, lines[1:4])),
        )
        self._add([leak])

    def _note(self, holder: Holder, why: str) -> None:
        self.notes.append(f"{holder.words} grows, but not for ever: {why}.")

    def _add(self, leaks: Iterable[Leak]) -> None:
        for leak in leaks:
            if (leak.kind, leak.holder) not in {(other.kind, other.holder) for other in self.leaks}:
                self.leaks.append(leak)
        self.leaks.sort(key=lambda leak: -leak.mib_per_step)
