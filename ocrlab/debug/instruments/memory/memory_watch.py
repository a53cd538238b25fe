"""Where the memory of a training step goes, by module, forward and backward, on the CPU and on CUDA alike.

with memory_watch.watch(model, optimizer) as watch:
    for batch in loader:
        ...                     a step as ever; `watch` finds its borders by itself, or by watch.step()
watch.table()                   the highest step, module by module
watch.plot()                    its timeline
watch.finding()                 in one sentence; print(watch) shows the table and the sentence

Storages are counted once, whoever shares them. What an operator uses inside itself (the scratch space of a convolution)
is not a tensor and not counted; the high-water mark of the process or of the allocator, which is reported too, has it.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ocrlab.debug.instruments.compiled_modules import is_jit
from ocrlab.debug.instruments.memory import host_memory, timeline
from ocrlab.debug.instruments.memory.module_attribution import ModuleTracker
from ocrlab.debug.instruments.memory.storage_tracker import StorageTracker, unpack_saved
from ocrlab.debug.instruments.memory.timeline import OUTSIDE, Process, Row, Step
from ocrlab.debug.instruments.tensor_tree import tensors
from ocrlab.errors import ConfigError

MOST_STEPS = 64  # steps whose figures are stored


@contextlib.contextmanager
def watch(model: nn.Module, optimizer: Any = None) -> Iterator[MemoryWatch]:
    """Measure inside the block where the memory of each training step goes, by module, in bytes.

    Args:
        model: Any nn.Module, on the CPU or on CUDA.
        optimizer: One or several; others are recognised at their first step.

    A step takes about twice as long meanwhile. Raises ConfigError for a model that is not an nn.Module, and inside of
    another watch.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError("watch_memory needs a model", got=type(model).__name__, need="a torch.nn.Module")
    if MemoryWatch.current is not None:
        raise ConfigError("watch_memory is already active", do="Leave the first one before the next begins")
    optimizers = optimizer if isinstance(optimizer, list | tuple) else [optimizer] if optimizer is not None else []
    with MemoryWatch(model, optimizers)._following() as watched:
        yield watched


class MemoryWatch:
    """The memory of one training: `steps`, the newest last, and the highest of them."""

    current: MemoryWatch | None = None

    def __init__(self, model: nn.Module, optimizers: Sequence[Any] = ()) -> None:
        self.model = model
        self.steps: deque[Step] = deque(maxlen=MOST_STEPS)
        self.highest: Step | None = None
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet(optimizers)
        self._modules = ModuleTracker(model, self._guarded(self._find_border))
        self._live = StorageTracker(self._modules.where)
        self._begin = 0  # the first event of the step
        self._stepped = self._backward = False  # an optimizer has stepped, a backward pass was made
        self._before = 0
        parameter = next(model.parameters(), None)
        self.device = parameter.device if parameter is not None else torch.device("cpu")
        self._cuda = self.device.type == "cuda"
        self._device_name = str(self.device) if self._cuda else self.device.type

    def _guarded(self, method: Callable[..., None]) -> Callable[..., None]:
        """Return a hook that calls a method, and ends the watch in place of the program if that fails."""

        def hook(*args: Any) -> None:
            if not self._live.off:
                with self._live.guard():
                    method(*args)

        return hook

    def table(self, depth: int = 2) -> list[Row]:
        """Return the highest step module by module, `depth` names deep; empty before the first step has ended."""
        return timeline.Rows(timeline.group_rows(self.highest.rows, depth) if self.highest else [])

    def plot(self) -> Any:
        """Return the stacked timeline of the highest step as a matplotlib figure; raises ConfigError without a step."""
        from ocrlab.debug.instruments.memory import memory_plot

        if self.highest is None:
            do = "Run one inside the watch, and call step() of the watch at its end"
            raise ConfigError("No step was recorded", do=do)
        return memory_plot.figure(self.highest)

    def finding(self) -> str:
        """Return the highest step in one sentence."""
        return timeline.peak_text(self.highest) if self.highest else "No step was seen."

    def __str__(self) -> str:
        table = f"{timeline.table_text(self.table())}\n\n" if self.highest else ""
        return table + self.finding()

    def step(self) -> Step | None:
        """End the step and return what it held, in bytes; None after an error of this instrument, which ends it."""
        with self._live.guard():
            return None if self._live.guard.problem else self._step()
        return None

    def _step(self) -> Step:
        self._classify()
        live = self._live
        blocks, end = [*live.blocks.values(), *live.dead], max(live.event - 1, self._begin)
        done = replace(
            timeline.summarise(live.step, blocks, self._begin, end, self._device_name), process=self._process()
        )
        self.steps.append(done)
        if self.highest is None or done.peak.bytes > self.highest.peak.bytes:
            self.highest = done
        for block in live.blocks.values():
            if block.kind in ("workspace", "activations", "input"):
                block.kind, block.owner = "earlier", ""
        live.dead.clear()
        self._modules.clear()
        self._begin = live.event
        live.step += 1
        self._stepped = self._backward = False
        return done

    @contextlib.contextmanager
    def _following(self) -> Iterator[MemoryWatch]:
        with contextlib.ExitStack() as undo:
            undo.callback(self._live.end)
            undo.callback(self._modules.detach)
            undo.callback(setattr, MemoryWatch, "current", None)
            MemoryWatch.current = self
            with self._live.guard():
                self._baseline()
            undo.callback(register_optimizer_step_pre_hook(self._guarded(self._begin_optimizer)).remove)
            undo.callback(register_optimizer_step_post_hook(self._guarded(self._end_optimizer)).remove)
            self._modules.attach()
            with torch.autograd.graph.saved_tensors_hooks(self._pack, unpack_saved), self._live:
                yield self
            if self._live.event > self._begin and (self._stepped or self._backward or not self.steps):
                self.step()

    def _baseline(self) -> None:
        """Count what already exists: the model's tensors, and every other one that Python knows of."""
        everything = gc.get_objects()
        optimizers = [thing for thing in everything if issubclass(type(thing), torch.optim.Optimizer)]
        self._optimizers.update(optimizer for optimizer in optimizers if self._is_ours(optimizer))
        self._classify()
        for thing in everything:
            if issubclass(type(thing), Tensor):  # not isinstance: some objects pretend
                with contextlib.suppress(Exception):
                    self._live.classify(thing, "input")
        for block in self._live.blocks.values():
            if block.kind == "input":
                block.kind = "earlier"
        alive = sum(block.bytes for block in self._live.blocks.values() if block.device == self._device_name)
        self._before = max(0, self._now() - alive) if not self._cuda else 0
        self._begin = max(0, self._live.event - 1)

    def _is_ours(self, optimizer: Any) -> bool:
        return any(id(p) in self._modules.parameters for group in optimizer.param_groups for p in group["params"])

    def _pack(self, tensor: Tensor) -> Any:
        with self._live.guard():
            return self._live.saved(tensor, self._modules.where()[0])
        return tensor, tensor._version, []

    def _find_border(self, _name: str, entered: bool) -> None:
        """Find the border between two steps, where a module begins or ends."""
        if torch.is_grad_enabled() and self._modules.depth == 0 and torch._C._current_autograd_node() is None:
            alone = not self._optimizers and self._backward  # without an optimizer each backward pass is a step
            if entered and (self._stepped or alone):
                self.step()
            self._backward = self._backward or not entered

    def _begin_optimizer(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._is_ours(optimizer):
            self._optimizers.add(optimizer)
            self._classify()
            self._modules.optimising = True

    def _end_optimizer(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._modules.optimising = False
        self._stepped = self._stepped or optimizer in self._optimizers
        if self._stepped and is_jit(self.model):  # its next forward pass calls no hook
            self.step()

    def _classify(self) -> None:
        """Name the storages of parameters, buffers, gradients and optimiser state."""
        live = self._live
        for name, module in self._modules.names.items():
            for p in module.parameters(recurse=False):
                live.classify(p, "parameters", name or "(model)")
                if p.grad is not None:
                    live.classify(p.grad, "gradients", name or "(model)")
            for b in module.buffers(recurse=False):
                live.classify(b, "buffers", name or "(model)")
        for optimizer in self._optimizers:
            for p, state in list(optimizer.state.items()):
                owner = self._modules.parameters.get(id(p), OUTSIDE)
                for _, tensor in tensors(state):
                    block = live.blocks.get(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else None
                    if block is None or block.kind not in ("parameters", "gradients"):
                        live.classify(tensor, "optimizer", owner)

    def _now(self) -> int:
        return torch.cuda.memory_allocated(self.device) if self._cuda else host_memory.resident()

    def _process(self) -> Process:
        before = self._before
        if self._cuda:
            free, total = torch.cuda.mem_get_info(self.device)
            before = max(0, total - free - torch.cuda.memory_reserved(self.device))
        highest = torch.cuda.max_memory_allocated(self.device) if self._cuda else host_memory.high_water()
        return Process(self._cuda, before, self._now(), highest)
