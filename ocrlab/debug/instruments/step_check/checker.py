"""The contract of a whole training step, for any module: what holds from the batch to the moved weights, and what not.

    report = contract.check(model, batch, loss, optimizer=optimizer)
    print(report)            # every violated rule: where, what was measured, what is needed, what to do

One step is made and everything is put back: weights, buffers, gradients, optimiser, batch, random states, modes.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ocrlab.debug.instruments.compiled_modules import is_jit
from ocrlab.debug.instruments.step_check import static_rules, step_rules
from ocrlab.debug.instruments.step_check.call_checks import CallWatch, Stopped
from ocrlab.debug.instruments.step_check.findings import (
    Finding,
    Range,
    advice,
    check_empty_batch,
    check_values,
    error_of,
    is_sticky,
    last_line,
    names_in,
)
from ocrlab.debug.instruments.step_check.forward_pass import ForwardWatch, Stage
from ocrlab.debug.instruments.step_check.image_checks import check_images
from ocrlab.debug.instruments.step_check.state_guard import StepState, learning_rates, loss_value
from ocrlab.debug.instruments.step_check.static_rules import check_untrained_part
from ocrlab.debug.instruments.tensor_tree import dotted_tensors
from ocrlab.errors import ConfigError

__all__ = ["Finding", "Range", "Report", "Stage", "check"]

Loss = Callable[..., Any]


@dataclass
class Report:
    """What was observed in one step.

    `findings` are the violated rules (rule, where, got, need, do; judgement "fail" or "warn"), `stages` the modules in
    the order of the forward pass with their output shapes, `unchecked` what could not be checked and why, `loss` its
    value, `norms` the L2 norm of each parameter's gradient by name.
    """

    findings: list[Finding] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    loss: float | None = None
    norms: dict[str, float] = field(default_factory=dict)  # of the gradient, by parameter

    @property
    def ok(self) -> bool:
        """Whether nothing makes training wrong."""
        return not any(finding.judgement == "fail" for finding in self.findings)


def check(
    model: nn.Module,
    batch: Any,
    loss: Loss,
    *,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    ranges: Sequence[Range] = (),
    outputs: Sequence[Range] = (),
    shapes: Mapping[str, Sequence[int | None]] | None = None,
) -> Report:
    """Make one training step, put everything back, and return which rules of a right step it violates.

    model      any nn.Module; compiled ones run eagerly meanwhile
    batch      any tree of tensors, the first dimension of which is the sample
    loss       `loss(model, batch)` does the whole forward pass and returns a scalar tensor, or something with a `loss`
               or `total`, or a sequence that begins with it; a loss of torch (nn.CrossEntropyLoss(),
               functional.mse_loss) is called as `loss(model(inputs), targets)` with a batch (inputs, targets)
    optimizer  one, several, or None: then whether weights move is not checked
    ranges     between what the values of tensors of the batch must lie; `outputs` the same for what `model` returns
    shapes     of modules' outputs, by module name, {"encoder": (None, 64, 32, 32)}; None is any size

    Weights, gradients, requires_grad, buffers, attributes, hooks and modes of the modules, the optimizers, the batch
    and the random states are as before, also after an exception. What the loss raises becomes a finding. After a CUDA
    error that kills the context no tensor is put back. Raises ConfigError if the model is not an nn.Module or the loss
    cannot be called.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError("Only a torch module can be checked", got=type(model).__name__, need="an nn.Module")
    if not callable(loss):
        need = "a function of (model, batch), or a loss of torch"
        raise ConfigError("The loss cannot be called", got=type(loss).__name__, need=need)
    optimizers = [] if optimizer is None else [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    report = Report(findings=list(static_rules.check_model(model, optimizers)))
    if any(finding.rule in ("weights.lazy", "weights.meta") for finding in report.findings):
        report.unchecked.append("the step: there are no weights yet")
        return report
    if is_jit(model):
        report.unchecked.append("the step: a model of torch.jit takes no hooks; check it as it was before")
        return report
    named = list(dotted_tensors(batch))
    names = names_in(batch, next((t.shape[0] for _, t in named if t.ndim), 0))
    report.findings += [*check_empty_batch(named), *check_values(named, ranges, names, "batch")]
    report.findings += [
        *static_rules.check_batch_types(model, named),
        *check_untrained_part(model),
        *check_images(named),
    ]
    state, error, graded = StepState(model, optimizers, batch, loss), None, torch.is_grad_enabled()
    try:
        error = _Step(
            model, batch, whole_loss(loss), optimizers, state, report, names, outputs, dict(shapes or {})
        ).run()
    finally:
        torch.set_grad_enabled(graded)
        if is_sticky(error):
            state.restore_modes()
            report.unchecked.append("all that follows: the CUDA context is dead; start the process again")
        else:
            state.restore()
            state.restore_cuda_random()
            report.unchecked += [f"not put back: {text}" for text in state.failed]
    return report


def whole_loss(loss: Loss) -> Loss:
    """Return a loss of (model, batch), also of a torch loss of (outputs, targets)."""
    module = getattr(loss, "__module__", "") or ""
    if not (isinstance(loss, nn.Module) or module.startswith("torch.nn") or module == "torch._C._nn"):
        return loss

    def with_targets(model: nn.Module, batch: Any) -> Any:
        inputs, targets = batch
        return loss(model(inputs), targets)

    return with_targets


@dataclass
class _Step:
    """One training step and the look at it."""

    model: nn.Module
    batch: Any
    loss: Loss
    optimizers: list[Optimizer]
    state: StepState
    report: Report
    names: list[str] | None
    outputs: Sequence[Range]
    shapes: dict[str, Sequence[int | None]]
    watchers: tuple[ForwardWatch, CallWatch] | None = None
    ended: bool = False  # the forward pass raised

    def run(self) -> BaseException | None:
        """Go through the step as far as it goes; return what was raised."""
        self.state.clear_gradients()
        with eager():
            total, error = self._forward()
            if error is None and total is not None:
                error = self._backward(total)
                if error is None:
                    error = self._move()
            return error if is_sticky(error) else self._evaluate() or error

    def _forward(self) -> tuple[Tensor | None, BaseException | None]:
        """Return the loss where it can be trained on, and what was raised."""
        findings, forward = self.report.findings, ForwardWatch(self.model, self.names, self.outputs, self.shapes)
        back: list[Any] = []
        calls = CallWatch(findings, forward.place, self.names, lambda: bool(forward.within))
        with forward, calls:
            error = error_of(lambda: back.append(self.loss(self.model, self.batch)))
        self.report.stages, self.watchers = forward.stages, (forward, calls)
        findings += [*forward.findings, *step_rules.check_batch_written(self.state)]
        if error is None:
            findings += [*forward.missing()]
            total = loss_value(back[0])
            wrong = list(step_rules.check_loss(total))
            findings += wrong
            if isinstance(total, Tensor) and total.numel() == 1 and total.device.type != "meta":
                self.report.loss = float(total.detach())
            usable = isinstance(total, Tensor) and total.grad_fn is not None and total.numel() == 1
            findings += calls.parts.within(total) if usable else ()
            if not usable:
                self.report.unchecked.append("gradients and weights: the loss cannot be differentiated")
            return (total if usable else None), None
        if not isinstance(error, Stopped):
            place = f"{forward.place()}, {last_line(error)}"
            text = f"{type(error).__name__}: {error}".strip().partition("\n")[0][:400]
            findings.append(Finding("step.raised", place, text, "a loss", advice(error, self.batch)))
        self.report.unchecked.append("loss, gradients and weights: the forward pass did not end")
        self.ended = True
        return None, error

    def _backward(self, total: Tensor) -> BaseException | None:
        self.state.hold(total)
        error = error_of(total.sum().backward)
        if error is not None:
            text = f"{type(error).__name__}: {error}".strip().partition("\n")[0][:400]
            do = "Run it under torch.autograd.set_detect_anomaly(True): it names the forward line"
            self.report.findings.append(Finding("backward.raised", "the backward pass", text, "gradients", do))
            self.report.unchecked.append("gradients and weights: the backward pass did not end")
            return error
        if self.watchers is not None:
            forward, calls = self.watchers
            self.report.findings += [*calls.losses.pushed(), *forward.used()]
        called = {stage.name for stage in self.report.stages}
        self.report.findings += step_rules.check_gradients(self.model, called)
        self.report.findings += step_rules.check_unlisted_weights(self.model, self.optimizers)
        self.report.norms = step_rules.gradient_norms(self.model)
        self.report.findings += step_rules.check_vanishing_gradients(self.model)
        return None

    def _move(self) -> BaseException | None:
        """Make the optimiser's step and compare the weights."""
        self.report.findings += step_rules.check_batchnorm_statistics(self.model, self.state)
        moved_before = step_rules.self_moving_parameters(self.model, self.state)
        if not self.optimizers:
            self.report.unchecked.append("whether weights move: no optimizer was given")
            return None
        for optimizer in self.optimizers:
            error = error_of(optimizer.step)
            if isinstance(error, TypeError) and "closure" in str(error):
                self.report.unchecked.append(f"whether weights move: {type(optimizer).__name__} needs a closure")
                return None
            if error is not None:
                text = f"{type(error).__name__}: {error}".partition("\n")[0]
                do = "Look at the optimiser's groups and its options"
                self.report.findings.append(Finding("optimizer.raised", type(optimizer).__name__, text, "a step", do))
                return error
        self.report.findings += step_rules.check_weights_moved(self.model, self.optimizers, self.state, moved_before)
        if not any(learning_rates(self.optimizers).values()):
            self.report.unchecked.append("whether weights move: the learning rate is 0 now")
        return self._again()

    def _again(self) -> BaseException | None:
        """Compute the loss once more, on the same batch with the same random numbers: the step should have helped."""
        values: list[Any] = []
        self.state.restore_random()
        self.state.restore_batch()
        with torch.no_grad():
            error = error_of(lambda: values.append(loss_value(self.loss(self.model, self.batch))))
        if error is None and isinstance(values[0], Tensor) and values[0].numel() == 1 and self.report.loss is not None:
            self.report.findings += step_rules.check_loss_fell(self.report.loss, float(values[0]))
        return error

    def _evaluate(self) -> BaseException | None:
        """Look whether eval mode leaves all as it is."""
        self.state.restore()
        self.state.clear_gradients()
        self.model.eval()
        with torch.no_grad():
            error = error_of(lambda: self.loss(self.model, self.batch))
        if error is None:
            self.report.findings += step_rules.check_evaluation(self.model, self.state)
        elif not self.ended:
            self.report.unchecked.append(f"eval mode: the loss cannot be computed in it ({type(error).__name__})")
        return error


def eager() -> Any:
    """Return a context in which compiled modules run as they are written: hooks see nothing inside a compiled graph."""
    compiled = "torch._dynamo" in sys.modules  # importing it takes seconds, and without it nothing is compiled
    stance = getattr(torch.compiler, "set_stance", None)
    return stance("force_eager") if compiled and stance else contextlib.nullcontext()
