"""The loss functions of torch as a step calls them: what comes in, what is compared, which way it is pushed.

Hardly anything here raises by itself: such a step runs to its end, and trains what nobody meant. On a GPU an index out
of range is an assertion in a kernel, after which the process can do nothing more; so the step is stopped before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ocrlab.debug.laws.result import Result, broken, hint
from ocrlab.debug.laws.tensor_checks import is_readable, position_text, value_at

CUT = {  # functions after which logits are not free, and the values that they can reach
    "SoftmaxBackward0": ("softmax", 0.0, 1.0),
    "SigmoidBackward0": ("sigmoid", 0.0, 1.0),
    "TanhBackward0": ("tanh", -1.0, 1.0),
    "ReluBackward0": ("ReLU", 0.0, float("inf")),
}
PASSING = ("View", "Reshape", "UnsafeView", "Squeeze", "Unsqueeze", "Permute", "Transpose", "T", "Slice", "Select")
BCE = (functional.binary_cross_entropy, functional.binary_cross_entropy_with_logits)
CLASSES = (functional.cross_entropy, functional.nll_loss)
LOGITS = (functional.cross_entropy, functional.binary_cross_entropy_with_logits)
LOGARITHMS = (functional.nll_loss, functional.ctc_loss, functional.kl_div)
DISTANCES = (functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.huber_loss)
LOSSES = (*CLASSES, *DISTANCES, *BCE, *LOGARITHMS[1:])
SUMMED = 1e-2  # by which the probabilities of a row may miss 1: half precision
# Operators of the losses that a program writes itself.
OPERATORS = dict.fromkeys("sub rsub subtract __sub__ __rsub__".split(), "minus")
OPERATORS |= dict.fromkeys("mul multiply __mul__ __rmul__".split(), "times")


class OutOfBounds(Exception):
    """The step would have read or written out of bounds; the result says where."""


class LossCalls(TorchFunctionMode):
    """While it is entered, each loss function of torch is looked at; `place` says in which module that is, `inside`
    whether it is in one."""

    def __init__(
        self,
        report: Callable[[Result], None],
        place: Callable[[], str],
        names: Sequence[str] | None,
        inside: Callable[[], bool],
    ) -> None:
        super().__init__()
        self.report, self.place, self.names, self.inside = report, place, names, inside
        self.spread: dict[int, Tensor] = {}  # by id: what got a dimension of 1 on purpose
        self.values: list[tuple[str, Tensor]] = []  # of the losses

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if func in LOSSES or func is functional.embedding:
            self._before(func, args, kwargs)
        value = func(*args, **kwargs)
        if func in LOSSES:
            if isinstance(value, Tensor) and value.requires_grad and not value.is_leaf:
                value.retain_grad()
                self.values.append((f"{self.place()}, {name}", value))
        elif not self.inside():
            self._compare(name, args, kwargs, value)
        return value

    def _before(self, function: Any, args: Any, named: dict[str, Any]) -> None:
        """Look at what a function is about to compare."""
        input, target = arguments(function, args, named)
        if not isinstance(input, Tensor) or not isinstance(target, Tensor):
            return
        if not is_readable(input) or not is_readable(target):
            return
        with torch._C.DisableTorchFunction(), torch.no_grad():
            where = f"{self.place()}, {function.__name__}"
            for result, ends in self._bounds(function, input.detach(), target.detach(), named, args):
                self.report(result)
                if ends:
                    raise OutOfBounds
            for rule in (_logits, _logarithms, _sizes, _reach):
                for result in rule(function, where, input, target) if function in LOSSES else ():
                    self.report(result)

    def _bounds(
        self, function: Any, input: Tensor, target: Tensor, named: Any, args: Any
    ) -> Iterator[tuple[Result, bool]]:
        """Yield values out of range, each with whether the step ends there: on a GPU by an assertion in a kernel."""
        bounds: list[tuple[str, Tensor, float, float]] = []
        if function is functional.embedding:
            bounds = [("input", input, 0, len(target) - 1)]
        elif function in CLASSES and not target.is_floating_point():
            ignored = named.get("ignore_index", args[4] if len(args) > 4 else -100)
            highest = input.shape[1 if input.ndim > 1 else 0] - 1
            bounds = [("target", torch.where(target == ignored, 0, target), 0, highest)]
        elif function in BCE:
            bounds = [("target", target, 0, 1)]
            bounds += [("input", input, 0, 1)] if function is BCE[0] else []
        for part, values, low, high in bounds:
            wrong = ~((values >= low) & (values <= high))
            if bool(wrong.any()):
                where = f"{self.place()}, {part} of {function.__name__}, {position_text(wrong, self.names)}"
                do = f"Look at how {part} is numbered, and at the size of what it takes from"
                if values.is_floating_point():
                    do = "Scale the targets to 0..1" if part == "target" else "Use binary_cross_entropy_with_logits"
                rule = "probabilities.range" if values.is_floating_point() else "indices.bounds"
                ends = rule == "indices.bounds" or part == "input"
                yield broken(rule, where, value_at(values, wrong), f"{low:g} to {high:g}", do), ends

    def _compare(self, name: str, args: Any, kwargs: Any, value: Any) -> None:
        """Report a column (N, 1) minus or times a row (N,), in a loss of one's own."""
        key = args[1] if name == "__getitem__" and isinstance(args[1], tuple) else ()
        if name == "unsqueeze" or kwargs.get("keepdim") or any(item is None for item in key):
            self.spread[id(value)] = value
        if name not in OPERATORS or len(args) < 2 or not all(isinstance(side, Tensor) for side in args[:2]):
            return
        column, row = sorted(args[:2], key=lambda side: side.ndim, reverse=True)
        count = len(row) if row.ndim == 1 else 0
        apart = column.requires_grad != row.requires_grad and id(column) not in self.spread
        if count > 1 and apart and tuple(column.shape) == (count, 1):
            got = (
                f"{tuple(args[0].shape)} {OPERATORS[name]} {tuple(args[1].shape)}, which is broadcast to "
                f"{(count, count)}: all with all"
            )
            do = "Use .squeeze(-1) or .unsqueeze(-1) on one of them"
            self.report(hint("loss.broadcast", self.place(), got, "the same shape", do))

    def pushed(self) -> Iterator[Result]:
        """Yield the losses that the step makes larger; to be asked after the backward pass."""
        for where, value in self.values:
            if value.grad is not None and bool((value.grad < 0).any()) and not bool((value.grad > 0).any()):
                do = "Remove the minus sign; it is right only where something is to be unlearned"
                got = "it enters the loss with a minus sign, so that each step makes it larger"
                yield hint("loss.sign", where, got, "a plus sign", do)


def arguments(function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
    """Return what a function of torch compares: predictions and targets (ids and table), None where it got none."""
    keys = {functional.ctc_loss: ("log_probs", "targets"), functional.embedding: ("input", "weight")}
    first, second = keys.get(function, ("input", "target"))
    values = dict(zip((first, second), args, strict=False)) | named
    return values.get(first), values.get(second)


def _logits(function: Any, where: str, input: Tensor, _target: Tensor) -> Iterator[Result]:
    """Report a softmax or sigmoid before a loss that makes its own, and of logits that are not free."""
    name = CUT.get(maker(input), ("",))[0] if function in LOGITS else ""
    if name in ("softmax", "sigmoid"):
        got = f"its input comes from a {name}, and it makes its own: gradients are small, and no output can be sure"
        do = f"Take the {name} out of the model's forward, and use it only to predict"
        yield broken("loss.twice", where, got, "logits", do)
    elif name:
        got = f"its input comes from a {name}, and logits need no bound: no class can be sure"
        do = f"Take the {name} after the last layer out: logits need none"
        yield hint("loss.logits", where, got, "logits of any size", do)


def _logarithms(function: Any, where: str, input: Tensor, _target: Tensor) -> Iterator[Result]:
    """Report probabilities or logits where a loss needs the logarithms of probabilities."""
    name = CUT.get(maker(input), ("",))[0]
    wrong, got = bool((input > SUMMED).any()), f"its input holds {float(input.max()):g}"
    if function is functional.ctc_loss:
        sums = input.float().exp().sum(-1)[(input != 0).any(-1)]  # without frames that are filled up
        wrong = bool(sums.numel()) and float(((sums - 1).abs() > SUMMED).float().mean()) > 0.5
        got = "e to the power of a frame of its input does not sum up to 1"
    if function in LOGARITHMS and (wrong or name in ("softmax", "sigmoid")):
        got = f"its input comes from a {name}, without a logarithm" if name else got
        got += ": no logarithm of a probability"
        yield broken(
            "loss.logarithm", where, got, "log_softmax", "Call log_softmax on the logits, or use cross_entropy"
        )


def _sizes(function: Any, where: str, input: Tensor, target: Tensor) -> Iterator[Result]:
    if function in DISTANCES and input.shape != target.shape:
        both = tuple(torch.broadcast_shapes(input.shape, target.shape))
        got = f"{tuple(input.shape)} against {tuple(target.shape)}, which compares all with all in {both}"
        do = "Use .squeeze(-1) or .unsqueeze(-1) on one of them"
        yield broken("loss.broadcast", where, got, "the same shape", do)


def _reach(_function: Any, where: str, input: Tensor, target: Tensor) -> Iterator[Result]:
    """Report targets that the last function of the model cannot give."""
    name, low, high = CUT.get(maker(input), ("", -torch.inf, torch.inf))
    least, most = float(target.min()), float(target.max())
    if target.is_floating_point() and (least < low - 1e-4 or most > high + 1e-4):
        got = f"targets from {least:g} to {most:g}, and the model ends with a {name}, which gives {low:g} to {high:g}"
        do = "Scale the targets, or take that function out"
        yield broken("targets.reach", where, got, "targets that the model can give", do)


def maker(tensor: Tensor) -> str:
    """Return the name of the function that made a tensor's values in the graph, past what only changes its shape."""
    node: Any = tensor.grad_fn
    for _ in range(8):
        name = node.name() if node is not None else ""
        if name.removesuffix("0").removesuffix("1").removesuffix("Backward") not in PASSING:
            return name
        node = node.next_functions[0][0]
    return ""
