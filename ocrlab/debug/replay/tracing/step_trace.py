"""One micro-batch of a replayed step under trace: which module, phase and operator it is in, and what was seen.

Shapes: B samples.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ocrlab.debug.flight_record import replay_position
from ocrlab.debug.instruments import batch_tree, cuda_sticky_errors, tensor_tree
from ocrlab.debug.replay.tracing import batch_rows, cuda_context, index_checks
from ocrlab.debug.replay.tracing.backward_trace import BackwardTrace
from ocrlab.debug.replay.tracing.call_stack import AutogradFunctions, Call, ModuleStack, kind
from ocrlab.debug.replay.tracing.nonfinite_tracker import NonFiniteOrigin, NonFiniteTracker, Part, bad, extent, pointer
from ocrlab.debug.replay.tracing.operator_trace import OperatorTrace, line
from ocrlab.run_folder import fail_safe

SHOWN = 8  # inputs of an operator in a report
LOSSES = "nll_loss cross_entropy mse_loss l1_loss huber_loss kl_div ctc_loss soft_margin db_loss".split()

Place = dict[str, Any]


class StepTrace:
    """A micro-batch up to `stop`; an internal error is printed once on stderr and ends the inspection.

    `harmless` is what a step that went well has of NaN and Inf too, `earlier` what the program may have kept of them.
    """

    def __init__(
        self,
        roots: Sequence[nn.Module],
        optimizers: Sequence[Any],
        about: Place,
        page: replay_position.Writer,
        ring: Any,
        batch: Any,
        count: int | None,
        harmless: Iterable[tuple[str, ...]] = (),
        earlier: Mapping[int, NonFiniteOrigin] | None = None,
        *,
        evaluates: bool = False,
    ) -> None:
        self.roots, self.optimizers, self.about, self.page, self.ring = roots, optimizers, about, page, ring
        self.modules = ModuleStack(roots, self._entered, self._left)
        self.backward = BackwardTrace(self._moved, self._backward_began, self._backward_ended)
        self.functions = AutogradFunctions(self._moved)
        self.makers: dict[int, str] = {}  # storage -> who made what lies there
        self.after_backward = self.blind = False
        self.evaluates = evaluates  # an evaluation may come in the middle of it, of which the loop says nothing
        self.dead = False  # the CUDA context: nothing may be asked of it
        self.died_of: BaseException | None = None  # as the device says it; the program may hear it in other words
        self.died: tuple[BaseException, Place] | None = None  # where it died, if that is known
        self.raised_in: tuple[BaseException, Place] | None = None  # by an operator
        self.raised_of: list[NonFiniteOrigin] = []  # what its inputs held
        self.outside: tuple[index_checks.OutOfRange, Place] | None = None  # the first index or target out of range
        self.outside_from_batch = False  # it was computed from the batch
        self.loss: NonFiniteOrigin | None = None  # of what backward was called of, where that is bad
        self.gradient: tuple[str, NonFiniteOrigin] | None = None  # the first bad gradient of a parameter
        self.moves = False  # the operator at hand puts the rows of the batch into another order
        self.storages: set[int] = set()  # storages that operators were given
        self.read = ""  # the line that has read a bad value last
        self.written: dict[int, str] = {}  # storage -> the operator that has changed what lies there, and its line
        self.before_step: list[NonFiniteOrigin] = []  # of weights, buffers, batch and state before the step
        named = dict(tensor_tree.tensors(batch))
        self.owned = batch_tree.tensors_by_sample(batch, count)  # tensors of the batch that are one sample's
        whole = [t for name, t in named.items() if name not in self.owned and t.dim() and t.shape[0] == count]
        self.rows = count if whole or not self.owned else None  # B, where dimension 0 of tensors is of samples
        self.values = self._begin_values(named, set(harmless), dict(earlier or {}))
        self.modules.hook()
        self.backward.hook({id(parameter): name for name, parameter in self.parameters().items()})
        self.functions.hook()
        self.handles = [register_optimizer_step_pre_hook(partial(self._moved, has_gradients=True))]
        self._move_to({"phase": "forward", "op": "", "inputs": []})
        self.mode: OperatorTrace | None = OperatorTrace(self)
        self.mode.__enter__()

    def _begin_values(
        self, named: dict[str, Tensor], harmless: set[tuple[str, ...]], earlier: dict[int, NonFiniteOrigin]
    ) -> NonFiniteTracker:
        """Look at what the step begins with."""
        storages = {pointer(tensor): f"input {name}" for name, tensor in reversed(named.items())}  # of views, the first
        storages |= {pointer(tensor): name for name, tensor in self._weights()}
        storages.pop(0, None)
        owners: dict[int, list[Part]] = {}
        for name, sample in self.owned.items():  # may all be views of one tensor that holds the whole data
            owners.setdefault(pointer(named[name]), []).append((*extent(named[name]), sample))
        wholes: dict[int, tuple[int, int]] = {}
        for tensor in named.values():
            start, end = extent(tensor)
            first, last = wholes.get(pointer(tensor), (start, end))
            wholes[pointer(tensor)] = min(start, first), max(end, last)
        shapes = {tuple(parameter.shape) for parameter in self.parameters().values()}
        values = NonFiniteTracker(storages, shapes, self.rows, harmless, earlier, owners, wholes)
        with torch.no_grad():
            for name, tensor in [*((f"input {n}", t) for n, t in named.items()), *self._weights()]:
                if bad(tensor):
                    birth = values.new(tensor, name, {"phase": "before"})
                    values.births.setdefault(pointer(tensor), birth)
                    self.before_step += [] if birth.constant else [birth]
        return values

    def stop(self) -> None:
        """Take every hook away; may be called twice."""
        mode, self.mode = self.mode, None
        if mode is not None:
            with contextlib.suppress(Exception):  # another dispatch mode is still above it
                mode.__exit__(None, None, None)
        self.modules.unhook()
        self.backward.unhook()
        self.functions.unhook()
        while self.handles:
            self.handles.pop().remove()

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters of the model by name."""
        return {name: parameter for root in self.roots for name, parameter in root.named_parameters()}

    def bad_rate(self) -> float | None:
        """Return the first learning rate that is NaN or Inf, None where all are finite."""
        groups = [group for optimizer in self.optimizers for group in getattr(optimizer, "param_groups", ())]
        rates = [float(group["lr"]) for group in groups if isinstance(group.get("lr"), float | int | Tensor)]
        return next((rate for rate in rates if not math.isfinite(rate)), None)

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield what the model and the optimizer keep from step to step, with its name in words."""
        names = {}
        for name, parameter in self.parameters().items():
            names[id(parameter)] = name
            yield f"weight {name}", parameter.detach()
        for root in self.roots:
            for name, buffer in root.named_buffers():
                yield f"buffer {name}", buffer
        for optimizer in self.optimizers:
            for parameter, state in getattr(optimizer, "state", {}).items():
                for key, value in state.items() if isinstance(state, dict) else ():
                    if isinstance(value, Tensor):
                        yield f"optimizer's {key} of {names.get(id(parameter), 'a parameter')}", value

    def swallowed(self) -> BaseException | None:
        """Return the exception that has ended this step before its backward, though the program went on."""
        if self.died is not None:
            return self.died[0]
        if self.after_backward:
            return None
        raised = (self.raised_in, self.functions.raised, self.modules.escaped)
        return next((item[0] for item in raised if item is not None), None)

    def is_dead(self, error: BaseException | None = None) -> bool:
        """Return whether the CUDA context is dead after `error` was raised; the device is asked where that is open."""
        if not self.dead and (cause := cuda_context.cause_of_death(error)) is not None:
            self.dead, self.died_of = True, cause
        return self.dead

    def wait_for_last(self) -> None:
        """Wait for the kernels of the step, at its end: one that fails is the fault of where the step is."""
        with self.guarded():
            self._wait()

    # Operators: called by `OperatorTrace`.

    def before(self, name: str, inputs: list[Tensor], args: Any, kwargs: Any) -> None:
        if self.blind or self.dead:
            return
        with self.guarded():
            self._wait()  # else the operator would be blamed for a launch before it that nobody has checked
            here = self.here(name)
            place = {**here, "op": name, "line": line() if here.get("function") else here.get("line") or line()}
            place["inputs"] = self.shapes(inputs)
            where = {pointer(tensor) for tensor in inputs}
            self.storages |= where
            place["from_batch"] = not where.isdisjoint(self.values.from_batch)
            place["from_weights"] = bool(inputs) and all(map(self._is_persistent, inputs))
            self.moves = (
                place["from_batch"] and not _capturing() and batch_rows.reorders_rows(name, args, kwargs, self.rows)
            )
            self._move_to(place)
            if self.backward.depth == 0 and torch.is_grad_enabled():
                self.backward.assign_last_node(
                    {name: place[name] for name in ("path", "module", "line") if place.get(name)}
                )
            for tensor in inputs:
                self.read = place["line"] if self.values.read(tensor) else self.read
            if self.outside is None and not _capturing():
                violation = index_checks.find_out_of_range(name, args, kwargs)
                if violation is not None:
                    self.outside = (violation, {**place, "sources": self.sources(inputs)})
                    self.outside_from_batch = pointer(violation.source) in self.values.from_batch

    def after(self, name: str, inputs: list[Tensor], changed: list[Tensor]) -> None:
        if self.blind or self.dead:
            return
        with self.guarded():
            cuda_context.wait()
            self.page.leave()
            if changed and not _capturing():
                self.values.result(name, inputs, changed, self.place, moves=self.moves)
                if name.endswith("_"):
                    writer = f"`{name}` at {self.place.get('line')}"
                    self.written.update((pointer(tensor), writer) for tensor in changed)
                path, module = self.place.get("path"), self.place.get("module")
                who = f"{path or 'the model'} ({module}), `{name}`" if module else f"`{name}`"
                self.makers.update((where, who) for tensor in changed if (where := pointer(tensor)))

    def raised(self, error: BaseException, inputs: list[Tensor]) -> None:
        with self.guarded():
            if self.dead:  # the device has failed earlier, and every call says so now
                return
            self.raised_in = (error, {**self.place, "sources": self.sources(inputs)})
            self.raised_of = [birth for tensor in inputs if (birth := self.values.of(tensor)) is not None]
            if self.is_dead(error):  # before the operator it was alive
                self.died, self.blind = self.raised_in, True

    # Where the step is.

    def here(self, operator: str = "") -> Place:
        """Return where the step is now: phase, module, what that is, node of the graph."""
        now, call = self.backward.now, self.modules.top
        own: Place = {"function": self.functions.top} if self.functions.top else {}
        if self.backward.depth and now is not None:
            node, origin = now
            return {"phase": "backward", "node": node, **origin, **own}
        place: Place = {"phase": "backward" if self.backward.depth else self._phase(operator), **own}
        if call is not None:
            place |= {"path": call.path, "module": call.label}
            place |= {"call": call.number} if call.number > 1 else {}
        return place

    def _phase(self, operator: str) -> str:
        call = self.modules.top
        if self.is_evaluating():
            return "validation"
        if call is None:
            return "optimiser" if self.after_backward else "loss" if self.modules.outermost else "forward"
        named = any(word in operator for word in LOSSES) and next(call.module.children(), None) is not None
        return "loss" if named or any(outer.is_loss for outer in self.modules.stack) else "forward"

    def is_evaluating(self) -> bool:
        """Return whether the model is in eval() and makes no graph: an evaluation of a loop that does not say so."""
        return self.evaluates and not torch.is_grad_enabled() and not any(root.training for root in self.roots)

    def was_evaluating(self) -> bool:
        """Return whether an evaluation was under way when an exception left it, and with it its no_grad()."""
        return self.place.get("phase") == "validation" and not any(root.training for root in self.roots)

    def sources(self, inputs: Sequence[Tensor]) -> list[str]:
        """Return of each tensor its shape and who made it: a module, a weight, the batch; weights last."""
        texts = []
        for tensor in sorted(inputs, key=self._is_persistent)[:SHOWN]:
            where = pointer(tensor)
            name = self.values.names.get(where)
            who = name if self._is_persistent(tensor) else self.makers.get(where) or name
            texts.append(f"{kind(tensor)} from {who}" if who else kind(tensor))
        return texts

    def shapes(self, inputs: Sequence[Tensor]) -> list[str]:
        """Return shape and number format of each tensor, weights last: an operator may take its bias first."""
        return [kind(tensor) for tensor in sorted(inputs, key=self._is_persistent)[:SHOWN]]

    def _is_persistent(self, tensor: Tensor) -> bool:
        """Return whether a tensor is a weight, or what else is kept from step to step."""
        return not self.values.names.get(pointer(tensor), "input").startswith("input")

    def _move_to(self, place: Place) -> None:
        self.place = place
        self.page.enter({**self.about, **place})
        if self.ring is not None:
            self.ring.phase(place["phase"])
            self.ring.op(f"{place.get('path', '')} {place.get('op', '')}".strip())

    def _entered(self, call: Call) -> None:
        with self.guarded():
            self._wait()
            if len(self.modules.stack) == 1:
                self.after_backward = False  # another forward pass begins
            inputs = [tensor for _, tensor in tensor_tree.tensors([call.args, dict(call.kwargs)], "")][:SHOWN]
            place = {**self.here(), "op": "", "inputs": [kind(tensor) for tensor in inputs], "entered": True}
            if self.backward.depth == 0:
                self.backward.mark({"path": call.path, "module": call.label})
            self._move_to(place)

    def _left(self, call: Call) -> None:
        with self.guarded():
            self._wait()
            if self.backward.depth == 0:
                top = self.modules.top
                above = {"path": top.path, "module": top.label} if top else {}
                self.backward.mark({**above, "left": {"path": call.path, "module": call.label}})
            self._move_to({**self.here(), "op": "", "inputs": [], "after": call.path})

    def _wait(self) -> None:
        """Wait for kernels that torch's dispatcher has not seen: one that fails is the fault of where the step is."""
        if self.dead or not torch.cuda.is_initialized():
            return
        before = self.place
        ended = ("op", "inputs") if before.get("node") else ("op", "inputs", "line")  # a node has its forward's
        self.place = {name: value for name, value in before.items() if name not in ended}
        try:
            if not cuda_context.wait():
                self.place = before
        except Exception:
            self.place["line"] = self.place.get("line") or line()
            raise

    def _moved(self, *_: Any, has_gradients: bool = False) -> None:
        """Note that the step comes to another function of the user's, node of the graph, or part of the step."""
        with self.guarded():
            self._wait()
            if has_gradients and self.gradient is None and not self.dead and not _capturing():
                self._find_bad_gradient()
            self._move_to({**self.here(), "op": "", "inputs": []})

    def _backward_began(self, tensors: Any) -> None:
        self.after_backward = False
        with self.guarded():
            self._wait()
            for _, tensor in tensor_tree.tensors(tensors):
                if self.loss is None and not self.dead and not _capturing() and bad(tensor):
                    self.loss = self.values.of(tensor)

    def _backward_ended(self, leaves: bool) -> None:
        self.after_backward = leaves
        self._moved(has_gradients=True)

    def _find_bad_gradient(self) -> None:
        for name, parameter in self.parameters().items():
            gradient = parameter.grad
            if gradient is not None and bad(gradient):
                birth = self.values.of(gradient)
                birth = birth or self.values.new(gradient, f"gradient of {name}", {"phase": "backward"})
                self.gradient = (name, birth)
                return

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Keep an error of the instrument from the training that it looks at."""
        try:
            yield
        except Exception as error:
            if self.dead or cuda_sticky_errors.is_cuda_error(error):
                if not self.dead:  # by what ran last; the program will hear of it at its next call
                    self.dead, self.died_of, self.died = True, error, (error, dict(self.place))
            elif not self.blind:
                fail_safe.report(error, "tracing stopped", name="ocrlab replay")
            self.blind = True


def _capturing() -> bool:
    """Return whether a CUDA graph is being captured: then no value may be read."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
