"""One training step, observed: what comes in and out of each module, what is raised, gradients, and what it changes."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.optim import Optimizer

from ocrlab.debug.instruments.compiled_modules import is_jit
from ocrlab.debug.instruments.sample_names import batch_names
from ocrlab.debug.instruments.tensor_facts import under_vmap
from ocrlab.debug.instruments.tensor_tree import dotted_tensors
from ocrlab.debug.laws.loss_calls import LossCalls, OutOfBounds
from ocrlab.debug.laws.result import Result, broken, hint
from ocrlab.debug.laws.state_guard import StepState, learning_rates, loss_value, optimized_parameters, unlisted_parts
from ocrlab.debug.laws.tensor_checks import (
    error_of,
    is_attention_mask,
    is_readable,
    is_sticky,
    not_finite,
    position_text,
    stored_values,
    value_at,
)

LARGE, FAINT = 16.0, 1.00001 / 255  # mean size of an input, as of pixels of 0..255; the most of pixels divided twice
DEAD = "CUDA context is dead"


@dataclass(frozen=True)
class Stage:
    """One call of a module: its name and class, and the shape of each tensor that it returned."""

    name: str
    kind: str
    shapes: tuple[tuple[int, ...], ...]


@dataclass
class Observation:
    """What a step did. Everything is as before when `observe` returns, but for a dead CUDA context."""

    model: nn.Module
    batch: Any
    optimizers: list[Optimizer]
    state: StepState
    results: list[Result] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    loss: float | None = None
    after: float | None = None  # the loss of the same batch after the step
    gradients: dict[str, Tensor] = field(default_factory=dict)  # by parameter
    norms: dict[str, float] = field(default_factory=dict)  # of these
    moved: dict[str, Tensor] = field(default_factory=dict)  # the tensors after the step; none: no step was made
    moved_alone: set[str] = field(default_factory=set)  # before any optimizer stepped
    unchecked: list[str] = field(default_factory=list)
    dead: bool = False

    @property
    def complete(self) -> bool:
        """Whether the step came as far as gradients."""
        return bool(self.norms) and not self.dead

    def add(self, law: str, *results: Result) -> None:
        """Note results of a law."""
        self.results += [replace(result, law=law) for result in results]


def observe(model: nn.Module, batch: Any, loss: Callable[..., Any], optimizers: Sequence[Optimizer]) -> Observation:
    """Make one training step, put everything back, and return what happened. What the loss raises becomes a result."""
    state, graded, error = StepState(model, optimizers, batch, loss), torch.is_grad_enabled(), None
    step = Observation(model, batch, list(optimizers), state)
    if is_jit(model):
        step.unchecked.append("the step: a model of torch.jit takes no hooks; check it as it was before")
        return step
    try:
        state.clear_gradients()
        with eager():
            error = _forward_and_back(step, loss)
            if error is None and step.complete:
                error = _move(step, loss)
    finally:
        torch.set_grad_enabled(graded)
        step.dead = is_sticky(error)
        if step.dead:
            state.restore_modes()
            step.unchecked.append(f"all that follows: the {DEAD}; start the process again")
        else:
            state.restore()
            state.restore_cuda_random()
            step.unchecked += [f"not put back: {text}" for text in state.failed]
    return step


def _forward_and_back(step: Observation, loss: Callable[..., Any]) -> Exception | None:
    names = batch_names(step.batch)
    back, watch = [], _Modules(step, names)
    calls = LossCalls(lambda result: step.add("progress", result), watch.place, names, lambda: bool(watch.within))
    with watch, calls:
        error = error_of(lambda: back.append(loss(step.model, step.batch)))
    for name, tensor in step.state.written():
        view = tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size()
        got = "the forward pass wrote into it" + (": it is a view of the data, which are another's from now on" * view)
        do = "Write x = x - mean in place of x -= mean, or clone it first"
        where = f"batch.{name}" if name != "batch" else name
        step.add("data", (broken if view else hint)("batch.written", where, got, "the batch as it came", do))
    if isinstance(error, OutOfBounds):
        step.unchecked.append("loss, gradients and weights: the forward pass did not end")
        return error
    if error is not None:
        return _raised(step, "step.raised", f"{watch.place()}, {_last_line(error)}", error, _advice(error, step.batch))
    total = loss_value(back[0])
    step.add("progress", *_usable(total))
    if isinstance(total, Tensor) and total.numel() == 1 and total.device.type != "meta":
        step.loss = float(total.detach())
    if not isinstance(total, Tensor) or total.grad_fn is None or total.numel() != 1:
        step.unchecked.append("gradients and weights: the loss cannot be differentiated")
        return None
    step.state.hold(total)
    error = error_of(total.sum().backward)
    if error is not None:
        do = "Run it under torch.autograd.set_detect_anomaly(True): it names the forward line"
        return _raised(step, "backward.raised", "the backward pass", error, do)
    step.add("progress", *calls.pushed(), *watch.used())
    step.add("coverage", *unlisted_weights(step.model, step.optimizers))
    named = {n: p for n, p in step.model.named_parameters() if p.requires_grad and p.grad is not None}
    step.gradients = {name: stored_values(p.grad).clone() for name, p in named.items() if p.grad is not None}
    step.norms = {name: gradient_norm(g) for name, g in step.gradients.items() if is_readable(g)}
    return None


def _raised(step: Observation, rule: str, where: str, error: Exception, do: str) -> Exception:
    text = f"{type(error).__name__}: {error}".strip().partition("\n")[0][:400]
    step.add("progress", broken(rule, where, text, "a step", do))
    step.unchecked.append(f"gradients and weights: {where} raised {type(error).__name__}")
    return error


def _usable(total: Any) -> Iterator[Result]:
    """Yield why a loss cannot be trained on."""
    if not isinstance(total, Tensor):
        do = "Return the loss tensor itself, without .item()"
        if total is None:
            do = "Look for a `return` that is missing; a model of Hugging Face gives a loss only where it gets `labels`"
        yield broken("loss.type", "the loss", type(total).__name__, "a tensor", do)
        return
    if total.numel() != 1:
        yield broken("loss.scalar", "the loss", f"shape {tuple(total.shape)}", "a scalar", "Take its mean or sum")
    if total.grad_fn is None:
        do, got = (
            "Look for .item(), torch.tensor(loss), detach(), no_grad() or NumPy between model and loss",
            "no graph",
        )
        got += ": it was made anew" if total.requires_grad else ": it does not depend on any trainable weight"
        yield broken("loss.gradient", "the loss", got, "a graph", do)
    if (wrong := not_finite(total)) is not None:
        do = "See the first module whose output is not finite; if none is, it is the loss itself"
        yield broken("loss.finite", "the loss", value_at(total, wrong), "finite", do)


def _move(step: Observation, loss: Callable[..., Any]) -> Exception | None:
    """Make the step of each optimizer, note the tensors after it, and the loss of the same batch."""
    state = step.state
    frozen = [(n, p) for n, p in step.model.named_parameters() if not p.requires_grad and is_readable(p)]
    step.moved_alone = {name for name, p in frozen if not torch.equal(p, state.before(name))}
    for optimizer in step.optimizers:
        error = error_of(optimizer.step)
        kind = type(optimizer)
        if isinstance(error, TypeError) and "closure" in str(error):
            step.unchecked.append(f"whether weights move: {kind.__name__} needs a closure")
            return None
        if error is not None and not kind.__module__.startswith("torch."):  # SAM: its loop makes a first step before
            text = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
            step.unchecked.append(f"whether weights move: {kind.__name__}.step() raised {text}")
            return None
        if error is not None:
            do = "Look at the groups of the optimizer and its options"
            return _raised(step, "optimizer.raised", kind.__name__, error, do)
    if not step.optimizers:
        return None
    step.moved = {n: p.detach().clone() for n, p in step.model.named_parameters() if is_readable(p)}
    if not any(learning_rates(step.optimizers).values()):
        step.unchecked.append("whether weights move: the learning rate is 0 now")
    values: list[Any] = []
    state.restore_random()
    state.restore_batch()
    with torch.no_grad():
        error = error_of(lambda: values.append(loss_value(loss(step.model, step.batch))))
    if error is None and isinstance(values[0], Tensor) and values[0].numel() == 1:
        step.after = float(values[0])
    return error


def unlisted_weights(model: nn.Module, optimizers: Sequence[Any]) -> Iterator[Result]:
    """Yield modules in a plain list or dict, and plain tensors, that get gradients and are in no optimizer."""
    listed = optimized_parameters(optimizers)
    hidden: dict[str, int] = {}
    for name, part in unlisted_parts(model) if optimizers else ():
        own = [p for p in part.parameters() if part.training] if isinstance(part, nn.Module) else [part]
        own = [p for p in own if p.grad is not None and p.requires_grad]
        if own and not any(id(p) in listed for p in own):
            place = name.partition("[")[0] if isinstance(part, nn.Module) else name
            hidden[place] = hidden.get(place, 0) + len(own)
    for name, count in hidden.items():
        got = f"{count} tensor{'s get' if count > 1 else ' gets'} a gradient and {'are' if count > 1 else 'is'} in no"
        got += " optimizer: a plain list, dict or attribute hides what is trained"
        do = "Use nn.ModuleList, nn.ModuleDict or nn.Parameter, of which parameters(), to() and state_dict() know"
        yield broken("weights.unlisted", name, got, "registered modules and parameters", do)


class _Modules:
    """While it is entered, every module reports what it returns."""

    def __init__(self, step: Observation, names: list[str]) -> None:
        self.step, self.names = step, names
        self.within: list[str] = []
        self.outputs: list[Tensor] = []  # what the model returned and a gradient should reach
        self.noted: set[str] = set()  # rules of which the first module is enough
        self._handles: list[Any] = []

    def __enter__(self) -> None:
        for name, module in self.step.model.named_modules():
            if not is_jit(module):
                self._handles.append(module.register_forward_pre_hook(lambda *_, n=name: self.within.append(n)))
                self._handles.append(module.register_forward_hook(self._leave(name)))

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def place(self) -> str:
        """Return the module that is running, or ran last."""
        if self.within:
            return self.within[-1] or "the model itself"
        stages = self.step.stages
        return f"the loss, after {stages[-1].name or 'the model'}" if stages else "before any module"

    def _leave(self, name: str) -> Callable[..., None]:
        def leave(module: nn.Module, args: Any, output: Any) -> None:
            while self.within and self.within.pop() != name:
                pass
            with torch._C.DisableTorchFunction(), torch.no_grad():
                self._look(name, module, args, output)

        return leave

    def _look(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        outputs = list(dotted_tensors(output))
        self.step.stages.append(Stage(name, type(module).__name__, tuple(tuple(t.shape) for _, t in outputs)))
        if any(under_vmap(tensor) for _, tensor in outputs):
            return  # no value can be read there, nor a gradient be kept
        where = f"{name or 'the model itself'} ({type(module).__name__})"
        for _, tensor in outputs:
            wrong = not_finite(tensor)
            if wrong is not None and not is_attention_mask(tensor):
                self._note(self._not_finite(where, module, args, tensor, wrong))
        came = next((t.detach() for _, t in dotted_tensors(args)), None)
        gave = outputs[0][1].detach() if outputs else None
        if came is not None and gave is not None and is_readable(came) and is_readable(gave):
            for result in _sizes(where, module, came, gave) if gave.is_floating_point() else ():
                self._note(result)
            if next(module.parameters(recurse=False), None) is not None:
                self.noted.add("input.scale")  # what comes after a layer has the scale that this one made
        if not name:
            self.outputs += [t for _, t in outputs if t.requires_grad and not t.is_leaf]
            for tensor in self.outputs:
                tensor.retain_grad()

    def _note(self, result: Result) -> None:
        if result.rule not in self.noted:
            self.noted.add(result.rule)
            self.step.add("progress", result)

    def _not_finite(self, where: str, module: nn.Module, args: Any, tensor: Tensor, wrong: Tensor) -> Result:
        """Return what is known of the first module that returns NaN or infinity."""
        came = any(not_finite(t) is not None for _, t in dotted_tensors(args))
        weights = [n for n, p in module.named_parameters(recurse=False) if not_finite(p) is not None]
        got = f"{value_at(tensor, wrong)}, {tensor.dtype}; its input is {'not finite either' if came else 'finite'}"
        got = (got + (f"; its {', '.join(weights)} is not" if weights else "")).replace("torch.", "")
        low = tensor.dtype in (torch.float16, torch.bfloat16) and not weights and not came
        do = "Compute this module in float32" if low else "Look at its weights and input"
        return broken("forward.finite", f"{where}, {position_text(wrong, self.names)}", got, "finite", do)

    def used(self) -> Iterator[Result]:
        """Yield that the loss does not depend on what the model returned; to be asked after the backward pass."""
        if self.outputs and all(tensor.grad is None for tensor in self.outputs):
            do = "Look for a name that was written over: the loss may compare the targets with themselves"
            got = "no gradient reaches what the model returned; the loss is made of something else"
            yield broken("loss.ignores", "the model's output", got, "a loss of the prediction", do)


def _sizes(where: str, module: nn.Module, came: Tensor, gave: Tensor) -> Iterator[Result]:
    """Yield what is wrong with the size of the numbers that a module gets and gives."""
    if isinstance(module, nn.Linear | _ConvNd) and came.is_floating_point():
        low, high = float(came.min()), float(came.max())
        pixels = came.ndim == 4 and low >= 0 and 0 < high <= FAINT
        if pixels or float(came.abs().float().mean()) > LARGE:
            do = "Look whether they are divided by 255 twice" if pixels else "Normalise the input: divide images by 255"
            got = f"the first layer gets values from {low:g} to {high:g}"
            yield hint("input.scale", where, got, "values around 1", do)
    if isinstance(module, nn.ReLU | nn.ReLU6) and gave.numel() >= 8 and not bool(gave.count_nonzero()):
        do = "Look at the bias and the scale of the layer before it, and at the learning rate of the steps until now"
        got = f"all {gave.numel()} values are 0: no layer after it can learn"
        yield hint("forward.dead", where, got, "some above 0", do)


def gradient_norm(gradient: Tensor) -> float:
    """Return the L2 norm of a gradient, of a complex one that of both parts."""
    return float((torch.view_as_real(gradient) if gradient.is_complex() else gradient).float().norm())


def _last_line(error: BaseException) -> str:
    """Return the file and line at which something was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/torch/" not in f.filename and "/debug/laws/" not in f.filename]
    return f"{own[-1].filename.rpartition('/')[2]}:{own[-1].lineno}" if own else "in torch"


def _advice(error: BaseException, batch: Any) -> str:
    """Return what to do about an error of the forward pass."""
    text = str(error)
    if "Expected more than 1 value per channel" in text:
        return "Use a larger batch or crop: BatchNorm has one value for each channel here"
    if "same device" in text:
        return f"Move the batch ({', '.join(sorted({str(t.device) for _, t in dotted_tensors(batch)}))}) to the model"
    if "positional argument" in text or "has no attribute" in text:
        return "`loss` is called as loss(model, batch) and does the whole forward pass"
    return "Look at the line that is named; its shapes stand in the stages of the report"


def eager() -> Any:
    """Return a context in which compiled modules run as they are written: hooks see nothing inside a compiled graph."""
    compiled = "torch._dynamo" in sys.modules  # importing it takes seconds, and without it nothing is compiled
    stance = getattr(torch.compiler, "set_stance", None)
    return stance("force_eager") if compiled and stance else contextlib.nullcontext()
