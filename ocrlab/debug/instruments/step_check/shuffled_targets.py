"""Samples and targets in different orders: one of them was shuffled by the step itself, and the other was not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from ocrlab.debug.instruments.step_check.findings import Finding, is_readable

MANY = 16  # samples from which on it is no chance
APART = 0.25  # of the samples, which stand in another place

Pairs = Sequence[tuple[str, Tensor, Tensor]]  # place, logits, targets


def check_target_order(
    pairs: Pairs,
    calls: Sequence[tuple[list[Tensor], bool]],
    outputs: Sequence[Tensor],
    named: Sequence[tuple[str, Tensor]],
) -> Iterator[Finding]:
    """Yield that classes are compared with the answers to other samples; `calls` and what they `given` of the model.

    Asked only where one loss compares what the model returned with one class a sample: mixup has two.
    """
    if len(pairs) != 1 or len(calls) != 1 or len(calls[0][0]) != 1:
        return
    where, logits, targets = pairs[0]
    inputs = calls[0][0][0]
    if targets.ndim != 1 or targets.is_floating_point() or len(targets) < MANY or not any(logits is t for t in outputs):
        return
    orders = [order for tensor in (inputs, targets) if (order := _order(tensor, named)) is not None]
    if len(orders) != 2 or orders[0][1] == orders[1][1]:
        return
    what = "model's input" if orders[0][1] else "targets"
    name = orders[0][0] if orders[0][1] else orders[1][0]
    got = f"the {what} are batch.{name} in another order, and what they are compared with is not"
    do = "Draw the order once and take both by it: x[order], y[order]"
    yield Finding(
        "targets.order", where, got.replace("input are", "input is"), "samples beside their targets", do, "warn"
    )


def _order(tensor: Tensor, named: Sequence[tuple[str, Tensor]]) -> tuple[str, bool] | None:
    """Return of which tensor of a batch these are the rows, and whether in another order; None for of none."""
    moved = None
    for name, whole in named:
        if whole.shape != tensor.shape or whole.dtype != tensor.dtype or not is_readable(whole):
            continue
        a, b = (t.detach().to(tensor.device).reshape(len(t), -1).double().sum(1) for t in (tensor, whole))
        if bool((a == b).all()):
            return name, False
        if float((a != b).float().mean()) > APART and bool((a.sort()[0] == b.sort()[0]).all()):
            moved = (name, True)
    return moved
