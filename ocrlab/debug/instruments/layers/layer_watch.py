"""What every module computes, read in hooks: shapes, statistics, gradients, time, memory, and the first NaN or Inf.

    with layer_watch.watch(model, "decoder.fusion.*", every=10) as watch:
        train(...)
    watch.first_nonfinite                 module, tensor, step, sample; None where all was finite
    watch.table(), watch.history(), watch.plot()

Steps are those of the optimizer that holds parameters of the model; where none steps, a call of the model is a step,
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
import weakref
from collections.abc import Callable
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from ocrlab.debug.instruments import cuda_sticky_errors
from ocrlab.debug.instruments.call_hook import CallHook, ThreadStack
from ocrlab.debug.instruments.compiled_modules import is_compiled
from ocrlab.debug.instruments.layers import module_selection, table
from ocrlab.debug.instruments.layers.statistics import StatisticsStore, StepClock
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
        self._model, self._every, self._backward = weakref.ref(model), every, backward
        self._named = [(module.name, weakref.ref(module.module)) for module in named]
        self._compiled = is_compiled(model)
        self._jit = module_selection.jit_module_names(model)
        self._handles: list[Any] = []
        self._stack = ThreadStack()  # of (module, call)
        self._stance: Any = None
        self._live = False  # statistics are taken in this step
        self._blind = False  # the optimizer made a watched step, and no module was called in it
        self._number = 0  # of the step
        self._micro = 0  # calls of the model since the watch began
        self._counted = False  # steps are counted by an optimizer or by hand; else each call of the opener is a step
        self._trains = False  # there was a call with gradients
        self._opener: object = None  # the first module that was called
        self._leader: weakref.ref[Optimizer] | None = None  # the first optimizer with parameters of the model
        self._foreign: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    def __enter__(self) -> LayerWatch:
        """Put the hooks on; raises ConfigError where they are on already or the model is gone."""
        model = self._model()
        if self._handles or model is None:
            what = "This watch is open already" if self._handles else "The model that was to be watched is gone"
            raise ConfigError(what, do="Call watch_layers again for another one")
        watched = [(name, module) for name, ref in self._named if (module := ref()) is not None]
        inner = module_selection.unwrap(model)
        if all(module is not inner for _, module in watched):
            watched.append(("", inner))  # only to count its calls
        for name, module in watched:
            who = (name, type(module).__name__)
            enter, leave = self._guarded(self._enter, who), self._guarded(self._leave, who)
            self._handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            self._handles += [module.register_forward_hook(leave)] if name else []
        self._handles.append(register_optimizer_step_post_hook(self._guarded(self._count_optimizer_step)))
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
        stack = self._stack.entered
        self.unfinished = tuple(call.module for _, call in stack if call.phase != "recompute") if error else ()
        stack.clear()
        if cuda_sticky_errors.is_cuda_error(error):
            self._end_reason = "a CUDA error ended the block, after which no device may be asked"
            self._store.lose()
        with self._guard():
            self._store.flush()
        if self._blind and not self._store.rows and error is None and not self.fault:
            print(f"ocrlab: {self.note()}", file=sys.stderr)  # else an empty table would read as a clean one

    def step(self) -> None:
        """End this step by hand, where no torch optimizer does; from then on only this counts steps, and optimizers."""
        with self._guard():
            self._end_counted_step()

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
        with self._guard():
            self._store.flush(end=False)
            self._store.read(wait=True)
        return self._store.rows

    def _guarded(self, method: Callable[..., None], *bound: Any) -> CallHook:
        """Return a hook that calls a method, and ends the watch in place of the program if that fails."""

        def hook(*args: Any) -> None:
            if not torch.compiler.is_compiling():  # nothing in the graph, and no break in it
                try:
                    method(*bound, *args)
                except Exception as error:
                    self._guard.handle(error)

        return CallHook(hook)

    # The number of the step: counted by its optimizer, else by calls of the model, else by hand

    def _count_call(self, who: object) -> None:
        if self._opener is None:
            self._opener = who
        elif who is self._opener and not in_backward():
            self._micro += 1
            if not self._counted:
                self._end_step()
        if not self._counted and not self._trains and torch.is_grad_enabled():
            self._trains, self._number = True, 0  # what came before, like a trial of the validation, was not a step
            self._begin_step()

    def _count_optimizer_step(self, optimizer: Optimizer, *_: Any) -> None:
        leader, model = self._leader() if self._leader else None, self._model()
        if leader is None and model is not None and optimizer not in self._foreign:
            ids = {id(parameter) for parameter in model.parameters()}
            if any(id(p) in ids for group in optimizer.param_groups for p in group["params"]):
                leader, self._leader = optimizer, weakref.ref(optimizer)
            else:
                self._foreign.add(optimizer)
        if leader is optimizer and not self.fault:
            self._end_counted_step()

    def _end_counted_step(self) -> None:
        if not self._counted:  # calls taken for steps so far were micro-batches of this one
            self._counted, self._number = True, 0
            for row in self._store.rows:
                row.call.step = 0
        self._end_step()

    def _end_step(self) -> None:
        """End a step: its figures begin to travel."""
        if self._live:
            self._blind = self._blind or (self._leader is not None and not self._store.rows)
            self._store.flush()
        self._stack.entered.clear()
        self._number += 1
        self._begin_step()

    def _begin_step(self) -> None:
        """Begin a step, which is watched or passes."""
        self._live = self._number % self._every == 0 and not self.fault
        if self._live:
            self._store.read(wait=False)
            model = self._model()
            first = next(iter(()) if model is None else model.parameters(), None)  # a compiled model has no truth value
            self._store.clock = StepClock(first is not None and first.is_cuda)
            if self._compiled and self._stance is None:
                self._stance = torch.compiler.set_stance("force_eager")
        elif self._counted:  # else the next call would not count
            self._compile_again()

    def _compile_again(self) -> None:
        if self._stance is not None:
            self._stance.__exit__(None, None, None)
            self._stance = None

    # What a module computes

    def _enter(self, who: tuple[str, str], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._count_call(who)
        if not self._live or not who[0] or self._capturing():
            return
        store, clock, model = self._store, self._store.clock, self._model()
        begin = clock.mark()
        root = None if model is None else module_selection.unwrap(model)
        phase = "recompute" if in_backward() else "forward" if root is None or root.training else "eval"
        first = bool(getattr(module, "batch_first", True))
        call = Call(*who, module is root, self._number, self._micro, phase, next(store.order), first)
        store.calls.append(call)
        for path, tensor in _arguments(args, kwargs):
            store.add(call, INPUT, path, tensor, self._gradient if self._backward else None)
        store.weights(call, module)
        self._stack.entered.append((who, call))
        call.allocated = clock.memory()
        call.begin, call.own = clock.done(begin), (len(clock.own), 0)

    def _leave(self, who: tuple[str, str], _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        stack = self._stack.entered
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
            with self._guard():
                self._store.gradient(roles, gradient)

    def _capturing(self) -> bool:
        """Return whether a CUDA graph is being recorded: our work would become part of each of its replays."""
        return self._store.clock.cuda and torch.cuda.is_current_stream_capturing()

    def _stop(self, error: BaseException) -> None:
        self._live = False
        self._store.lose() if cuda_sticky_errors.is_cuda_error(error) else self._store.forget()


def in_backward() -> bool:
    """Return whether this thread is inside of a backward pass: a forward there is one that checkpointing repeats."""
    return bool(torch._C._current_graph_task_id() != -1)


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Tensor]]:
    """Return the tensors among the arguments of a call; a single positional one needs no number."""
    names = [f"[{index}]" if len(args) > 1 else "" for index in range(len(args))]
    named = zip((*names, *kwargs), (*args, *kwargs.values()), strict=True)
    return [pair for name, argument in named for pair in islice(tensors(argument, name), MOST_TENSORS)]
