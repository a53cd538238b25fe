"""Indices and probabilities, looked at right before the function that takes them.

On a GPU an index out of range is an assertion in a kernel, after which the process can do nothing more; so the step is
stopped before it. On the CPU torch raises by itself for most, but tells neither the sample nor the value.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from ocrlab.debug.instruments.step_check.axis_checks import Axes
from ocrlab.debug.instruments.step_check.box_formats import Corners
from ocrlab.debug.instruments.step_check.detached_terms import Parts
from ocrlab.debug.instruments.step_check.finding_text import origin, remedy
from ocrlab.debug.instruments.step_check.findings import Finding, plain, spot, value_at
from ocrlab.debug.instruments.step_check.loss_checks import LOSSES, Losses, arguments
from ocrlab.debug.instruments.step_check.mask_losses import Masks
from ocrlab.debug.instruments.step_check.policy_sign import Chosen

Bound = tuple[str, Tensor, float, float, float | None]  # argument, values, lowest, highest, one more that is allowed


class Stopped(Exception):
    """The step would have read or written out of bounds; the finding says where."""


class Calls(TorchFunctionMode):
    """While it is entered, indices are compared with what they index, and loss functions are looked at."""

    def __init__(
        self,
        found: list[Finding],
        place: Callable[[], str],
        names: Sequence[str] | None,
        inside: Callable[[], bool] = bool,
        batch: Sequence[tuple[str, Tensor]] = (),
    ) -> None:
        super().__init__()
        self.found, self.place, self.names, self.inside, self.batch = found, place, names, inside, batch
        self.spread: dict[int, Tensor] = {}  # by id: what got a dimension of 1 on purpose
        self.losses, self.chosen, self.parts, self.corners = Losses(found, place), Chosen(), Parts(), Corners()
        self.masks = Masks(found, place, inside)
        self.axes = Axes(found, place, inside, next((len(t) for _, t in batch if t.ndim), 0))
        self.made: dict[int, tuple[Tensor, int]] = {}  # by id: tensors of one value that the step made, their version

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        look = LOOKS.get(func)
        if look is not None:
            self._judge(look(*args, **kwargs), getattr(func, "__name__", str(func)))
        if func is functional.embedding:
            self._few(*args[:2])
        if func not in LOSSES:
            value = func(*args, **kwargs)
            name = getattr(func, "__name__", "")
            if name in PICKING and args:
                self.chosen.see(args[0], value)
            if name in CONSTANT | PASSING:
                self._note(name, args, value)
            if name in WIDENING | MINUS and not self.inside():
                self._compare(name, args, value)
            self.parts.see(name, args, value)
            with torch._C.DisableTorchFunction():
                self.axes.see(name, args, kwargs, value)
                self.corners.see(name, args, value)
                self.masks.see(name, args)
            return value
        target = arguments(func, args, kwargs)[1]
        self.losses.before(func, args, kwargs, meant=self._is_made(target))
        value = func(*args, **kwargs)
        self.losses.after(func, value)
        self.parts.see(getattr(func, "__name__", ""), args, value)
        return value

    def _note(self, name: str, args: tuple[Any, ...], value: Any) -> None:
        """Keep a tensor that the step itself made of one value, as torch.ones does, or a view or copy of such."""
        alone = not any(isinstance(other, Tensor) for other in args[1:]) or name.endswith("_as")
        made = name in CONSTANT or (bool(args) and self._is_made(args[0]) and alone)
        if made and isinstance(value, Tensor) and not value.is_inference():
            self.made[id(value)] = (value, value._version)

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
            self.found.append(Finding("loss.broadcast", self.place(), got, "the same shape", do, "warn"))

    def _few(self, ids: Any, weight: Any) -> None:
        """Report a batch of texts in which next to every word is the same one."""
        if (
            not isinstance(ids, Tensor)
            or ids.ndim != 2
            or ids.numel() < TOKENS
            or len(weight) < WORDS
            or not plain(ids)
        ):
            return
        with torch._C.DisableTorchFunction():
            known = ids.unique().tolist()
        if len(known) <= 2 and "inputs.few" not in {finding.rule for finding in self.found}:
            got = f"all {ids.numel()} of its batch are {' or '.join(map(str, known))}, of {len(weight)} that there are"
            do = "Look whether the words are spelled as in the vocabulary (upper and lower case): else all are unknown"
            self.found.append(Finding("inputs.few", f"{self.place()}, embedding", got, "words that differ", do, "warn"))

    def _is_made(self, tensor: Any) -> bool:
        known = self.made.get(id(tensor))
        return known is not None and known[0] is tensor and tensor._version == known[1]

    def _judge(self, bounds: Iterator[Bound], function: str) -> None:
        fatal = False
        for name, values, low, high, spared in bounds:
            if not plain(values):
                continue
            with torch._C.DisableTorchFunction(), torch.no_grad():
                values = values.detach()
                broken = ~((values >= low) & (values <= high))
                if spared is not None:
                    broken &= values != spared
                if not bool(broken.any()):
                    continue
                where = f"{self.place()}, {name} of {function}, {spot(broken, self.names)}"
                got, need = value_at(values, broken) + origin(values, broken, self.batch), f"{low:g} to {high:g}"
                index = not values.is_floating_point()
                do = remedy(function, values, broken, high) if index else RANGE_DO[name]
            rule = "indices.bounds" if index else "probabilities.range"
            self.found.append(Finding(rule, where, got, need, do))
            fatal |= index or name == "input"
        if fatal:
            raise Stopped


class Drops(TorchFunctionMode):
    """While it is entered, `on` becomes True when a dropout drops in eval mode and nobody has said that it should.

    A training=True that is written out, or a Dropout of the model that was put into train mode, is meant: the model is
    asked many times. A Dropout made anew in forward is in train mode because nothing puts it into eval mode.
    """

    on = False

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.known = {id(module) for module in model.modules()}
        self.own: dict[str, Any] = {}  # torch's functions, while others stand in their place
        self.heard: set[Any] = set()  # those others
        self.deep = 0  # calls of a dropout that run: torch calls it once more by itself
        self.base: Any = None  # the frame that has entered it

    def __enter__(self) -> Any:
        self.base = sys._getframe(1)
        self.own = {f.__name__: f for f in DROPOUTS if getattr(functional, f.__name__) is f}
        for name, function in self.own.items():
            setattr(functional, name, self._hear(function))
        return super().__enter__()

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        self.base = None
        for name, function in self.own.items():
            setattr(functional, name, function)

    def _hear(self, function: Any) -> Any:
        """Return a dropout that notes whether it was told to drop: a mode sees its defaults as if they were said."""

        def called(*args: Any, **kwargs: Any) -> Any:
            if not self.deep:
                caller = sys._getframe(1).f_locals.get("self")
                stray = isinstance(caller, _DropoutNd) and id(caller) not in self.known
                said = "training" in kwargs or len(args) > 2
                self._note(stray or not said, kwargs.get("training", args[2] if len(args) > 2 else DROPOUTS[function]))
            self.deep += 1
            try:
                return function(*args, **kwargs)
            finally:
                self.deep -= 1

        self.heard.add(called)
        return called

    def _note(self, unsaid: bool, drops: Any) -> None:
        self.on |= unsaid and bool(drops) and self._inside()

    def _inside(self) -> bool:
        """Tell whether the model or the loss itself drops: what happens inside another model is not looked at."""
        frame, foreign = sys._getframe(1), False
        while frame.f_back is not None and frame is not self.base:
            frame = frame.f_back
            caller = frame.f_locals.get("self")
            if id(caller) in self.known:
                return True
            foreign |= isinstance(caller, nn.Module) and not isinstance(caller, _DropoutNd)
        return not foreign

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self.heard and not self.deep:  # by a name that was imported before: what was said is not known
            self._note(True, kwargs.get("training"))
            self.deep += 1
            try:
                return func(*args, **kwargs)
            finally:
                self.deep -= 1
        if func is functional.scaled_dot_product_attention:
            self._note(True, kwargs.get("dropout_p", args[4] if len(args) > 4 else 0))
        return func(*args, **kwargs)


TOKENS, WORDS = 64, 8  # of a batch and of a table: fewer are types, or a toy
DROPOUTS = {  # and whether they drop where nothing is said
    functional.dropout: True,
    functional.dropout1d: True,
    functional.dropout2d: True,
    functional.dropout3d: True,
    functional.alpha_dropout: False,
    functional.feature_alpha_dropout: False,
}
CONSTANT = frozenset("ones zeros full ones_like zeros_like full_like new_ones new_zeros new_full fill_ zero_".split())
PICKING = frozenset(("gather", "__getitem__"))
WIDENING = frozenset(("unsqueeze", "__getitem__"))
MINUS = frozenset(("sub", "rsub", "subtract", "__sub__", "__rsub__"))
PASSING = frozenset(
    (
        "to cuda float double half long int type type_as view view_as reshape flatten squeeze unsqueeze "
        "expand expand_as repeat clone detach contiguous mul add sub"
    ).split()
)
RANGE_DO = {
    "input": "Use binary_cross_entropy_with_logits, which takes any number",
    "target": "Scale the targets to 0..1",
}


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
