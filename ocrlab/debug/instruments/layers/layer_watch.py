"""What every module computes, read in hooks: shapes, statistics, gradients, time, memory, and the first NaN or Inf.

    with layer_watch.watch(model, "decoder.fusion.*", every=10) as watch:
        train(...)
    watch.first_nonfinite                 module, tensor, step, sample; None where all was finite
    watch.table(), watch.history(), watch.plot()

Steps are those of the optimiser that holds parameters of the model; where none steps, a call of the model is a step,
and `watch.step()` ends one by hand. In steps that are not looked at hooks return at once.

Gradients come from hooks on tensors, not on modules: torch's backward hooks on modules do not allow what many models
do, changing an output in place (`ReLU(inplace=True)`). The gradient of an input is that of the tensor, from everything
that uses it; under a GradScaler gradients are the scaled ones.

A compiled graph runs no hooks. If the model is compiled, the inspected steps run eagerly, which is slower
and may differ in the last bits; the others run compiled. Where it runs inside of a compiled function nothing is read,
and `watch.table()` says so. The same is true for code that calls `module.forward()` and not the module.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from ocrlab.debug.instruments import cuda_sticky_errors
from ocrlab.debug.instruments.call_hook import CallHook
from ocrlab.debug.instruments.compiled_modules import is_compiled
from ocrlab.debug.instruments.layers import module_selection, table
from ocrlab.debug.instruments.layers.statistics import StatisticsStore, StepClock
from ocrlab.debug.instruments.layers.step_counter import StepCounter, in_backward
from ocrlab.debug.instruments.layers.table import INPUT, OUTPUT, Call, FirstNonFinite, Row
from ocrlab.debug.instruments.tensor_tree import tensors
from ocrlab.errors import ConfigError
from ocrlab.run_folder.fail_safe import InstrumentGuard

if TYPE_CHECKING:
    from pandas import DataFrame

    from ocrlab.debug.instruments.layers.plots import LayerFigure

DEFAULT = "decoder.fusion"
SHOWN = ("class", "step", "shape", "dtype", "min", "max", "mean", "std", "zeros", "grad_std", "ms", "worst")  # printed
MOST_SHOWN = 60  # modules that are printed
MOST_TENSORS = 32  # of one argument or output: of a list of a thousand boxes the first ones


def watch(
    model: nn.Module, which: module_selection.Wanted = DEFAULT, *, every: int = 1, backward: bool = True
) -> LayerWatch:
    """Watch what modules compute inside the block: shapes, statistics, gradients, time, and the first NaN or Inf.

    Args:
        model: Any nn.Module; if it is compiled, the inspected steps run eagerly.
        which: Module names, globs (`"encoder.*"`, `"*"` for all), modules, classes, or a list of these.
        every: Take statistics in each `every`-th step; in the others hooks return at once.
        backward: Inspect gradients too.

    Times are in milliseconds, memory in bytes. Raises ConfigError for a name that no module has, with the nearest right
    ones, and for an `every` below 1.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError("Only a torch module can be watched", got=type(model).__name__, need="an nn.Module")
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ConfigError("every must be a number of steps", got=repr(every), need="a whole number >= 1")
    return LayerWatch(model, module_selection.select_modules(model, which), every, backward)


class LayerWatch:
    """The figures of the modules of one model; the hooks are there inside its `with` block only."""

    def __init__(self, model: nn.Module, named: list[module_selection.NamedModule], every: int, backward: bool) -> None:
        self.modules = [(module.name, type(module.module).__name__) for module in named]
        self._guard = InstrumentGuard("layers.watch", self._stop)
        self._end_reason = ""  # why an error of the program ended it early
        self.unfinished: tuple[str, ...] = ()  # modules that an exception left, the outermost first
        self._store = StatisticsStore()
        self._steps = StepCounter(weakref.ref(model), every, self._end_step, self._begin_step, self._join_steps)
        self._named = [(module.name, weakref.ref(module.module)) for module in named]
        self._backward = backward
        self._compiled = is_compiled(model)
        self._jit = module_selection.jit_module_names(model)
        self._handles: list[Any] = []
        self._local = threading.local()  # DataParallel calls replicas of the same modules in threads
        self._stance: Any = None
        self._live = False
        self._blind = False  # the optimiser made a watched step, and no module was called in it

    def __enter__(self) -> LayerWatch:
        """Put the hooks on; raises ConfigError where they are on already or the model is gone."""
        model = self._steps.model()
        if self._handles or model is None:
            what = "This watch is open already" if self._handles else "The model that was to be watched is gone"
            raise ConfigError(what, do="Call watch_layers again for another one")
        watched = [(name, module) for name, ref in self._named if (module := ref()) is not None]
        for name, module in watched:
            self._hook(module, name)
        if all(module is not module_selection.unwrap(model) for _, module in watched):
            self._hook(module_selection.unwrap(model), "")  # only to count its calls
        self._handles.append(register_optimizer_step_post_hook(self._on_optimizer))
        self._begin_step()
        if self._compiled:
            print("ocrlab: the model is compiled; inspected steps run eagerly", file=sys.stderr)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Take every hook off, whatever happened."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._live = False
        self._compile_again()
        stack = self._stack()
        self.unfinished = tuple(call.module for _, call in stack if call.phase != "recompute") if error else ()
        stack.clear()
        if cuda_sticky_errors.is_cuda_error(error):
            self._end_reason = "a CUDA error ended the block, after which no device may be asked"
            self._store.lose()
        self._guarded(self._store.flush)
        if self._blind and not self._store.rows and error is None and not self.fault:
            print(f"ocrlab: {self.note()}", file=sys.stderr)  # else an empty table would read as a clean one

    def step(self) -> None:
        """End this step by hand, where no torch optimiser does; from then on only this counts steps, and optimisers."""
        self._guarded(self._steps.end_by_hand)

    @property
    def fault(self) -> str:
        """Why the watch has ended early; "" where all is well."""
        return self._guard.problem or self._end_reason

    @property
    def first_nonfinite(self) -> FirstNonFinite | None:
        """The first tensor with a NaN or Inf in the order of computing; None where all is finite."""
        return table.first_nonfinite([*([self._store.first] if self._store.first else []), *self._read()])

    def table(self) -> DataFrame:
        """Return one row a module with the figures of its last output and gradient, and the worst; see `rows`."""
        read = self._read()
        bad = table.worst_rows(sorted([*self._store.worst.values(), *read], key=lambda row: row.order))
        summary = table.table(self.modules, read, bad)
        summary.attrs["note"] = self.note()
        return summary

    def history(self) -> DataFrame:
        """Return one row a tensor over all watched steps, the newest 50,000; see `rows`."""
        return table.history(self._read())

    def plot(self) -> LayerFigure:
        """Return a figure of the outputs and gradients of the watched modules; its title names the fault."""
        from ocrlab.debug.instruments.layers import plots

        return plots.plot_layers([name for name, _ in self.modules], self._read(), self.first_nonfinite)

    def note(self) -> str:
        """Return what limits the figures: why there are none, or what is missing; else ""."""
        if self.fault:
            return f"Nothing was inspected after this: {self.fault}"
        silent = {name for name, _ in self.modules} - {row.call.module for row in self._store.rows} - {*self.unfinished}
        if silent and len(silent) == len(self.modules):
            why = "it runs inside of a compiled function, its `forward` is called directly, or it was not needed"
            return f"No watched module was called in an inspected step: {why}"
        unread = [row.slot.why for row in self._store.rows if row.slot.why]
        notes = [f"an exception left {', '.join(self.unfinished)}"] if self.unfinished else []
        notes += [f"no value was read: {unread[0]}"] if unread and len(unread) == len(self._store.rows) else []
        notes += [f"never called: {', '.join(sorted(silent))}"] if silent else []
        notes += [f"of torch.jit, whose insides run no hooks: {', '.join(self._jit)}"] if self._jit else []
        notes += [f"{self._store.dropped} older rows were dropped"] if self._store.dropped else []
        return "; ".join(notes)

    def __str__(self) -> str:
        first, summary = self.first_nonfinite, self.table()
        has_values = any(not row.slot.why for row in self._store.rows)
        finding = str(first or "All that was watched is finite") if has_values else ""
        wanted = [name for name in SHOWN if summary[name].notna().any()]
        shown = summary[wanted].to_string(float_format=lambda value: f"{value:.3g}", max_rows=MOST_SHOWN, na_rep="")
        return "\n".join(filter(None, [finding, self.note(), shown if wanted else ""]))

    def _read(self) -> list[Row]:
        """Return all rows with their figures; waits for what is on its way."""
        self._guarded(lambda: self._store.flush(end=False))
        self._guarded(lambda: self._store.read(wait=True))
        return self._store.rows

    def _hook(self, module: nn.Module, name: str) -> None:
        who = _Watched(name, type(module).__name__)
        enter = CallHook(partial(self._on_enter, who))
        self._handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        if name:
            self._handles.append(module.register_forward_hook(CallHook(partial(self._on_leave, who))))

    def _on_enter(self, who: _Watched, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.compiler.is_compiling():  # nothing in the graph, and no break in it
            try:
                self._enter(who, module, args, kwargs)
            except Exception as error:
                self._guard.handle(error)

    def _on_leave(self, who: _Watched, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        if not torch.compiler.is_compiling():
            try:
                self._leave(who, output)
            except Exception as error:
                self._guard.handle(error)

    def _enter(self, who: _Watched, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._steps.count_call(who)
        if not self._live or not who.name or self._capturing():
            return
        store, steps = self._store, self._steps
        clock = store.clock
        begin = clock.mark()
        model = steps.model()
        root = None if model is None else module_selection.unwrap(model)
        phase = "recompute" if in_backward() else "forward" if root is None or root.training else "eval"
        is_root = module is root
        first = bool(getattr(module, "batch_first", True))
        call = Call(who.name, who.kind, is_root, steps.number, steps.micro, phase, store.next(), first)
        store.calls.append(call)
        for path, tensor in _arguments(args, kwargs):
            store.add(call, INPUT, path, tensor, self._gradient if self._backward else None)
        store.weights(call, module)
        self._stack().append((who, call))
        call.allocated = clock.memory()
        call.begin, call.own = clock.done(begin), (len(clock.own), 0)

    def _leave(self, who: _Watched, output: Any) -> None:
        stack = self._stack()
        if not self._live or all(entered is not who for entered, _ in stack):
            return
        clock = self._store.clock
        begin = clock.mark()
        entered, call = stack.pop()
        while entered is not who:  # an exception left it
            entered, call = stack.pop()
        call.end, call.own = begin, (call.own[0], len(clock.own))
        now = clock.memory()
        call.allocated = now - call.allocated if now is not None and call.allocated is not None else None
        for path, tensor in islice(tensors(output, ""), MOST_TENSORS):
            self._store.add(call, OUTPUT, path, tensor, self._gradient if self._backward else None)
        clock.done(begin)

    def _gradient(self, roles: list[tuple[Call, str, str]], gradient: Tensor) -> None:
        if not self.fault and self._handles and gradient is not None and not self._capturing():
            self._guarded(lambda: self._store.gradient(roles, gradient))

    def _end_step(self) -> None:
        """End a step: its figures begin to travel."""
        if self._live:
            self._blind = self._blind or (self._steps.has_optimizer and not self._store.rows)
            self._store.flush()
        self._stack().clear()

    def _begin_step(self) -> None:
        """Begin a step, which is watched or passes."""
        live = self._steps.is_watched and not self.fault
        if live:
            self._store.read(wait=False)
            model = self._steps.model()
            first = next(iter(()) if model is None else model.parameters(), None)  # a compiled model has no truth value
            self._store.clock = StepClock(first is not None and first.is_cuda)
        self._live = live
        if not live and self._steps.counted:  # else the next call would not count
            self._compile_again()
        elif live and self._compiled and self._stance is None:
            self._stance = torch.compiler.set_stance("force_eager")

    def _on_optimizer(self, optimizer: Optimizer, *_: Any) -> None:
        if not torch.compiler.is_compiling() and not self.fault:
            self._guarded(lambda: self._steps.count_optimizer_step(optimizer))

    def _join_steps(self) -> None:
        for row in self._store.rows:
            row.call.step = 0

    def _compile_again(self) -> None:
        if self._stance is not None:
            self._stance.__exit__(None, None, None)
            self._stance = None

    def _stack(self) -> list[tuple[_Watched, Call]]:
        """Return the calls of this thread that were entered and not left."""
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        stack: list[tuple[_Watched, Call]] = self._local.stack
        return stack

    def _capturing(self) -> bool:
        """Return whether a CUDA graph is being recorded: our work would become part of each of its replays."""
        return self._store.clock.cuda and torch.cuda.is_current_stream_capturing()

    def _guarded(self, act: Callable[[], object]) -> None:
        with self._guard():
            act()

    def _stop(self, error: BaseException) -> None:
        self._live = False
        self._store.lose() if cuda_sticky_errors.is_cuda_error(error) else self._store.forget()


@dataclass(eq=False)
class _Watched:
    """A module by its name and class; "" is the model itself, whose calls are only counted."""

    name: str
    kind: str


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Tensor]]:
    """Return the tensors among the arguments of a call; a single positional one needs no number."""
    names = [f"[{index}]" if len(args) > 1 else "" for index in range(len(args))]
    named = zip((*names, *kwargs), (*args, *kwargs.values()), strict=True)
    return [pair for name, argument in named for pair in islice(tensors(argument, name), MOST_TENSORS)]
