"""Indices and probabilities, looked at right before the function that takes them, and the losses of torch.

On a GPU an index out of range is an assertion in a kernel, after which the process can do nothing more; so the step is
stopped before it. On the CPU torch raises by itself for most, but tells neither the sample nor the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ocrlab.debug.instruments.step_check.findings import Finding, is_readable, position_text, value_at
from ocrlab.debug.instruments.step_check.loss_checks import LOSSES, DetachedTerms, LossWatch, arguments

Bound = tuple[str, Tensor, float, float, float | None]  # argument, values, lowest, highest, one more that is allowed
DIFFERENCES = frozenset(("sub", "rsub", "subtract", "__sub__", "__rsub__"))
CONSTANT = frozenset("ones zeros full ones_like zeros_like full_like new_ones new_zeros new_full fill_ zero_".split())
WIDENING = frozenset(("unsqueeze", "__getitem__"))
PASSING = frozenset(
    (
        "to cuda float double half long int type type_as view view_as reshape flatten squeeze unsqueeze "
        "expand expand_as repeat clone detach contiguous mul add sub"
    ).split()
)
DO = {
    "input": "Use binary_cross_entropy_with_logits, which takes any number",
    "target": "Scale the targets to 0..1",
}


class Stopped(Exception):
    """The step would have read or written out of bounds; the finding says where."""


class CallWatch(TorchFunctionMode):
    """While it is entered, indices are compared with what they index, and loss functions are looked at."""

    def __init__(
        self,
        findings: list[Finding],
        place: Callable[[], str],
        names: Sequence[str] | None,
        inside: Callable[[], bool] = bool,
    ) -> None:
        super().__init__()
        self.findings, self.place, self.names, self.inside = findings, place, names, inside
        self.spread: dict[int, Tensor] = {}  # by id: what got a dimension of 1 on purpose
        self.losses, self.parts = LossWatch(findings, place), DetachedTerms()
        self.constants: dict[int, tuple[Tensor, int]] = {}  # by id: tensors of one value, made by the step; version

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if (look := LOOKS.get(func)) is not None:
            self._judge(look(*args, **kwargs), name)
        if func in LOSSES:
            self.losses.before(func, args, kwargs, meant=self._is_constant(arguments(func, args, kwargs)[1]))
        value = func(*args, **kwargs)
        if func not in LOSSES and name in CONSTANT | PASSING:
            self._note(name, args, value)
        if func not in LOSSES and name in WIDENING | DIFFERENCES and not self.inside():
            self._compare(name, args, value)
        if func in LOSSES:
            self.losses.after(func, value)
        self.parts.see(name, args, value)
        return value

    def _note(self, name: str, args: tuple[Any, ...], value: Any) -> None:
        """Keep a tensor that the step itself made of one value, as torch.ones does, or a view or copy of such."""
        alone = not any(isinstance(other, Tensor) for other in args[1:]) or name.endswith("_as")
        is_constant = name in CONSTANT or (bool(args) and self._is_constant(args[0]) and alone)
        if is_constant and isinstance(value, Tensor) and not value.is_inference():
            self.constants[id(value)] = (value, value._version)

    def _compare(self, name: str, args: tuple[Any, ...], value: Any) -> None:
        """Report a column of predictions minus a row of targets, in a loss of one's own."""
        if name in WIDENING:
            key = args[1] if len(args) > 1 and isinstance(args[1], tuple) else ()
            if name == "unsqueeze" or any(item is None for item in key):
                self.spread[id(value)] = value
            return
        if len(args) < 2 or not all(isinstance(side, Tensor) for side in args[:2]):
            return
        column, row = sorted(args[:2], key=lambda side: side.ndim, reverse=True)
        if id(column) in self.spread or column.requires_grad == row.requires_grad or len(row.shape) != 1:
            return
        count = len(row)
        if count > 1 and tuple(column.shape) == (count, 1):
            shapes = f"{tuple(args[0].shape)} minus {tuple(args[1].shape)}"
            got = f"{shapes}, which compares all with all in {(count, count)}"
            do = "Use .squeeze(-1) or .unsqueeze(-1) on one of them"
            self.findings.append(Finding("loss.broadcast", self.place(), got, "the same shape", do, "warn"))

    def _is_constant(self, tensor: Any) -> bool:
        entry = self.constants.get(id(tensor))
        return entry is not None and entry[0] is tensor and tensor._version == entry[1]

    def _judge(self, bounds: Iterator[Bound], function: str) -> None:
        fatal = False
        for name, values, low, high, spared in bounds:
            if not is_readable(values):
                continue
            with torch._C.DisableTorchFunction(), torch.no_grad():
                values = values.detach()
                broken = ~((values >= low) & (values <= high))
                if spared is not None:
                    broken &= values != spared
                if not bool(broken.any()):
                    continue
                where = f"{self.place()}, {name} of {function}, {position_text(broken, self.names)}"
                index = not values.is_floating_point()
                do = f"Look at how {name} is numbered, and at the size of what it takes from" if index else DO[name]
            rule = "indices.bounds" if index else "probabilities.range"
            self.findings.append(Finding(rule, where, value_at(values, broken), f"{low:g} to {high:g}", do))
            fatal |= index or name == "input"
        if fatal:
            raise Stopped


def _classes(input: Tensor, target: Tensor, weight: Any = None, *rest: Any, **named: Any) -> Iterator[Bound]:
    """Bounds of cross_entropy and nll_loss (weight, size_average, ignore_index are positional in both)."""
    if not target.is_floating_point():
        spared = named.get("ignore_index", rest[1] if len(rest) > 1 else -100)
        yield "target", target, 0, input.shape[1 if input.ndim > 1 else 0] - 1, spared


def _rows(input: Tensor, weight: Tensor, *_: Any, **__: Any) -> Iterator[Bound]:
    yield "input", input, 0, weight.shape[0] - 1, None


def _along(input: Tensor, dim: Any = None, index: Any = None, *_: Any, **__: Any) -> Iterator[Bound]:
    if isinstance(dim, int) and isinstance(index, Tensor) and input.ndim:
        yield "index", index, 0, input.shape[dim] - 1, None


def _getitem(input: Tensor, key: Any) -> Iterator[Bound]:
    keys = key if isinstance(key, tuple) else (key,)
    if any(
        item is Ellipsis or item is None or (isinstance(item, Tensor) and item.dtype == torch.bool) for item in keys
    ):
        return  # these move the dimensions; torch's own message has to do
    for dim, item in enumerate(keys):
        if isinstance(item, Tensor) and not item.is_floating_point() and dim < input.ndim:
            yield "index", item, -input.shape[dim], input.shape[dim] - 1, None


def _hot(tensor: Tensor, num_classes: int = -1) -> Iterator[Bound]:
    yield "tensor", tensor, 0, num_classes - 1 if num_classes > 0 else float("inf"), None


def _chances(input: Tensor, target: Tensor, *_: Any, **__: Any) -> Iterator[Bound]:
    yield "input", input, 0, 1, None
    yield "target", target, 0, 1, None


def _targets(input: Tensor, target: Tensor, *_: Any, **__: Any) -> Iterator[Bound]:
    yield "target", target, 0, 1, None


LOOKS: dict[Any, Callable[..., Iterator[Bound]]] = {
    functional.cross_entropy: _classes,
    functional.nll_loss: _classes,
    functional.embedding: _rows,
    functional.embedding_bag: _rows,
    functional.one_hot: _hot,
    functional.binary_cross_entropy: _chances,
    functional.binary_cross_entropy_with_logits: _targets,
    Tensor.__getitem__: _getitem,
    **{
        function: _along
        for name in ("gather", "index_select", "scatter", "scatter_", "scatter_add", "scatter_add_", "index_add_")
        for function in (getattr(torch, name, None), getattr(Tensor, name))
        if function is not None
    },
}
