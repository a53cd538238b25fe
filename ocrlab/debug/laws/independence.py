"""Law 3: in eval mode a sample's output is its own, and the order of the samples changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ocrlab.debug.instruments.tensor_tree import dotted_tensors
from ocrlab.debug.laws.experiment import Experiment, NotTestable, distance, rebuilt, selected
from ocrlab.debug.laws.law import Extras
from ocrlab.debug.laws.result import Result, broken, holds


def test(step: Experiment, extras: Extras) -> Iterator[Result]:
    """Replace a sample and look at the others' outputs, then change the order of the samples and look at the loss."""
    n = step.rows
    if n < 2:
        raise NotTestable("the batch has no two samples along a common first dimension")
    if not certain(step, extras.batch_size):
        raise NotTestable("which dimension counts the samples is not clear; give `loader`")
    paired = _paired(step, n)
    if paired:
        yield paired
        return
    if any(isinstance(m, _BatchNorm) and m.running_mean is None for m in step.model.modules()):
        raise NotTestable("a BatchNorm keeps no running statistics: it takes those of the batch in eval mode too")
    if step.draws_numbers():
        raise NotTestable("the step draws random numbers in eval mode")
    first = step.run(training=False)
    if not any(len(t) == n for t in first.outputs if t.ndim):
        raise NotTestable("no output of the model has a row for each sample")
    other = step.run(selected(step.batch, [1, *range(1, n)], n), training=False)
    limit = step.rounding()
    for before, after in zip(first.outputs, other.outputs, strict=False):
        if before.ndim and len(before) == n == len(after) and before.shape == after.shape:
            apart = distance([before[1:]], [after[1:]])
            changed = (before[1:] != after[1:]).flatten(2) if before.ndim > 2 else before[1:] != after[1:]
            pairs = before.ndim > 1 and before.shape[1] >= n and not bool(changed[:, 1:].any())  # samples by samples
            if apart > limit and not pairs and distance([before[1:]], [before[:1].expand_as(before[1:])]) > 0:
                yield _mixed(step, before, after, apart)
                return
    timed = any(t.ndim == 1 and t.is_floating_point() for _, t in dotted_tensors(step.batch))  # rewards, in their order
    reached = None if timed else _order(step, first.loss, n)
    yield reached or holds(f"another sample changes no output of the rest of {n} samples, nor does their order")


def certain(step: Experiment, batch_size: int | None = None) -> bool:
    """Return whether the first dimension counts samples: labels of one number each, images, texts, or a loader."""
    tensors = [t for _, t in dotted_tensors(step.batch) if t.ndim]
    square = any(step.rows in t.shape[1:] for t in tensors)
    labels = any(t.ndim == 1 for t in tensors) and any(
        t.ndim >= 3 or (t.ndim == 2 and not t.is_floating_point()) for t in tensors
    )
    images = any(t.ndim == 4 and t.is_floating_point() for t in tensors)
    return not square and (labels or images or batch_size == step.rows)


def _mixed(step: Experiment, before: Tensor, after: Tensor, apart: float) -> Result:
    rows = ((before - after).reshape(len(before), -1).abs().amax(1) > 0).nonzero().flatten().tolist()
    row = next((i for i in rows if i), 1)
    layers = [name for name, m in step.model.named_modules() if getattr(m, "batch_first", True) is False]
    causes: tuple[str, ...] = (
        "a softmax, mean or norm over dimension 0",
        "view() where transpose() is meant",
        "statistics of the batch in eval mode (BatchNorm with track_running_stats=False)",
    )
    if layers:
        causes = (f"{layers[0]} takes its first dimension for time: batch_first is False", *causes)
    return broken(
        "independence.mixed",
        layers[0] if layers else "the model",
        f"another sample 0 changes the output of sample {row} in eval mode, by {apart:.2g} of its size",
        "outputs that are each sample's own",
        "Set batch_first=True" if layers else "Look at operations over dimension 0 in forward",
        *causes,
    )


def _order(step: Experiment, loss: float, n: int) -> Result | None:
    """Compare the loss in several orders, of which one at least keeps pairs, halves and neighbours together."""
    half = n // 2
    orders = {
        "reversed": [*range(n)][::-1],
        "halves": [*range(half, n), *range(half)] if n % 2 == 0 else [*range(n)],
        "rolled": [*range(2, n), 0, 1],
        "random": torch.randperm(n, generator=torch.Generator().manual_seed(1)).tolist(),
    }
    values = {name: step.run(selected(step.batch, order, n), training=False).loss for name, order in orders.items()}
    limit = step.rounding("loss")
    if all(distance(loss, value) > limit and value == value for value in values.values()) and n > 2:
        worst = max(values.values(), key=lambda value: abs(value - loss))
        got = f"the same {n} samples in another order give the loss {worst:.6g} in place of {loss:.6g}"
        do = "Look at every view, reshape and index between the batch and the loss"
        causes = (
            "inputs or targets are reordered without each other",
            "view() or reshape() where transpose() is meant",
        )
        return broken("independence.order", "the loss", got, "a loss that does not depend on the order", do, *causes)
    return None


def _paired(step: Experiment, n: int) -> Result | None:
    """Change the input, then the target of a sample, and look whether they act on the same row of the output."""
    first = step.run(gradients=True, training=False)
    read = [t for call in first.inputs for t in call]
    names = [
        name
        for name, t in dotted_tensors(step.batch)
        if t.ndim == 1 and len(t) == n and t.unique().numel() > 1 and not any(t.shape == r.shape for r in read)
    ]
    pushes = [i for i, t in enumerate(first.pushes) if t is not None and t.ndim and len(t) == n]
    if not names or len(pushes) != 1 or len(first.pushes) != len(first.outputs) or n < 4:
        return None
    which, strays = pushes[0], []
    for sample in (0, n // 2):

        def change(name: str, t: Tensor, targets: bool, at: int = sample) -> Tensor:
            if (name in names) is targets and t.ndim and len(t) == n:
                t = t.clone()
                t[at] = t[(t != t[at]).reshape(n, -1).any(1).to(torch.uint8).argmax()]
            return t

        rows = []
        for targets in (False, True):
            batch = rebuilt(step.batch, lambda name, t, targets=targets: change(name, t, targets))  # type: ignore[misc]
            other = step.run(batch, gradients=True, training=False)
            pair = [(run.pushes if targets else run.outputs)[which] for run in (first, other)]
            if pair[0] is None or pair[1] is None or pair[0].shape != pair[1].shape:
                return None
            moved = (pair[0] - pair[1]).reshape(n, -1).abs().amax(1)
            rows.append({row for row, size in enumerate(moved.tolist()) if size})
        strays += [(sample, *map(min, rows))] if all(rows) and not rows[0] & rows[1] else []
    if len(strays) < 2:
        return None
    sample, row, other_row = strays[0]
    return broken(
        "targets.order",
        ", ".join(f"batch.{name}" for name in names),
        f"sample {sample} is answered in row {row} of the output, and its target acts on row {other_row}",
        "targets beside their samples",
        "Draw the order once and take both by it: x[order], y[order]",
        "inputs are shuffled or mixed without their targets, or the reverse",
        "the targets are sorted or filtered",
    )
