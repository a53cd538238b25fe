"""Indices and probabilities, looked at right before the function that takes them.

On a GPU an index out of range is an assertion in a kernel, after which the process can do nothing more; so the step is
stopped before it. On the CPU torch raises by itself for most, but tells neither the sample nor the value.
"""

from __future__ import annotations

import ast
import itertools
import linecache
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import dropout
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from ocrlab.debug.instruments.compiled_modules import is_jit
from ocrlab.debug.instruments.step_check.axis_checks import AxisWatch
from ocrlab.debug.instruments.step_check.findings import (
    Finding,
    is_readable,
    origin_text,
    position_text,
    remedy,
    value_at,
)
from ocrlab.debug.instruments.step_check.image_checks import CornerWatch, MaskWatch
from ocrlab.debug.instruments.step_check.loss_checks import LOSSES, DetachedTerms, LossWatch, arguments
from ocrlab.debug.instruments.step_check.target_checks import DIFFERENCES, PickedLogProbs

Bound = tuple[str, Tensor, float, float, float | None]  # argument, values, lowest, highest, one more that is allowed


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
        batch: Sequence[tuple[str, Tensor]] = (),
    ) -> None:
        super().__init__()
        self.findings, self.place, self.names, self.inside, self.batch = findings, place, names, inside, batch
        self.spread: dict[int, Tensor] = {}  # by id: what got a dimension of 1 on purpose
        self.losses, self.chosen, self.parts, self.corners = (
            LossWatch(findings, place),
            PickedLogProbs(),
            DetachedTerms(),
            CornerWatch(),
        )
        self.masks = MaskWatch(findings, place, inside)
        self.axes = AxisWatch(findings, place, inside, next((len(t) for _, t in batch if t.ndim), 0))
        self.constants: dict[
            int, tuple[Tensor, int]
        ] = {}  # by id: tensors of one value that the step made, their version

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
            if name in WIDENING | DIFFERENCES and not self.inside():
                self._compare(name, args, value)
            self.parts.see(name, args, value)
            with torch._C.DisableTorchFunction():
                self.axes.see(name, args, kwargs, value)
                self.corners.see(name, args, value)
                self.masks.see(name, args)
            return value
        target = arguments(func, args, kwargs)[1]
        self.losses.before(func, args, kwargs, meant=self._is_constant(target))
        value = func(*args, **kwargs)
        self.losses.after(func, value)
        self.parts.see(getattr(func, "__name__", ""), args, value)
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

    def _few(self, ids: Any, weight: Any) -> None:
        """Report a batch of texts in which next to every word is the same one."""
        if (
            not isinstance(ids, Tensor)
            or ids.ndim != 2
            or ids.numel() < TOKENS
            or len(weight) < WORDS
            or not is_readable(ids)
        ):
            return
        with torch._C.DisableTorchFunction():
            distinct = ids.unique().tolist()
        if len(distinct) <= 2 and "inputs.few" not in {finding.rule for finding in self.findings}:
            got = (
                f"all {ids.numel()} of its batch are {' or '.join(map(str, distinct))}, of {len(weight)} that there are"
            )
            do = "Look whether the words are spelled as in the vocabulary (upper and lower case): else all are unknown"
            self.findings.append(
                Finding("inputs.few", f"{self.place()}, embedding", got, "words that differ", do, "warn")
            )

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
                got, need = value_at(values, broken) + origin_text(values, broken, self.batch), f"{low:g} to {high:g}"
                index = not values.is_floating_point()
                do = remedy(function, values, broken, high) if index else RANGE_DO[name]
            rule = "indices.bounds" if index else "probabilities.range"
            self.findings.append(Finding(rule, where, got, need, do))
            fatal |= index or name == "input"
        if fatal:
            raise Stopped


class DropoutWatch(TorchFunctionMode):
    """While it is entered, `on` becomes True when a dropout drops in eval mode and the program does not ask for it.

    A `training=True` that the program writes is on purpose, and so is a Dropout of the model in train mode: the model
    is called many times. A Dropout that is made in forward is in train mode because nothing puts it into eval mode.
    What happens inside another model is not looked at.
    """

    on = False

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.running: list[nn.Module] = []  # modules of the model, the innermost last
        self.handles: list[Any] = []

    def __enter__(self) -> Any:
        for module in self.model.modules():
            if not is_jit(module):
                self.handles.append(module.register_forward_pre_hook(self._begin))
                self.handles.append(module.register_forward_hook(self._end, always_call=True))
        return super().__enter__()

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        for handle in self.handles:
            handle.remove()

    def _begin(self, module: nn.Module, _args: Any) -> None:
        self.running.append(module)

    def _end(self, module: nn.Module, _args: Any, _output: Any) -> None:
        while self.running and self.running.pop() is not module:
            pass

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in DROPOUTS:
            self._note(kwargs.get("training"), self._by_accident)
        elif func is functional.scaled_dot_product_attention:
            self._note(kwargs.get("dropout_p", args[4] if len(args) > 4 else 0))
        return func(*args, **kwargs)

    def _note(self, drops: Any, by_accident: Callable[[Sequence[Any]], bool] = lambda _: True) -> None:
        if not drops or self.on:
            return
        frames: list[Any] = []
        frame: Any = sys._getframe(1)
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
        another = not self.running and any(frame.f_code is CALL for frame in frames)
        self.on = not another and by_accident(frames)

    def _by_accident(self, frames: Sequence[Any]) -> bool:
        """Return whether a Dropout runs that the model does not list, or a call that does not say `training=`."""
        if any(frame.f_code in DROPPING for frame in frames[:8]):
            return bool(self.running) and not isinstance(self.running[-1], _DropoutNd)
        caller = next((frame for frame in frames if not frame.f_code.co_filename.startswith(OWN_FOLDERS)), None)
        return caller is not None and not says_training(caller)


def says_training(frame: Any) -> bool:
    """Return whether the call that a frame is in has a `training` argument; True where its source is not known."""
    positions = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
    first, last, begin, end = positions
    if first is None or last is None or begin is None or end is None:
        return True
    lines = [line.encode() for line in linecache.getlines(frame.f_code.co_filename, frame.f_globals)[first - 1 : last]]
    if not lines:
        return True
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    try:
        call = ast.parse(b"(" + b"".join(lines) + b")", mode="eval").body
    except SyntaxError:
        return True
    if not isinstance(call, ast.Call) or any(isinstance(arg, ast.Starred) for arg in call.args):
        return True
    return len(call.args) > 2 or any(word.arg in ("training", None) for word in call.keywords)


def _is_dropout(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, _DropoutNd) and kind is not _DropoutNd


TOKENS, WORDS = 64, 8  # of a batch and of a table: fewer are types, or a toy
DROPOUTS = frozenset(
    getattr(functional, name)
    for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
)
OWN_FOLDERS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
CALL = nn.Module._call_impl.__code__
DROPPING = frozenset(kind.forward.__code__ for kind in vars(dropout).values() if _is_dropout(kind))
CONSTANT = frozenset("ones zeros full ones_like zeros_like full_like new_ones new_zeros new_full fill_ zero_".split())
PICKING = frozenset(("gather", "__getitem__"))
WIDENING = frozenset(("unsqueeze", "__getitem__"))
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
