"""Targets that do not belong to their samples.

Classes that do not fit their integer type (300 becomes 44), samples and targets in different orders, noise that is not
the noise of the input, and a policy gradient with the wrong sign.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten

from ocrlab.debug.instruments.step_check.findings import Finding, error_of, is_readable
from ocrlab.debug.instruments.step_check.loss_checks import DISTANCES, arguments
from ocrlab.debug.instruments.step_check.state_guard import StepState

HOLDS = {torch.uint8: 256, torch.int8: 128}  # classes that a type can name
SPARE = 1.5  # times as many outputs may be a vocabulary of bytes with its special words, filled up
MANY = 16  # samples from which on it is no chance
APART = 0.25  # of the samples, which stand in another place

Pairs = Sequence[tuple[str, Tensor, Tensor]]  # place, logits, targets
DIFFERENCES = frozenset(("sub", "rsub", "subtract", "__sub__", "__rsub__"))
DRAWS = frozenset("randn randn_like rand rand_like normal normal_ uniform_".split())
ROWS = 4  # samples from which on a straight line is no chance
STRAIGHT = 0.99  # correlation from which on one is the other, but for a factor and a shift
SUMMED = 1e-2  # by which the probabilities of a row may miss 1


def check_narrow_targets(
    pairs: Sequence[tuple[str, Tensor, Tensor]], named: Sequence[tuple[str, Tensor]]
) -> Iterator[Finding]:
    """Yield targets that are a tensor of the batch in such a type; pairs of (place, logits, targets)."""
    for where, logits, targets in pairs:
        classes = logits.shape[1] if logits.ndim > 1 else 0
        for name, tensor in named:
            holds = HOLDS.get(tensor.dtype, 0)
            if not holds or classes <= SPARE * holds or tensor.numel() != targets.numel() or not is_readable(tensor):
                continue
            if targets.is_floating_point() or not bool((tensor.flatten().to(targets) == targets.flatten()).all()):
                continue
            kind = str(tensor.dtype).removeprefix("torch.")
            got = f"batch.{name} is {kind}, which ends at {holds - 1}, and there are {classes} classes"
            do = "Make the targets int64 where they are read: a class above that has wrapped around to another one"
            yield Finding("targets.narrow", where, got, "a type that can name every class", do)


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


class NoiseWatch(TorchFunctionMode):
    """While it is entered, draws are counted; `wanted` are those that predictions are compared with.

    `turned` is the number of a draw whose sign is turned.
    """

    def __init__(self, turned: int | None = None) -> None:
        super().__init__()
        self.turned, self.count = turned, 0
        self.draws: dict[int, tuple[Tensor, int, int]] = {}  # by id: a draw, its version and number
        self.wanted: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if func in DISTANCES:
            self._compared(*arguments(func, args, kwargs))
        elif name in DIFFERENCES and len(args) > 1:
            self._compared(args[0], args[1])
        value = func(*args, **kwargs)
        if name in DRAWS and isinstance(value, Tensor) and value.is_floating_point() and not value.is_inference():
            if self.count == self.turned:
                with torch._C.DisableTorchFunction():
                    value.neg_()
            self.draws[id(value)] = (value, value._version, self.count)
            self.count += 1
        return value

    def _compared(self, first: Any, second: Any) -> None:
        """Note a draw, as it was drawn, beside what a model predicts for it."""
        if isinstance(first, Tensor) and isinstance(second, Tensor) and first.shape == second.shape:
            for draw, rest in ((first, second), (second, first)):
                entry = self.draws.get(id(draw))
                if entry is not None and entry[0] is draw and entry[1] == draw._version and rest.requires_grad:
                    self.wanted.add(entry[2])


def check_noise_target(
    model: nn.Module, loss: Callable[[], Any], wanted: set[int], state: StepState
) -> Iterator[Finding]:
    """Yield noise that is to be predicted by a model whose input is the same without it."""
    before = _inputs(model, loss, None, state)
    for number in sorted(wanted) if before else ():
        after = _inputs(model, loss, number, state)
        if len(after) == len(before) and all(map(torch.equal, before, after)):
            got = "the noise that it is to predict is another than that which was added: its input is the same without"
            do = "Draw the noise once, and use the same tensor to make the input and as the target"
            yield Finding("target.noise", "the model's input", got, "an input made with the noise of the target", do)
            return


def _inputs(model: nn.Module, loss: Callable[[], Any], turned: int | None, state: StepState) -> list[Tensor]:
    """Return the tensors that the model's calls get while a loss is computed; [] where that raises."""
    inputs: list[Tensor] = []

    def enter(_module: nn.Module, args: Any, kwargs: Any) -> None:
        flat = tree_flatten((args, kwargs))[0]
        inputs.extend(t.detach().clone() for t in flat if isinstance(t, Tensor) and is_readable(t))

    state.restore_random()
    state.restore_batch()
    handle = model.register_forward_pre_hook(enter, with_kwargs=True)
    try:
        with NoiseWatch(turned):
            error = error_of(loss)
    finally:
        handle.remove()
    return inputs if error is None else []


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
