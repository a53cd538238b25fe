"""The loss functions of torch, looked at as a step calls them: what comes in, what is compared, which way it is pushed.

Nothing here raises by itself: such a step runs to its end, and trains what nobody meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ocrlab.trace.contract_batch import Finding, plain

FEW = 8  # samples whose targets may well be equal by chance: pages without text
SQUASHED = {"SoftmaxBackward0": "softmax", "SigmoidBackward0": "sigmoid"}
BOUNDS = {  # the values that the last function of a model can reach
    "SoftmaxBackward0": ("softmax", 0.0, 1.0),
    "SigmoidBackward0": ("sigmoid", 0.0, 1.0),
    "TanhBackward0": ("tanh", -1.0, 1.0),
    "ReluBackward0": ("ReLU", 0.0, float("inf")),
}
PASSING = ("View", "Reshape", "UnsafeView", "Squeeze", "Unsqueeze", "Permute", "Transpose", "T", "Slice", "Select")
CLASSES = (functional.cross_entropy, functional.nll_loss)
LOGITS = (functional.cross_entropy, functional.binary_cross_entropy_with_logits)
DISTANCES = (functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.huber_loss)
LOSSES = (*CLASSES, *DISTANCES, functional.binary_cross_entropy, functional.binary_cross_entropy_with_logits)


@dataclass
class Losses:
    """What is noted of each loss function of torch that a step calls; `place` says in which module that is."""

    found: list[Finding]
    place: Callable[[], str]

    def __post_init__(self) -> None:
        self.made: list[tuple[str, Tensor]] = []

    def before(self, function: Any, args: tuple[Any, ...], named: dict[str, Any], *, meant: bool) -> None:
        """Look at what a loss function is about to compare; `meant`: its targets were made of one value."""
        given = dict(zip(("input", "target"), args, strict=False)) | named
        input, target = given.get("input"), given.get("target")
        if isinstance(input, Tensor) and isinstance(target, Tensor) and plain(input) and plain(target):
            with torch._C.DisableTorchFunction(), torch.no_grad():
                ignored = named.get("ignore_index", -100) if function in CLASSES else None
                for rule in (_squashed(function, input), _sizes(function, input, target), _reach(input, target)):
                    self.found += [_at(one, f"{self.place()}, {function.__name__}") for one in rule]
                self.found += [
                    _at(one, f"{self.place()}, target of {function.__name__}")
                    for one in (() if meant else _same(target, ignored))
                ]

    def after(self, function: Any, value: Any) -> None:
        """Keep what a loss function returned, to see how the backward pass pushes it."""
        if isinstance(value, Tensor) and value.requires_grad and not value.is_leaf:
            value.retain_grad()
            self.made.append((f"{self.place()}, {function.__name__}", value))

    def pushed(self) -> Iterator[Finding]:
        """Yield the losses that the step makes larger; to be asked after the backward pass."""
        for where, value in self.made:
            if value.grad is not None and bool((value.grad < 0).any()) and not bool((value.grad > 0).any()):
                do = "Remove the minus sign; it is right only where something is to be unlearned"
                got = "it enters the loss with a minus sign, so that each step makes it larger"
                yield Finding("loss.sign", where, got, "a plus sign", do, "warn")


def _at(finding: tuple[str, str, str, str], where: str) -> Finding:
    rule, got, need, do = finding
    return Finding(rule, where, got, need, do, "warn" if rule == "targets.constant" else "fail")


def _squashed(function: Any, input: Tensor) -> Iterator[tuple[str, str, str, str]]:
    """Tell of a softmax or sigmoid before a loss that makes its own."""
    last = maker(input)
    if function in LOGITS and last in SQUASHED:
        name = SQUASHED[last]
        got = f"its input comes from a {name}, and it makes its own: gradients are small, and no output can be sure"
        yield "loss.twice", got, "logits", f"Take the {name} out of the model's forward, and use it only to predict"
    if function is functional.nll_loss and (last in SQUASHED or bool((input > 0).any())):
        got = f"its input holds {float(input.max()):g}: no logarithm of a probability is above 0"
        got = f"its input comes from a {SQUASHED[last]}, without a logarithm" if last in SQUASHED else got
        yield "loss.logarithm", got, "log_softmax", "Use cross_entropy on the model's logits"


def _sizes(function: Any, input: Tensor, target: Tensor) -> Iterator[tuple[str, str, str, str]]:
    if function in DISTANCES and input.shape != target.shape:
        both = torch.broadcast_shapes(input.shape, target.shape)
        got = f"{tuple(input.shape)} against {tuple(target.shape)}, which compares all with all in {tuple(both)}"
        yield "loss.broadcast", got, "the same shape", "Use .squeeze(-1) or .unsqueeze(-1) on one of them"


def _reach(input: Tensor, target: Tensor) -> Iterator[tuple[str, str, str, str]]:
    """Tell of targets that the last function of the model cannot give."""
    last = maker(input)
    if last not in BOUNDS or not target.is_floating_point():
        return
    name, low, high = BOUNDS[last]
    least, most = float(target.min()), float(target.max())
    if least < low - 1e-4 or most > high + 1e-4:
        got = f"targets from {least:g} to {most:g}, and the model ends with a {name}, which gives {low:g} to {high:g}"
        yield "targets.reach", got, "targets that the model can give", "Scale the targets, or take that function out"


def _same(target: Tensor, ignored: int | None) -> Iterator[tuple[str, str, str, str]]:
    values = target if ignored is None or target.is_floating_point() else target[target != ignored]
    if values.numel() == 0:
        yield "targets.constant", "every one is ignored", "some that count", "Look at how the targets are made"
    elif target.ndim and len(target) >= FEW and bool((values == values.flatten()[0]).all()):
        got = f"all {values.numel()} are {values.flatten()[0].item():g}"
        do = "Look at the file or the mask that they are read from, at an integer type that cuts 0.9 to 0, and whether"
        do += " the loader shuffles; if it is only this batch, nothing is wrong"
        yield "targets.constant", got, "targets that differ", do


def maker(tensor: Tensor) -> str:
    """Return the name of the function that made a tensor's values in the graph, past what only changes its shape."""
    node: Any = tensor.grad_fn
    for _ in range(8):
        name = node.name() if node is not None else ""
        if name.removesuffix("0").removesuffix("1").removesuffix("Backward") not in PASSING:
            return name
        node = node.next_functions[0][0]
    return ""
