"""From the statistics of a training to its findings: what happened, what it means, what to do."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ocrlab.debug.laws.result import Result
from ocrlab.debug.laws.tensor_checks import listing

MODES = (_BatchNorm, _DropoutNd)  # what is another thing in eval mode
ENOUGH = 4  # steps, or inspected steps, that are needed for a finding: fewer may be a test
LONG = 20  # losses that are the same to the last bit
HALF = 0.5  # of all steps with a learning rate of 0
FAINT, LOW = 1e-6, 0.9e-3  # of the largest learning rate; a thousandth is where schedules by tenths end
WARMED = 50  # steps from which on a warm-up should have ended
NOTHING = 1e-7  # relative change of weights in a step that does nothing: float32 resolves 6e-8
ROSE = (3.0, 1.0)  # times, and by how much, the loss at the end is above that of the beginning
FEW = 32  # samples whose targets may well be equal by chance: pages without text
MOSTLY = 0.6  # of the looks: where sorted data passes to its next class, a batch holds two
REPLAY = "`ocrlab replay` on this folder names the operator"


@dataclass
class InspectedStep:
    """One inspected step: trainable parameters, those of the optimizer, norms of gradients, what moved."""

    trainable: set[str]
    owned: set[str] = field(default_factory=set)
    norms: dict[str, float] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)
    change: float = 0.0  # of all weights, relative to their size


@dataclass
class TrainingStats:
    """The statistics of a training."""

    batches: int = 0
    looks: int = 0
    losses: int = 0
    steps: int = 0
    bare: int = 0  # steps that found no gradient at all
    unrated: int = 0  # steps with a learning rate of 0, since the last one with another
    players: int = 1  # optimizers: with two, a loss may well rise
    faint: int = 0  # steps with less than a millionth of the largest learning rate
    peak: float = 0.0  # the largest learning rate
    rate: float = 0.0  # the last one
    initial: float = 0.0  # the one that a schedule was given
    low: int = 0  # steps with less than a thousandth of the largest learning rate
    rises: int = 0
    zeroed: int = 0  # looks in which a gradient arrived, and was 0 in the step
    followed: int = 0  # batches whose gradient was looked at again at the next one, and thrown: it was another one
    thrown: int = 0
    trained: int = 0  # steps in train mode
    evaled: int = 0  # steps in eval mode, after the first one in train mode
    workers: int = 0
    hidden: list[Result] = field(default_factory=list)  # modules in plain lists
    same: int = 0  # losses that were as the one before, to the last bit
    last: float = math.nan
    lost: int = 0  # the batch of the first loss that is not finite
    before_lost: float = math.nan  # the loss before that one
    stale: int = 0  # looks in which backward added to the gradients of the step before
    fresh: int = 0
    several: int = 0  # looks in which a step had several backward passes
    cleared: int = 0  # those in which the gradient of one was set to 0 before the next
    validated_training: int = 0
    first_losses: list[float] = field(default_factory=list)
    last_losses: deque[float] = field(default_factory=lambda: deque(maxlen=8))
    inspected: list[InspectedStep] = field(default_factory=list)
    contents: list[tuple[Any, ...]] = field(default_factory=list)
    alike: int = 0  # looks in which all samples of the batch were the same
    rows: int = 0
    compared: int = 0  # samples of the looks whose targets were compared
    constant: list[float | None] = field(default_factory=list)  # the one value of the targets of a look
    standing: dict[Result, int] = field(default_factory=dict)  # wrong modes and the like, and in how many looks
    broken: str = ""  # the first batch with a value that is not finite
    checks: dict[str, str] = field(default_factory=dict)  # findings of the checks with hooks, by their name
    weights: dict[int, int] = field(default_factory=dict)
    left: dict[str, float] = field(default_factory=dict)  # norms of the gradients that are there at the end
    averages: list[str] = field(default_factory=list)  # what never changed
    owned: set[str] | None = None  # parameters that an optimizer holds
    copied: set[str] = field(default_factory=set)  # parameters of parts that assignment may move
    larger: bool = False  # the loader has more samples than one batch
    walks: list[tuple[int, int | None]] = field(default_factory=list)  # batches that were taken, those that there are
    ended: str = ""  # where the program ended itself in the middle
    scaler: bool = False


def sentences(stats: TrainingStats, model: nn.Module) -> list[str]:
    """Return the findings, causes before their consequences; none for a training that does what it should."""
    first = [stats.ended] if stats.ended else []
    if not stats.batches:
        if stats.walks or not stats.ended:
            walks = f"{len(stats.walks)} walks over the loader gave" if stats.walks else "the training got"
            length = stats.walks[0][1] if stats.walks else None
            size = "" if length is None else f" (len(loader) is {length})"
            first.append(
                f"no batch was trained on: {walks} none{size}. Look at the path of the data, at filters, and at "
                "drop_last with fewer samples than a batch"
            )
        return first
    if stats.broken:
        first.append(f"{stats.broken}. Correct or remove this sample: nan_to_num or skipping the step only hides it")
    root = [*_steps(stats, model), *_rates(stats), *_of_checks(stats, "grad scaler", "average")]
    rest = [*_weights(stats, model), *_modes(stats), *_data(stats), *_losses(stats)]
    return [*first, *root, *rest]


def _of_checks(stats: TrainingStats, *names: str) -> list[str]:
    return [stats.checks[name] for name in names if stats.checks.get(name)]


def _steps(stats: TrainingStats, model: nn.Module) -> Iterator[str]:
    """Yield findings about missing steps and gradients."""
    if stats.batches >= ENOUGH and not stats.steps and stats.owned is not None:
        yield _stepless(stats)
    elif stats.steps >= ENOUGH and stats.bare == stats.steps and stats.owned:
        why = "zero_grad() is called between backward() and step(), or step() before backward()"
        if not stats.left:
            why += ", or backward() is missing, or the loss is a new tensor (torch.tensor, .item())"
        yield f"none of {stats.steps} optimizer steps found a gradient: {why}. Order: zero_grad, backward, step"
    if stats.steps >= ENOUGH and stats.stale >= 2 and not stats.fresh:
        sizes = [math.hypot(*step.norms.values()) for step in stats.inspected if step.norms]
        grew = f"; the norm of all gradients went from {sizes[0]:.3g} to {sizes[-1]:.3g}" if len(sizes) > 1 else ""
        yield (
            f"gradients are never set to zero: in {stats.stale} of {stats.stale} inspected steps backward added to "
            f"those of the step before{grew}. Call optimizer.zero_grad() after each step"
        )
    if stats.cleared >= 2 and stats.cleared == stats.several:
        yield (
            f"zero_grad() is called between two backward passes of one step, in all {stats.cleared} inspected steps:"
            " the gradients of the first are thrown away and nothing is learned from its part of the loss. Call it"
            " once, before the first backward"
        )
    if stats.zeroed >= 2 and stats.zeroed == stats.stale + stats.fresh:
        yield (
            f"all gradients were 0 when the optimizer stepped, in all {stats.zeroed} inspected steps: zero_grad()"
            " is called between backward() and step(). Order: zero_grad, backward, step"
        )
    if stats.steps and stats.batches >= LONG and stats.thrown > HALF * stats.followed:
        yield (
            f"in {stats.thrown} of {stats.followed} batches zero_grad() threw a gradient away that no step had used:"
            f" {stats.steps} steps were made. Is optimizer.step() outside of the loop over the batches?"
        )


def _rates(stats: TrainingStats) -> Iterator[str]:
    """Yield findings about the learning rate."""
    if stats.unrated >= ENOUGH and stats.unrated >= HALF * stats.steps:
        which = "all" if stats.unrated == stats.steps else f"the last {stats.unrated} of"
        yield (
            f"the learning rate was 0 in {which} {stats.steps} steps: nothing moved. Look at the schedule: is it"
            " stepped once a batch and made for epochs, or does it divide whole numbers?"
        )
    if stats.faint >= ENOUGH and stats.faint > HALF * stats.steps:
        yield (
            f"the learning rate was below a millionth of its largest ({stats.peak:g}) in {stats.faint} of {stats.steps}"
            f" steps, {stats.rate:.3g} in the last. Look at its schedule: is it stepped once a batch, made for epochs?"
        )
    elif stats.low >= LONG and stats.low > HALF * stats.steps:
        yield (
            f"the learning rate was below a thousandth of its largest ({stats.peak:g}) in {stats.low} of {stats.steps}"
            f" steps, {stats.rate:.3g} in the last: most of the training moved next to nothing. Is its schedule stepped"
            " once a batch, and made for epochs?"
        )
    rising = stats.rises >= 2 and stats.rate == stats.peak
    if stats.steps >= WARMED and rising and stats.rate < HALF * stats.initial:
        yield (
            f"the learning rate was still rising when the training ended, at {stats.rate:.3g} of {stats.initial:g}: its"
            " warm-up is longer than the training. Is it counted in batches, and the schedule stepped once an epoch?"
        )


def _stepless(stats: TrainingStats) -> str:
    broken = [name for name, norm in stats.left.items() if not math.isfinite(norm)]
    if broken:
        skips = "GradScaler skips each such step" if stats.scaler else "such steps are skipped"
        return (
            f"no optimizer step was made in {stats.batches} batches: the gradient of {', '.join(broken[:4])} is not "
            f"finite, and {skips}. Look for a square root, logarithm or division at 0 after it"
        )
    if not stats.losses and not stats.left:
        return (
            f"{stats.batches} batches were taken and none was trained on: no loss, no gradient, no optimizer"
            " step. Look for an `except` that swallows the error of each step, or a `continue` before the work"
        )
    gradients = "backward() has left gradients" if stats.left else "no gradient is there"
    return (
        f"no optimizer step was made in {stats.batches} batches ({gradients}). Is optimizer.step() missing, or"
        " does it wait for more batches than an epoch has?"
    )


def _weights(stats: TrainingStats, model: nn.Module) -> Iterator[str]:
    """Yield findings about parameters that no step moves."""
    steps = [step for step in stats.inspected if step.norms]
    if stats.steps and stats.owned is not None and len(stats.inspected) >= 2:
        trainable = set.union(*(step.trainable for step in stats.inspected))
        outside = sorted(trainable - stats.owned - stats.copied)
        if not stats.owned:
            yield (
                "the optimizer holds none of the model's parameters: it moves those of another one. Make it from the "
                "parameters that the model has now"
            )
        elif outside:
            yield (
                f"{listing(model, _ordered(model, outside))}: trainable, and in no group of the optimizer, so it never "
                "moves. Make the optimizer from the parameters that the model has now, or freeze it"
            )
        reached = {name for step in steps for name in step.norms}
        without = sorted((trainable & stats.owned) - reached)
        if without and reached:
            yield (
                f"{listing(model, _ordered(model, without))}: no gradient in {len(stats.inspected)} inspected steps."
                " Look for detach(), no_grad() or an output that the loss does not use"
            )
    if len(steps) < 2:
        return
    flat = {n for n in set.union(*(set(s.norms) for s in steps)) if all(s.norms.get(n) == 0 for s in steps)}
    alive = {n.removesuffix("weight") for s in steps for n, norm in s.norms.items() if norm > 0}
    flat -= {n for n in flat if n.endswith("bias") and n.removesuffix("bias") in alive}  # two branches cancel it
    if flat and not stats.zeroed:
        yield (
            f"{listing(model, _ordered(model, flat))}: its gradient is exactly 0 in all {len(steps)} inspected steps."
            " Look for units that are dead (ReLU never above 0) or saturated, and for masks of zeros"
        )
    pushed = {n for s in steps for n, norm in s.norms.items() if n in s.owned and norm > 0 and math.isfinite(norm)}
    moved = {name for step in steps for name in step.moved}
    most = max(step.change for step in steps)
    if pushed and (not moved & pushed or most < NOTHING):
        norm = max(math.hypot(*step.norms.values()) for step in steps)
        kinds = sorted({str(p.dtype).removeprefix("torch.") for n, p in model.named_parameters() if n in pushed})
        how = "change no weight" if not moved & pushed else f"change weights by at most {most:.1g} of their size"
        yield (
            f"steps {how}, in all {len(steps)} inspected ones: gradients of norm {norm:.3g} at most, weights in "
            f"{', '.join(kinds)}. Look at the learning rate, at the limit of gradient clipping, and for bfloat16 or "
            "float16 weights in which small updates are lost"
        )
    for name in stats.averages if stats.steps >= ENOUGH and moved else ():
        yield (
            f"{name} never changed while the model did: is its update (update_parameters) called, and is it what is "
            "validated?"
        )


def _ordered(model: nn.Module, names: Iterable[str]) -> list[str]:
    wanted = set(names)
    return [name for name, _ in model.named_parameters() if name in wanted]


def _modes(stats: TrainingStats) -> Iterator[str]:
    """Yield findings about train and eval mode, and rules violated in every inspected step."""
    looks = len(stats.inspected)
    if stats.evaled >= ENOUGH:
        yield (
            f"{stats.trained} steps were made in train mode and {stats.evaled} in eval mode, after the first of them:"
            " no dropout, and BatchNorm that learns nothing. Call model.train() again after each validation"
        )
    for finding in stats.hidden:
        yield f"{finding.where}: {finding.got}. {finding.do}"
    for finding, count in stats.standing.items():
        if looks >= 2 and count == looks:
            yield f"{finding.where}: {finding.got}, in all {looks} inspected steps. {finding.do}"
    if stats.validated_training:
        yield (
            f"the model was in train mode in {stats.validated_training} validation batches: dropout was on, BatchNorm "
            "learned from the validation pages. Call model.eval() before, and model.train() after"
        )


def _data(stats: TrainingStats) -> Iterator[str]:
    """Yield findings about the inspected batches."""
    if stats.looks >= ENOUGH and stats.larger and len(set(stats.contents)) == 1 and stats.contents[0]:
        yield (
            f"the same batch, to the last bit, in all {stats.looks} inspected steps, though the loader has more "
            "samples than one batch. Look for next(iter(loader)) in the loop, a fixed index, or a forgotten "
            "overfit_batches"
        )
    if stats.looks >= ENOUGH and stats.alike == stats.looks:
        yield (
            f"all {stats.rows} samples of a batch were the same, in all {stats.looks} inspected steps. Look at"
            " __getitem__: does it use its index? A buffer of observations needs copies (observation.copy()) of an"
            " array that changes in place"
        )
    yield from _of_checks(stats, "weight reset", "coverage", *([] if stats.alike else ["answers"]), "scales")
    values = stats.constant
    constants = [value for value in values if value is not None]
    if len(values) >= ENOUGH and stats.compared >= FEW and len(constants) >= MOSTLY * len(values):
        if len(set(constants)) == 1 and len(constants) == len(values):
            yield (
                f"every target was {constants[0]:g} in all {len(values)} inspected batches. Look at the file that they"
                " come from, and for an integer type that cuts 0.9 to 0"
            )
        elif len(set(constants)) > 1:
            yield (
                f"{len(constants)} of {len(values)} inspected batches held targets of one value only,"
                " and not all the same: the data is sorted and not shuffled. Use DataLoader(shuffle=True)"
            )
    early, workers = stats.contents[:4], stats.workers  # the first batches of the workers come in turn
    agree = workers >= 2 and len(early) == 4 and len(set(early[:workers])) == 1 and len(set(stats.contents)) > 1
    if agree and early[0] and (workers > 2 or early[2] == early[3]):
        yield (
            f"the {stats.workers} workers of the loader gave the same batches, to the last bit: they draw the same"
            " random numbers, or each walks over all of an iterable data set. Look at worker_init_fn, get_worker_info()"
        )
    whole = [size for _, size in stats.walks]
    if len(stats.walks) >= 3 and all(size is not None and taken <= 1 < size for taken, size in stats.walks):
        yield (
            f"each of {len(stats.walks)} walks over the loader was left after its first batch, of {whole[0]}."
            " Look for a `break` that was left in, or next(iter(loader)) in the loop"
        )


def _losses(stats: TrainingStats) -> Iterator[str]:
    if not stats.checks.get("answers"):
        yield from _of_checks(stats, "constant baseline")
    learned = stats.last == 0 and any(stats.first_losses)
    if stats.same >= LONG and not learned:
        yield (
            f"the last {stats.same + 1} losses were {stats.last:g}, the same to the last bit: what is computed"
            " does not change. Look at units that are dead or saturated, and whether the loss uses the prediction"
        )
    if stats.lost and not math.isfinite(stats.last):
        yield _nonfinite_text(stats)
    if stats.losses < 2 * len(stats.first_losses) or not stats.first_losses:
        return
    first, last = (sum(row) / len(row) for row in (stats.first_losses, stats.last_losses))
    times, more = ROSE
    if stats.players <= 1 and math.isfinite(last) and last > first + more and last > times * abs(first):
        yield f"the loss rose from {first:.4g} to {last:.4g}: the learning rate may be too large, or a sign is wrong"


def _nonfinite_text(stats: TrainingStats) -> str:
    """Return the finding for a last loss that is not finite, with the advice that fits the losses before it.

    Before the very first loss no step was made, so that no learning rate can be to blame.
    """
    losses, before = stats.first_losses, stats.before_lost
    if losses and not math.isfinite(losses[0]):
        what = f"the loss is {stats.last:g}, from the first batch on"
        look = (
            "no optimizer step came before it, so the learning rate is not to blame. Look at the values of the batch"
            " and of the initial weights, and for a logarithm, root or division at 0"
        )
    else:
        what = f"the loss is {stats.last:g} from batch {stats.lost} of {stats.batches} on, so it learns nothing more"
        grew = bool(losses) and abs(before) > ROSE[0] * abs(losses[0]) + ROSE[1]
        look = (
            f"it had grown from {losses[0]:.4g} to {before:.4g}: try a smaller learning rate, or clip gradients"
            if grew
            else f"it was {before:.4g} just before, and had not grown: look at this batch, and for a logarithm, root "
            "or division at 0"
        )
    return f"{what}: that batch contains NaN or infinity" if stats.broken else f"{what}; {look}. {REPLAY}"
