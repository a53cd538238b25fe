"""Which way a loss pushes what was chosen (actions): more likely where a tensor of the batch is large, or less."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ocrlab.debug.instruments.step_check.findings import Finding, is_readable

ROWS = 4  # samples from which on a straight line is no chance
STRAIGHT = 0.99  # correlation from which on one is the other, but for a factor and a shift
SUMMED = 1e-2  # by which the probabilities of a row may miss 1


class PickedLogProbs:
    """The logarithms of probabilities that a step picks out of all classes with `gather`."""

    def __init__(self) -> None:
        self.picked: list[Tensor] = []

    def see(self, source: Any, value: Any) -> None:
        """Keep what was picked, where the source holds logarithms of probabilities."""
        if not isinstance(value, Tensor) or not isinstance(source, Tensor) or not value.requires_grad or value.is_leaf:
            return
        if (
            source.ndim != 2
            or not is_readable(source)
            or not source.is_floating_point()
            or value.numel() != len(source)
        ):
            return
        with torch._C.DisableTorchFunction(), torch.no_grad():
            whole = bool(((source.float().exp().sum(-1) - 1).abs() < SUMMED).all())
        if whole:
            value.retain_grad()
            self.picked.append(value)

    def against(self, named: Sequence[tuple[str, Tensor]]) -> Iterator[Finding]:
        """Yield that the step makes less likely what has much of a tensor of the batch; after the backward pass."""
        for value in self.picked:
            if value.grad is None or value.numel() < ROWS:
                continue
            push = value.grad.detach().flatten().double()
            for name, tensor in named:
                if not tensor.is_floating_point() or tensor.numel() != push.numel() or not is_readable(tensor):
                    continue
                if correlation(push, tensor.detach().flatten().double().to(push.device)) > STRAIGHT:
                    got = f"the larger batch.{name} is, the less likely the step makes what was chosen with it"
                    do = f"If batch.{name} is a return, a reward or an advantage, put a minus sign before the loss:"
                    do += " -(log_prob * return).mean(). If it is a cost, nothing is wrong"
                    yield Finding("policy.sign", "the loss", got, "more of what was rewarded", do, "warn")
                    return


def correlation(first: Tensor, second: Tensor) -> float:
    """Return the correlation of two rows of numbers, 0 where one of them does not vary."""
    a, b = first - first.mean(), second - second.mean()
    size = float(a.norm() * b.norm())
    return float((a * b).sum()) / size if size > 0 else 0.0
