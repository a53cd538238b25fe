"""All laws of one training step, tested within some seconds.

print(ocrlab.check_step(model, batch, loss, optimizer))   # one line for each law, broken ones first
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ocrlab.debug.instruments.step_check import checker as observed
from ocrlab.debug.instruments.step_check.findings import is_sticky
from ocrlab.debug.laws import (
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
from ocrlab.debug.laws.law import Extras, Law, Report, Result
from ocrlab.debug.laws.live_objects import loader_of

LAWS = (  # the most telling first
    Law("coverage", coverage.test, 2),
    Law("resume", resume.test, 6),
    Law("transformations", transformations.test, 2),
    Law("progress", progress.test, 6),
    Law("mode", mode.test, 9),
    Law("data", data.test, 0),
    Law("sequences", sequences.test, 8),
    Law("independence", independence.test, 10),
    Law("splitting", splitting.test, 6),
    Law("precision", precision.test, 4),
    Law("schedule", schedule.test, 0),
)
OF_RULES = {  # whose law a rule of the observed step explains
    "coverage": "optimizer weights gradient",
    "progress": "loss step backward forward input softmax probabilities policy recurrent",
    "mode": "mode batchnorm eval",
    "independence": "answers inputs axes",
    "sequences": "target targets padding attention",
    "data": "batch boxes images indices dtype device shape format",
}


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
        optimizer: One or several; None does not check whether weights move.
        loader: The DataLoader of the batch. Its items are read; it is not iterated. None takes the only DataLoader of
            the process with batches of this size.
        val_loader: The DataLoader of the validation; its items are read.
        factory: Returns a new model, or (model, optimizer), to find what a saved state lacks.
        scheduler: Scheduler of the learning rate; None takes that of the optimizer.
        seconds: Time limit of all laws together; laws that are skipped for time are named.

    Weights, gradients, requires_grad, buffers, attributes, hooks and modes of the modules, the optimizers, the batch
    and the random states are as before, also after an exception. Raises ConfigError if the model is not an nn.Module or
    the loss cannot be called.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel):
        model = model.module  # the other ranks do not run along: an experiment must not wait for them
    began = clock()
    graded = torch.is_grad_enabled()
    step_report = observed.check(model, batch, loss, optimizer=optimizer)
    taken = clock() - began
    results = [*_explained(model, step_report)]
    report = Report(results, step_report.loss, step_report.norms, step_report.stages)
    stopped = step_report.loss is None or not step_report.norms
    dead = any("CUDA context is dead" in text for text in step_report.unchecked)
    optimizers = [] if optimizer is None else [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    if stopped or dead:
        why = "; ".join(step_report.unchecked) or "the step has no gradient"
        report.results += [Result("untested", why, law=law.name) for law in LAWS if not _broken(results, law.name)]
        return report
    torch.set_grad_enabled(True)
    step = Experiment(model, batch, observed.whole_loss(loss), optimizers)
    extras = Extras(loader if loader is not None else loader_of(step.rows), val_loader, factory, scheduler)
    extras = replace(extras, batch_size=getattr(extras.loader, "batch_size", None))
    step.seconds = taken / 8  # the observed step took about so many runs
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for law in LAWS:
                left = seconds - (clock() - began)
                if left <= 0 or law.runs * step.seconds > left:
                    answer = [Result("untested", f"skipped for time ({seconds:g} s); give more `seconds`")]
                else:
                    answer = list(_answers(law, step, extras))
                if _broken(results, law.name):
                    answer = [result for result in answer if result.state == "broken"]
                report.results += [replace(result, law=law.name) for result in answer]
                if step.dead:
                    break
    finally:
        wrong = step.close()
        torch.set_grad_enabled(graded)
    report.results += [Result("hint", f"not put back: {', '.join(wrong)}", law="experiment")] if wrong else []
    return report


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


def _broken(results: Sequence[Result], law: str) -> bool:
    return any(result.law == law and result.state in ("broken", "hint") for result in results)


def _explained(model: nn.Module, step_report: observed.Report) -> Iterator[Result]:
    """Yield the findings of the observed step as answers of the laws that they break.

    A part of the model beside which the same part is trained may be a target network, which is moved by assignment.
    """
    laws = {rule: law for law, rules in OF_RULES.items() for rule in rules.split()}
    absent = [f.where for f in step_report.findings if f.rule == "gradient.missing"]
    twins = tuple(_twins(model, absent))
    merged: dict[tuple[str, ...], list[str]] = {}
    for f in step_report.findings:
        if f.rule in ("optimizer.missing", "gradient.missing") and twins and f.where.startswith(twins):
            continue
        merged.setdefault((f.judgement, f.rule, f.got, f.need, f.do), []).append(f.where)
    for (judgement, rule, got, need, do), places in merged.items():
        where = ", ".join(places[:6]) + (f" and {len(places) - 6} more" if len(places) > 6 else "")
        law = laws.get(rule.partition(".")[0], "progress")
        yield Result("broken" if judgement == "fail" else "hint", got, where, need, fix=do, rule=rule, law=law)


def _twins(model: nn.Module, absent: Sequence[str]) -> list[str]:
    """Return the parts without a gradient beside which a part of the same class and shapes has one."""
    kinds = {n: (type(m), *(p.shape for p in m.parameters())) for n, m in model.named_children() if [*m.parameters()]}
    without = {name for name in kinds for place in absent if place.split(" ")[0].split(".")[0] == name}
    return [name for name in without if any(kinds[name] == kinds[other] for other in kinds if other not in without)]


check = check_step  # its name in ocrlab.trace.contract
