"""What a model's answers depend on: on their own samples, not on the neighbours, and not on what is to be predicted.

The model's call inside the loss is kept and made again in eval mode with other samples or other weights. Nothing is
said where that call is not one of rows: where its arguments do not all begin with the same number of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

from ocrlab.debug.instruments.step_check.findings import Finding, error_of, is_readable
from ocrlab.debug.instruments.step_check.loss_checks import CLASSES, PLAIN, arguments
from ocrlab.debug.instruments.step_check.state_guard import StepState
from ocrlab.debug.instruments.tensor_tree import dotted_tensors

ROWS = 4  # samples from which on it is no chance that all answers are equal
SAME = 1e-6  # of the largest answer: by less, two answers in float32 are one
MIXES = 1e-4  # of the largest answer: by more, a sample changes the answer to another one
CHANCE = 1e-6  # below it, a column of the input is not the target by chance
MOSTLY = 0.9  # of the tokens that count: those that stand in the input as they are
ORDERED: tuple[torch.dtype, ...] = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool)
ORDERED += (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)  # types that have amin and amax
WIDE = 1 << 16  # values of a sample among which the target is looked for
SIMPLE = (int, float, str, type(None))  # arguments of a call that hold no sample


@dataclass
class Call:
    """One call of a module: what it got, the tensors of one row a sample that it gave, and how it is made again."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    state: StepState
    rows: int = 0

    def __post_init__(self) -> None:
        flat = tree_flatten((self.args, self.kwargs))[0]
        tensors = [item for item in flat if isinstance(item, Tensor)]
        self.whole = all(isinstance(item, (Tensor, *SIMPLE)) for item in flat)
        self.rows = tensors[0].shape[0] if tensors and tensors[0].ndim else 0
        self.inputs = [t for t in tensors if t.ndim and t.shape[0] == self.rows and is_readable(t)]
        self.whole &= len(self.inputs) == len(tensors) and self.rows >= ROWS and isinstance(self.first, Tensor)

    @property
    def first(self) -> Any:
        """The first argument; a list of tensors is not one of rows."""
        return next(iter((*self.args, *self.kwargs.values())), None)

    def again(self, change: Callable[[Tensor], Tensor] = lambda t: t) -> list[Tensor]:
        """Make the call with every tensor changed, and return what has a row for each sample; [] where it raises."""
        args, kwargs = tree_map(
            lambda t: change(t.clone()) if isinstance(t, Tensor) else t, (self.args, dict(self.kwargs))
        )
        results: list[Any] = []
        self.state.restore_random()
        if error_of(lambda: results.append(self.module(*args, **kwargs))) is not None:
            return []
        return [
            t
            for _, t in dotted_tensors(results)
            if t.is_floating_point() and t.ndim and len(t) == self.rows and is_readable(t)
        ]


def check_output_dependence(model: nn.Module, loss: Callable[[], Any], state: StepState) -> Iterator[Finding]:
    """Yield what is wrong with what the answers depend on; to be asked in eval mode, without gradients."""
    call, compared = _intercept(model, loss, state)
    if call is None or not call.whole:
        return
    yield from _contained(call, compared)
    yield from _read(model, loss, call, compared)
    before = call.again()
    if before and all(torch.equal(a, b) for a, b in zip(before, call.again(), strict=True)):
        yield from _mixed(call, before)
        if all_rows_equal(before):
            yield from _blind(call)


def all_rows_equal(tensors: list[Tensor]) -> bool:
    """Tell whether every row of some tensors is the same, as far as float32 can tell; of a device it waits."""
    return bool(tensors) and all(bool(rows_equal(t)) for t in tensors)


def rows_equal(tensor: Tensor) -> Tensor:
    """Return whether every row of a tensor is the same, as far as float32 can tell, as a tensor where that one is.

    The extremes of each column take one row of memory in place of a copy of all rows.
    """
    low, high, first = (part.float() if part.dtype != torch.float64 else part for part in _extremes(tensor))
    largest = torch.maximum(high.abs(), low.abs()).max()
    return torch.maximum(high - first, first - low).max() <= SAME * largest


def _extremes(tensor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the least and the largest value of each column, and the first row."""
    values = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
    if values.dtype not in ORDERED:
        values = values.float()
    return values.amin(0), values.amax(0), values[0]


Compared = list[tuple[Any, Tensor, Tensor]]  # a loss function of torch, its input and target


class _PairWatch(TorchFunctionMode):
    """While it is entered, what torch's loss functions compare is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs: Compared = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in PLAIN:
            input, target = arguments(func, args, kwargs or {})
            if isinstance(input, Tensor) and isinstance(target, Tensor) and is_readable(input) and is_readable(target):
                self.pairs.append((func, input.detach().clone(), target.detach().clone()))
        return func(*args, **(kwargs or {}))


def _intercept(
    model: nn.Module, loss: Callable[[], Any], state: StepState, change: tuple[int, int] | None = None
) -> tuple[Call | None, Compared]:
    """Compute the loss; return the model's first call, None where parts of it are called, and what was compared.

    `change` (argument, position) puts the next sample's token in that place of the model's input.
    """
    calls: list[Call] = []

    def enter(module: nn.Module, args: Any, kwargs: Any) -> Any:
        if change is None:
            values, named = tree_map(lambda t: t.detach().clone() if isinstance(t, Tensor) else t, (args, dict(kwargs)))
            calls.append(Call(module, values, named, state))
            return None
        flat = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor)]
        wanted = flat[change[0]] if change[0] < len(flat) else None
        return tree_map(lambda t: _rolled(t, change[1]) if t is wanted and t is not None else t, (args, kwargs))

    state.restore_random()
    state.restore_batch()
    handle = model.register_forward_pre_hook(enter, with_kwargs=True)
    pairs = _PairWatch()
    try:
        with pairs:
            error = error_of(loss)
    finally:
        handle.remove()
    return (calls[0] if calls and error is None else None), pairs.pairs if error is None else []


def _rolled(ids: Tensor, position: int) -> Tensor:
    changed = ids.clone()
    changed[:, position] = changed[:, position].roll(1, 0)
    return changed


def _contained(call: Call, compared: Compared) -> Iterator[Finding]:
    """Tell of a target of one number a sample that is one of the numbers of that sample."""
    for function, _, target in compared:
        if target.numel() != call.rows or target.device != call.inputs[0].device:
            continue
        wanted = target.flatten().double()
        share = float(wanted.unique(return_counts=True)[1].max()) / call.rows
        for number, tensor in enumerate(call.inputs):
            columns = tensor.reshape(call.rows, -1)
            count = columns.shape[1]
            if not 1 < count <= WIDE or columns.is_complex() or share**call.rows * count > CHANCE:
                continue
            equal = (columns.double() == wanted[:, None]).all(0)
            if bool(equal.any()):
                at = int(equal.to(torch.uint8).argmax())
                where = f"the model's input {number}" if len(call.inputs) > 1 else "the model's input"
                got = f"value {at} of each of {call.rows} samples is its target, to the last bit ({function.__name__})"
                do = "Take it out of the input: the label's column, or the end of a window that holds what comes next"
                yield Finding("target.given", where, got, "an input without the target", do)
                return


def _read(model: nn.Module, loss: Callable[[], Any], call: Call, compared: Compared) -> Iterator[Finding]:
    """Tell of a token that is predicted by a model that reads it: no causal mask, or no shift."""
    flat = [t for t in tree_flatten((call.args, call.kwargs))[0] if isinstance(t, Tensor)]
    for which, ids in enumerate(flat):
        if ids.ndim != 2 or ids.is_floating_point() or ids.dtype == torch.bool or ids.shape[1] < ROWS:
            continue
        for number, (function, _, target) in enumerate(compared):
            shift = _shift(ids, target) if function in CLASSES else None
            if shift is None:
                continue
            length = target.numel() // call.rows
            position = length // 2
            other = _intercept(model, loss, call.state, (which, position + shift))[1]
            wanted, read = target.reshape(call.rows, length)[:, position], ids[:, position + shift]
            moved = (read != read.roll(1, 0)) & (wanted == read)
            if len(other) != len(compared) or not bool(moved.any()):
                return
            before, after = (_at(pair[1], call.rows, length, position) for pair in (compared[number], other[number]))
            if before is None or after is None:
                return
            change = (before - after)[moved].abs().amax(1)
            if bool((change > MIXES * before.abs().max()).float().mean() > MOSTLY):
                rest = "itself: it only copies" if not shift else "that follows: the mask does not hide it"
                got = f"the token to be predicted at place {position} changes with the token of the input {rest}"
                do = "Give the attention a causal mask (is_causal, tgt_mask)" if shift else "Shift the targets by one"
                yield Finding("target.read", "the model's input", got, "a prediction of what is not read", do)
                return


def _shift(ids: Tensor, target: Tensor) -> int | None:
    """Return 0 where the targets are the input's own tokens, 1 where they are the next ones, else None."""
    rows, width = ids.shape
    if target.is_floating_point() or target.numel() % rows or target.numel() // rows not in (width, width - 1):
        return None
    wanted = target.reshape(rows, -1)
    for shift in (1, 0):
        length = min(wanted.shape[1], width - shift)
        read, target_tokens = ids[:, shift : shift + length], wanted[:, :length]
        counts = target_tokens >= 0
        varied = target_tokens[counts].unique().numel() > ROWS
        if varied and float((read == target_tokens)[counts].float().mean()) >= MOSTLY:
            return shift
    return None


def _at(logits: Tensor, rows: int, length: int, position: int) -> Tensor | None:
    """Return the logits (rows, classes) of one place, of (rows * length, classes) or (rows, classes, length)."""
    if logits.ndim == 2 and len(logits) == rows * length:
        return logits.reshape(rows, length, -1)[:, position].float()
    if logits.ndim == 3 and logits.shape[0] == rows and logits.shape[2] == length:
        return logits[:, :, position].float()
    return None


def _mixed(call: Call, before: list[Tensor]) -> Iterator[Finding]:
    """Tell of answers that change when another sample of the batch does."""
    first = call.inputs[0]
    long = first.ndim >= 3 if first.is_floating_point() else first.ndim == 2  # else rows may be points or nodes
    square = any(call.rows in t.shape[1:] for t in call.inputs)  # which side is the batch's is not known
    timed = first.ndim != 4 and any(first.shape[1] in t.shape[1:] for t in before) if long else False
    own = any(isinstance(m, _BatchNorm) and m.running_mean is None for m in call.module.modules())
    if not long or square or timed or own:
        return
    after = call.again(lambda t: torch.cat([t[1:2], t[1:]]) if t.ndim and len(t) == call.rows else t)
    if len(after) != len(before) or not any(t.dtype == torch.float32 for t in before):
        return
    if any(float((a - b)[1:].abs().max()) > MIXES * float(b.abs().max()) for a, b in zip(after, before, strict=True)):
        layers = [name for name, m in call.module.named_modules() if getattr(m, "batch_first", True) is False]
        where = layers[0] if layers else "the model"
        got = "with another sample 0, the answers to the other samples of the batch change, in eval mode too"
        do = (
            "It takes its first dimension for time: set batch_first=True"
            if layers
            else "Look for a softmax, mean or norm over dimension 0, and for view() where transpose() is meant"
        )
        yield Finding("answers.mixed", where, got, "answers of their own sample", do, "fail" if layers else "warn")


def _blind(call: Call) -> Iterator[Finding]:
    """Tell of answers that are all equal, with other weights too: a last layer that begins at 0 is none of these."""
    with torch.no_grad():
        for p in call.module.parameters():
            if is_readable(p) and p.is_floating_point():
                size = float(p.abs().float().mean())
                p.add_(torch.randn_like(p) * (0.5 * size + 0.05))
    if not all_rows_equal(call.again()):
        return
    if all_rows_equal(call.inputs):
        got, do = (
            f"all {call.rows} samples that the model gets are equal",
            ("Look at an integer type that cuts 0.9 to 0, a vocabulary in which no word is found, an index not used"),
        )
        yield Finding("inputs.equal", "the model's input", got, "samples that differ", do, "warn")
        return
    got = f"the {call.rows} samples differ and all answers are equal, with other weights too: they do not depend on it"
    do = "Look for a softmax or norm over a dimension of size 1, a mask the wrong way round, a place that is padding"
    yield Finding("answers.equal", "the model's output", got, "answers that differ", do)
