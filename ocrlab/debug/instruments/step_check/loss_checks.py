"""The loss functions of torch as a step calls them: what comes in, what is compared, which way it is pushed.

Nothing here raises by itself: such a step runs to its end, and trains what nobody meant. The same is true for a part of
a loss through which no gradient can flow, such as a Dice of thresholded predictions beside a cross entropy. What was
cut off on purpose, by detach() or no_grad(), is let alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ocrlab.debug.instruments.step_check.findings import Finding, is_readable

FEW = 8  # samples whose targets may well be equal by chance: pages without text
SQUASHED = {"SoftmaxBackward0": "softmax", "SigmoidBackward0": "sigmoid"}
CUT = {  # functions after which logits are not free
    "ReluBackward0": ("ReLU", "no class can be below 0, and where it gives 0 no gradient passes"),
    "TanhBackward0": ("tanh", "all lie between -1 and 1, so that no class can be sure"),
}
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
PLAIN = (*CLASSES, *DISTANCES, functional.binary_cross_entropy, functional.binary_cross_entropy_with_logits)
LOSSES = (*PLAIN, functional.ctc_loss, functional.kl_div)
ARGUMENTS = {functional.ctc_loss: ("log_probs", "targets")}  # of all others: input, target
WARNED = ("targets.constant", "loss.logits")  # may be meant
SUMMED = 1e-2  # deviation from 1 of the sum of a row's probabilities: half precision
CUTS = frozenset("gt ge lt le eq ne greater greater_equal less less_equal not_equal isclose".split())
CUTS |= {f"__{name}__" for name in CUTS} | frozenset("argmax argmin argsort bool int long short byte".split())
FLAT = frozenset("round round_ sign sign_ sgn floor floor_ ceil ceil_ trunc trunc_ heaviside".split())  # derivative 0
SUMS = frozenset("add add_ __add__ __radd__ __iadd__ sub __sub__ __rsub__ stack".split())
NODES = 4096  # of a loss's graph, from its end, in which a sum is looked for


@dataclass
class LossWatch:
    """What is noted of each loss function of torch that a step calls; `place` says in which module that is."""

    findings: list[Finding]
    place: Callable[[], str]

    def __post_init__(self) -> None:
        self.values: list[tuple[str, Tensor]] = []

    def before(self, function: Any, args: tuple[Any, ...], named: dict[str, Any], *, meant: bool) -> None:
        """Look at what a loss function is about to compare; `meant`: its targets were made of one value."""
        input, target = arguments(function, args, named)
        if not isinstance(input, Tensor) or not isinstance(target, Tensor):
            return
        if not is_readable(input) or not is_readable(target):
            return
        with torch._C.DisableTorchFunction(), torch.no_grad():
            ignored = named.get("ignore_index", -100) if function in CLASSES else None
            rules = (_squashed(function, input), _sizes(function, input, target), _reach(input, target))
            for rule in (*rules, _logarithms(function, input, target, named), () if meant else _same(target, ignored)):
                self.findings += [_at(violation, f"{self.place()}, {function.__name__}") for violation in rule]

    def after(self, function: Any, value: Any) -> None:
        """Keep what a loss function returned, to see how the backward pass pushes it."""
        if isinstance(value, Tensor) and value.requires_grad and not value.is_leaf:
            value.retain_grad()
            self.values.append((f"{self.place()}, {function.__name__}", value))

    def pushed(self) -> Iterator[Finding]:
        """Yield the losses that the step makes larger; to be asked after the backward pass."""
        for where, value in self.values:
            if value.grad is not None and bool((value.grad < 0).any()) and not bool((value.grad > 0).any()):
                do = "Remove the minus sign; it is right only where something is to be unlearned"
                got = "it enters the loss with a minus sign, so that each step makes it larger"
                yield Finding("loss.sign", where, got, "a plus sign", do, "warn")


def _at(finding: tuple[str, str, str, str], where: str) -> Finding:
    rule, got, need, do = finding
    return Finding(rule, where, got, need, do, "warn" if rule in WARNED else "fail")


def arguments(function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
    """Return what a loss function of torch compares: predictions and targets, None where it was not given one."""
    first, second = ARGUMENTS.get(function, ("input", "target"))
    values = dict(zip((first, second), args, strict=False)) | named
    return values.get(first), values.get(second)


def _squashed(function: Any, input: Tensor) -> Iterator[tuple[str, str, str, str]]:
    """Report a softmax or sigmoid before a loss that makes its own."""
    last = maker(input)
    if function in LOGITS and last in SQUASHED:
        name = SQUASHED[last]
        got = f"its input comes from a {name}, and it makes its own: gradients are small, and no output can be sure"
        yield "loss.twice", got, "logits", f"Take the {name} out of the model's forward, and use it only to predict"
    if function in LOGITS and last in CUT:
        name, what = CUT[last]
        got = f"its input comes from a {name}: {what}"
        yield "loss.logits", got, "logits of any size", f"Take the {name} after the last layer out: logits need none"
    if function is functional.nll_loss and (last in SQUASHED or bool((input > 0).any())):
        got = f"its input holds {float(input.max()):g}: no logarithm of a probability is above 0"
        got = f"its input comes from a {SQUASHED[last]}, without a logarithm" if last in SQUASHED else got
        yield "loss.logarithm", got, "log_softmax", "Use cross_entropy on the model's logits"


def _logarithms(
    function: Any, input: Tensor, target: Tensor, named: dict[str, Any]
) -> Iterator[tuple[str, str, str, str]]:
    """Report probabilities or logits where a loss needs the logarithms of probabilities."""
    last = maker(input)
    if function is functional.ctc_loss and input.ndim >= 2:
        sums = input.float().exp().sum(-1).flatten()
        sums = sums[(input != 0).any(-1).flatten()]  # frames that are filled up
        if sums.numel() and float(((sums - 1).abs() > SUMMED).float().mean()) > 0.5:
            got = f"its input is not a logarithm of probabilities: exp of a frame adds up to {float(sums[0]):.4g}"
            got = f"its input comes from a {SQUASHED[last]}, without a logarithm" if last in SQUASHED else got
            yield "loss.logarithm", got, "log_softmax", "Call log_softmax(-1) on the logits: it can fall below 0 now"
    if function is functional.kl_div:
        if last in SQUASHED or bool((input > SUMMED).any()):
            got = f"its input holds {float(input.max()):g}: no logarithm of a probability is above 0"
            got = f"its input comes from a {SQUASHED[last]}, without a logarithm" if last in SQUASHED else got
            yield "loss.logarithm", got, "log_softmax", "Give it log_softmax(...) first, probabilities second"
        elif named.get("log_target") and bool((target > SUMMED).any()):
            got = f"log_target=True, and its target holds {float(target.max()):g}"
            yield "loss.logarithm", got, "logarithms", "Leave log_target out, or call log_softmax on the target"
        elif not named.get("log_target") and bool((target < -SUMMED).any()):
            got = f"its target holds {float(target.min()):g}: no probability is below 0"
            yield "loss.logarithm", got, "probabilities", "Call softmax on the target, or set log_target=True"


def _sizes(function: Any, input: Tensor, target: Tensor) -> Iterator[tuple[str, str, str, str]]:
    if function in DISTANCES and input.shape != target.shape:
        both = torch.broadcast_shapes(input.shape, target.shape)
        got = f"{tuple(input.shape)} against {tuple(target.shape)}, which compares all with all in {tuple(both)}"
        yield "loss.broadcast", got, "the same shape", "Use .squeeze(-1) or .unsqueeze(-1) on one of them"


def _reach(input: Tensor, target: Tensor) -> Iterator[tuple[str, str, str, str]]:
    """Report targets that the last function of the model cannot give."""
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


class DetachedTerms:
    """What has lost its gradient in a step, and the sums that it went into."""

    def __init__(self) -> None:
        self.lost: dict[int, tuple[Tensor, str]] = {}  # by id: the tensor, and the function that cut it off
        self.sums: list[tuple[Tensor, str]] = []

    def see(self, name: str, args: Any, value: Any) -> None:
        """Note what a function was given and has returned."""
        if not isinstance(value, Tensor) or not torch.is_grad_enabled():
            return
        tensors = [tensor for tensor in _flat(args) if isinstance(tensor, Tensor)]
        cuts = [cut for tensor in tensors if (cut := self._of(tensor))]
        flowing = any(tensor.requires_grad and not self._of(tensor) for tensor in tensors)
        if flowing and (name in FLAT or (name in CUTS and not value.requires_grad)):
            cuts, flowing = [name.strip("_"), *cuts], False
        if cuts and not flowing and name != "detach":
            self.lost[id(value)] = (value, cuts[0])
        elif cuts and name in SUMS and value.numel() <= len(tensors):  # of single numbers
            self.sums += [(value, cut) for tensor in tensors if tensor.numel() == 1 and (cut := self._of(tensor))]

    def _of(self, tensor: Tensor) -> str:
        entry = self.lost.get(id(tensor))
        return entry[1] if entry is not None and entry[0] is tensor else ""

    def within(self, total: Tensor) -> Iterator[Finding]:
        """Yield that a part of the loss `total` has no gradient."""
        nodes = {total.grad_fn}
        waiting = [total.grad_fn]
        while waiting and len(nodes) < NODES:
            for node, _ in getattr(waiting.pop(0), "next_functions", ()):
                if node is not None and node not in nodes:
                    nodes.add(node)
                    waiting.append(node)
        for value, cut in self.sums:
            if value.grad_fn in nodes:
                got = f"one of its parts goes through `{cut}` of what the model gave: a number, that trains nothing"
                do = "Compute it from the probabilities themselves, as a soft Dice does, or leave it out"
                yield Finding("loss.part", "the loss", got, "a gradient in each part", do, "warn")
                return


def _flat(args: Any) -> Iterator[Any]:
    for argument in args:
        if isinstance(argument, list | tuple):
            yield from argument
        else:
            yield argument
