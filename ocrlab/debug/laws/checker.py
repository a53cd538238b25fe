"""All laws of one training step, tested within some seconds.

print(ocrlab.check_step(model, batch, loss, optimizer))   # one line for each law, broken ones first
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ocrlab.debug.laws import (
    alignment,
    coverage,
    data,
    independence,
    mode,
    precision,
    progress,
    resume,
    schedule,
    sequences,
    splitting,
    transformations,
)
from ocrlab.debug.laws.experiment import Experiment, NotTestable, clock
from ocrlab.debug.laws.law import Extras, Law, Report
from ocrlab.debug.laws.live_objects import CHECKED, loader_of, other_loader
from ocrlab.debug.laws.observation import observe
from ocrlab.debug.laws.result import Result, broken
from ocrlab.debug.laws.tensor_checks import is_sticky, shortened_list
from ocrlab.errors import ConfigError

LAWS = (  # the most telling first
    Law("coverage", coverage.test, 2, coverage.observe),
    Law("resume", resume.test, 6),
    Law("transformations", transformations.test, 5),
    Law("progress", progress.test, 6, progress.observe),
    Law("mode", mode.test, 6, mode.observe),
    Law("data", data.test, 0, data.observe),
    Law("sequences", sequences.test, 8),
    Law("alignment", alignment.test, 8),
    Law("independence", independence.test, 10),
    Law("splitting", splitting.test, 6),
    Law("precision", precision.test, 4),
    Law("schedule", schedule.test, 0),
)


def check_step(
    model: nn.Module,
    batch: Any,
    loss: Callable[..., Any],
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    *,
    loader: Any = None,
    val_loader: Any = None,
    factory: Callable[[], Any] | None = None,
    scheduler: Any = None,
    seconds: float = 60.0,
) -> Report:
    """Test the laws of a training step by experiment, restore everything, and return the result of each law.

    Args:
        model: Any nn.Module; a compiled one runs eagerly meanwhile.
        batch: Any tree of tensors whose first dimension is the sample.
        loss: `loss(model, batch)` does the whole forward pass. It returns a scalar tensor, an object with `loss` or
            `total`, or a sequence that begins with the loss. A loss of torch (nn.CrossEntropyLoss(),
            functional.mse_loss) is called as `loss(model(inputs), targets)` with a batch (inputs, targets).
        optimizer: One or several; None skips the check that weights move.
        loader: The DataLoader of the batch. Its items are read; it is not iterated. None takes the only DataLoader of
            the process with batches of this size.
        val_loader: The DataLoader of the validation; its items are read. None takes the only other DataLoader.
        factory: Returns a new model, or (model, optimizer), to find what a saved state lacks.
        scheduler: Scheduler of the learning rate; None takes that of the optimizer.
        seconds: Time limit of all laws together; laws that are skipped for time are named.

    Weights, gradients, requires_grad, buffers, attributes, hooks and modes of the modules, the optimizers, the batch
    and the random states are restored, also after an exception. Raises ConfigError if the model is not an nn.Module or
    the loss cannot be called.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError("Only a torch module can be checked", got=type(model).__name__, need="an nn.Module")
    if not callable(loss):
        need = "a function of (model, batch), or a loss of torch"
        raise ConfigError("The loss cannot be called", got=type(loss).__name__, need=need)
    if isinstance(model, nn.parallel.DistributedDataParallel):
        model = model.module  # the other ranks do not run along: an experiment must not wait for them
    began, graded = clock(), torch.is_grad_enabled()
    absent = [n for n, t in (*model.named_parameters(), *model.named_buffers()) if is_lazy(t) or t.is_meta]
    if absent:
        do = "Run one batch through the model first, or load the weights, and make the optimizer after that"
        result = broken("weights.absent", shortened_list(absent), "not initialised", "weights", do)
        return Report([replace(result, law="coverage")])
    optimizers = [] if optimizer is None else [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    loss = _with_targets(loss)
    observed = observe(model, batch, loss, optimizers)
    for law in LAWS:
        observed.add(law.name, *law.observe(observed))
    report = Report(observed.results, observed.loss, observed.norms, observed.stages)
    if not observed.complete:
        why = "; ".join(observed.unchecked) or "the step has no gradient"
        report.results += [Result("untested", why, law=law.name) for law in LAWS if not _is_broken(report, law.name)]
        return report
    report.results += [Result("untested", text, law="coverage") for text in observed.unchecked]
    torch.set_grad_enabled(True)
    step = Experiment(model, batch, loss, optimizers)
    loader_given, val_given = loader is not None, val_loader is not None
    if loader is None and (candidate := loader_of(step.rows)) is not None and data.may_have_made(step, candidate):
        loader = candidate
    val_loader = val_loader if val_loader is not None else other_loader(loader)
    size = getattr(loader, "batch_size", None)
    extras = Extras(loader, val_loader, factory, scheduler, size, loader_given, val_given)
    step.seconds = (clock() - began) / 6  # the observed step took about so many runs
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for law in LAWS:
                left = seconds - (clock() - began)
                if left <= 0 or law.runs * step.seconds > left:
                    answer = [Result("untested", f"skipped for time ({seconds:g} s); give more `seconds`")]
                else:
                    answer = list(_answers(law, step, extras))
                if _is_broken(report, law.name):
                    answer = [result for result in answer if result.state == "broken"]
                report.results += [replace(result, law=law.name) for result in answer]
                if step.dead:
                    break
    finally:
        wrong = step.close()
        torch.set_grad_enabled(graded)
    if observed.loss is not None and any(r.rule == splitting.MEAN for r in report.results):
        CHECKED[model] = observed.loss
    report.results += [Result("hint", f"not put back: {', '.join(wrong)}", law="experiment")] if wrong else []
    return report


def _with_targets(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Return a loss of (model, batch), also of a loss of (outputs, targets): one of torch, or a module."""
    module = getattr(loss, "__module__", "") or ""
    if isinstance(loss, nn.Module):
        with contextlib.suppress(TypeError, ValueError):  # a scripted one has no signature
            if next(iter(inspect.signature(loss.forward).parameters), "") in ("model", "net", "network", "module"):
                return loss
    elif not (module.startswith("torch.nn") or module == "torch._C._nn"):
        return loss

    def with_targets(model: nn.Module, batch: Any) -> Any:
        inputs, targets = batch
        return loss(model(inputs), targets)

    return with_targets


def _answers(law: Law, step: Experiment, extras: Extras) -> Iterator[Result]:
    """Yield what a law answers; what it cannot test, and an error of the step or of ocrlab, is an answer too."""
    try:
        yield from law.test(step, extras)
    except NotTestable as why:
        yield Result("untested", str(why))
    except Exception as error:
        step.dead = is_sticky(error)
        text = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
        yield Result("untested", f"the experiment raised {text}")


def _is_broken(report: Report, law: str) -> bool:
    return any(result.law == law and result.state in ("broken", "hint") for result in report.results)


check = check_step  # its name in ocrlab.trace.contract
