"""Where NaN and Inf of a replayed step were born: every tensor that holds one knows the operator that made it first.

An Inf that never becomes a loss or a gradient is none of our business (masks of attention are made of -Inf), so that
births are only noted; what is reported is decided when the step ends. Shapes: B samples.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ocrlab.debug.instruments import batch_tree, tensor_facts
from ocrlab.debug.instruments.user_code import own_frames
from ocrlab.debug.replay.tracing.call_stack import kind
from ocrlab.debug.replay.tracing.operator_trace import OperatorTrace, line

PERSISTENT = ("weight", "buffer", "optimizer")  # begin the names of what lives from step to step
Part = tuple[int, int, int]  # of a storage: from this byte to that one, whose sample that is
HUGE = 1e10  # of a number in float32 that nobody means to compute with
CANCELLED = "overflow, Inf - Inf"
SUMS = re.compile(r"mm|mv|dot|conv|linear|add|sub|sum|mean|norm|var|std|rnn|lstm|gru")  # operators that add up
EMPTY = "softmax of a row that is all -Inf: nothing is left of it"
MASKS = ("masked_fill", "fill", "full", "where", "index_put", "scatter", "scalar_tensor", "copy", "new_full", "lift")
Rebuild = Callable[[], tuple[list[str], Callable[[Sequence[int]], Any]] | None]
KINDS = {"NaN": ("invalid value", "divide by zero"), "+Inf": ("overflow", "divide by zero")}
KINDS["-Inf"] = KINDS["+Inf"]


@dataclass
class NonFiniteOrigin:
    """The first NaN or Inf of a line of tensors: the value, in which tensor, its place, whose samples, out of what."""

    value: str  # NaN, +Inf, -Inf
    tensor: str  # output, weight x.y, input ...
    place: dict[str, Any]
    shape: str
    index: tuple[int, ...]
    share: str  # how many values of how many
    samples: list[int] | None
    parent: NonFiniteOrigin | None = None
    constant: bool = False  # a mask of -Inf
    is_written: bool = False  # not computed but written by somebody
    by: str = ""  # how it came: log of 0, overflow ...
    where: dict[str, Any] = field(default_factory=dict)
    first_user: dict[str, Any] | None = None  # the first operator that made more of it
    everyone: float | None = None  # the size of the values that all samples had, where that alone makes it
    guessed: bool = False  # the samples, from a dimension that may be another one's
    batch: dict[str, Any] = field(default_factory=dict)  # whose it is, where that is a batch before this one


def bad(tensor: Tensor) -> bool:
    """Return whether a tensor holds NaN or Inf, in one pass in most cases; False for what has no values."""
    if not tensor.dtype.is_floating_point and not tensor.dtype.is_complex:
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return False  # nobody may read it; what it wraps comes by as the operators run
    if tensor.is_meta or tensor.layout != torch.strided or not tensor.numel() or tensor.is_quantized:
        return False
    if tensor.dtype.itemsize == 1:
        tensor = tensor.float()
    with torch.no_grad():
        wide = torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else None
        total = tensor.sum(dtype=wide)
        if tensor.dtype.is_floating_point and math.isfinite(float(total)):
            return False  # a sum of finite values may overflow, one with NaN or Inf is never finite
        return not bool(torch.isfinite(tensor).all())


def pointer(tensor: Tensor) -> int:
    """Return where a tensor's storage lies, 0 for one that has none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, AttributeError, TypeError):  # fake, sparse and wrapped tensors
        return 0


def extent(tensor: Tensor) -> tuple[int, int]:
    """Return from which byte of its storage a tensor reaches to which."""
    start = int(tensor.storage_offset()) * tensor.itemsize
    steps = sum((int(size) - 1) * int(step) for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (steps + 1) * tensor.itemsize if tensor.numel() else start


def _owners(parts: Sequence[Part], tensor: Tensor) -> list[int] | None:
    """Return whose sample a tensor is, or is a part of; None where that may be more than one's: windows overlap."""
    start, end = extent(tensor)
    exact = {sample for first, last, sample in parts if (first, last) == (start, end)}
    around = {sample for first, last, sample in parts if first <= start and end <= last}
    samples = exact or around or {sample for _, _, sample in parts}
    return list(samples) if len(samples) == 1 else None


@dataclass
class NonFiniteTracker:
    """What is known of non-finite tensors in a step, by the storage they lie in."""

    names: dict[int, str] = field(default_factory=dict)  # storage -> "weight decoder.fusion.0.weight", "input batch[0]"
    shapes: set[tuple[int, ...]] = field(default_factory=set)  # of parameters: their first dimension is not a batch
    count: int | None = None  # B
    harmless: set[tuple[str, ...]] = field(default_factory=set)  # births that a step which went well has too
    earlier: dict[int, NonFiniteOrigin] = field(default_factory=dict)  # what the program has kept of batches before
    owners: dict[int, list[Part]] = field(default_factory=dict)
    wholes: dict[int, tuple[int, int]] = field(default_factory=dict)  # from which byte to which the batch lies
    births: dict[int, NonFiniteOrigin] = field(default_factory=dict)
    order: list[NonFiniteOrigin] = field(default_factory=list)  # all of them, the eldest first
    moved: set[int] = field(default_factory=set)  # storages in which rows lie in another order than the samples
    latest: NonFiniteOrigin | None = None  # of the bad value that an operator has read last

    def __post_init__(self) -> None:
        # Storages of what was computed from the batch: only there rows are samples.
        self.from_batch = {where for where, name in self.names.items() if name.startswith("input")}

    def of(self, tensor: Tensor) -> NonFiniteOrigin | None:
        """Return the birth of what a tensor holds, if it holds any."""
        return self.births.get(pointer(tensor))

    def signatures(self) -> set[tuple[str, ...]]:
        """Return what the births of this step are known by in another one."""
        return {_signature(birth) for birth in self.order}

    def read(self, tensor: Tensor) -> bool:
        """Take in that an operator reads one value, and tell whether it is bad: programs decide by one, and raise."""
        birth = self.births.get(pointer(tensor)) if tensor.numel() == 1 else None
        if birth is None or not bad(tensor):
            return False
        self.latest = birth
        return True

    def is_moved(self, tensor: Tensor) -> bool:
        """Return whether the rows of a tensor may lie in another order than the samples of the batch."""
        count = self.count  # of words as of samples, which come first? Of pictures it is the samples
        square = count is not None and tensor.dim() < 4 and tuple(tensor.shape[:2]) == (count, count)
        return square or pointer(tensor) in self.moved or self._is_part(tensor)

    def _is_part(self, tensor: Tensor) -> bool:
        """Return whether a tensor is a view of one sample: computed from the batch, too short for a row of each.

        Its own rows (boxes, shots) may be as many as there are samples.
        """
        where = pointer(tensor)
        if not self.count or tensor.layout != torch.strided or where not in self.from_batch:
            return False
        start, end = extent(tensor)
        first, last = self.wholes.get(where, (0, tensor.untyped_storage().nbytes()))
        return (end - start) * self.count < (last - first) * (self.count - 1)

    def result(
        self,
        name: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        place: dict[str, Any],
        *,
        moves: bool = False,
    ) -> None:
        """Take in what an operator has made, which `moves` rows or does not; in-place ones give the tensors that they
        have changed.
        """
        changed = {pointer(tensor) for tensor in outputs}
        if moves or any(pointer(tensor) in self.moved or self._is_part(tensor) for tensor in inputs):
            self.moved |= {where for t in outputs if t.numel() > 1 and (where := pointer(t)) not in self.names}
        else:
            self.moved -= changed
        if any(pointer(tensor) in self.from_batch for tensor in inputs):
            self.from_batch |= {where for where in changed if not self.names.get(where, "").startswith(PERSISTENT)}
        else:
            self.from_batch -= changed
        inputs = [source for source in inputs if (where := pointer(source)) not in changed or where in self.births]
        for tensor in outputs:
            where = pointer(tensor)
            if not bad(tensor):
                if where in self.births and tensor.untyped_storage().nbytes() <= tensor.numel() * tensor.itemsize:
                    del self.births[where]
                continue
            self._inherit(name, where, inputs, tensor, place)

    def _inherit(self, name: str, where: int, inputs: Sequence[Tensor], tensor: Tensor, place: dict[str, Any]) -> None:
        """Give a bad output the birth of a bad input; a NaN out of Infs, and what comes out of good inputs, is born."""
        parents = [birth for source in inputs if (birth := self._source(source, place)) is not None]
        nan = bool(torch.isnan(tensor).any())
        same = next((birth for birth in parents if not nan or birth.value == "NaN"), None)
        if same is not None:
            self.births[where] = self.latest = same
            if same.is_written and same.samples is not None and len(same.samples) == self.count:
                self._refine(same, tensor)  # a buffer full of NaN, of which most was written over
            if same.place is not place:
                same.first_user = same.first_user or place
            return
        for parent in parents:
            parent.first_user = parent.first_user or place
        written = self.names.get(where, "output")
        birth = self.new(tensor, written, place, parent=parents[0] if parents else None)
        operator = name.rpartition("::")[2]
        birth.is_written = any(operator.strip("_").startswith(word) for word in MASKS)
        birth.constant |= birth.is_written and birth.value == "-Inf"
        birth.by = _how(operator, inputs, birth)
        if birth.by in ("overflow", CANCELLED):
            birth.everyone = next((size for source in inputs if (size := self._median_size(source)) > HUGE), None)
        self.births[where] = self.latest = birth

    def _median_size(self, tensor: Tensor) -> float:
        """Return the largest value of the sample in the middle, 0 for a tensor that is not of samples."""
        rows = self.count or 0
        if not tensor.dim() or tensor.shape[0] != rows or rows < 2 or not tensor.is_floating_point() or bad(tensor):
            return 0.0
        return float(tensor.detach().reshape(rows, -1).abs().amax(1).median()) if tensor.numel() else 0.0

    def _source(self, tensor: Tensor, place: dict[str, Any]) -> NonFiniteOrigin | None:
        """Return the birth of a bad input; of one that no operator has made, a birth of its own."""
        where = pointer(tensor)
        if where in self.births:
            birth = self.births[where]
            if not bad(tensor):
                return None
            if birth.first_user is None and birth.samples is None and tensor.dim():
                self._refine(birth, tensor)  # it was written through a view of one value
            return birth
        if not bad(tensor):
            return None
        if (older := self._older(tensor)) is not None:
            self.births[where] = older
            return older
        number = "constant" if tensor.dim() == 0 else "input"
        birth = self.births[where] = self.new(tensor, self.names.get(where, number), place)
        birth.constant |= birth.tensor == "constant" and birth.value == "-Inf"
        return birth

    def _older(self, tensor: Tensor) -> NonFiniteOrigin | None:
        """Return the birth in a batch before this one of what a tensor holds that nobody in this one has made."""
        birth = self.earlier.get(pointer(tensor)) if pointer(tensor) not in self.names else None
        same = birth is not None and (birth.value == "NaN") == bool(torch.isnan(tensor).any())  # else memory used anew
        return birth if same else None

    def carry_over(self, batch: dict[str, Any]) -> dict[int, NonFiniteOrigin]:
        """Return the births that the next batch may meet again; those of this one are from now on of `batch`."""
        for birth in self.births.values():
            birth.batch = birth.batch or batch
        return {**self.earlier, **{where: birth for where, birth in self.births.items() if where not in self.names}}

    def _refine(self, birth: NonFiniteOrigin, tensor: Tensor) -> None:
        """Say whose value it is, by the first operator that reads the whole tensor."""
        whole = self.new(tensor, birth.tensor, birth.place)
        self.order.pop()
        if whole.samples is None:
            return
        birth.samples, birth.where, birth.index, birth.shape = whole.samples, whole.where, whole.index, whole.shape
        birth.guessed = whole.guessed

    def new(
        self, tensor: Tensor, name: str, place: dict[str, Any], parent: NonFiniteOrigin | None = None
    ) -> NonFiniteOrigin:
        """Return a birth for a tensor that is known to be bad."""
        first = tensor_facts.first_bad(tensor)
        assert first is not None, "the caller has looked"
        mask = ~torch.isfinite(tensor.detach())
        shown = f"output {place.get('op') or place.get('node')}" if name == "output" else name
        forward = place.get("phase") in ("forward", "loss")
        own = name.startswith(PERSISTENT) or pointer(tensor) not in self.from_batch
        own |= place.get("phase") in ("backward", "optimiser") and tuple(tensor.shape) in self.shapes
        samples = None if own else batch_tree.positions(mask, self.count, merged=forward)
        share = f"{first.nan + first.inf} of {tensor.numel()} values"
        guessed = samples is not None and (
            self.is_moved(tensor) or not batch_tree.is_in_first_dimension(tensor.shape, self.count)
        )
        position = batch_tree.index_in_batch(first.index, tensor.shape, None if own else self.count)
        if (parts := self.owners.get(pointer(tensor))) is not None:
            samples, guessed = _owners(parts, tensor), False
            position |= {"sample": samples[0]} if samples else {}
        birth = NonFiniteOrigin(
            first.value, shown, place, kind(tensor), first.index, share, samples, parent, where=position
        )
        birth.guessed = guessed
        birth.constant = _signature(birth) in self.harmless or (name.startswith("buffer") and first.value == "-Inf")
        self.order.append(birth)
        return birth


def _signature(birth: NonFiniteOrigin) -> tuple[str, ...]:
    """Return what the same birth in another step would be known by."""
    return (
        birth.value,
        birth.tensor,
        *(str(birth.place.get(name)) for name in ("phase", "path", "op", "node", "line")),
    )


def root(birth: NonFiniteOrigin) -> NonFiniteOrigin:
    """Return where a line began: the eldest, masks of -Inf left aside where something else came of them."""
    line = [birth]
    while line[-1].parent is not None:
        line.append(line[-1].parent)
    return next((origin for origin in reversed(line) if not origin.constant), birth)


def _how(operator: str, inputs: Sequence[Tensor], birth: NonFiniteOrigin) -> str:
    """Return in words how an operator made NaN or Inf of what it was given; empty where it is not plain."""
    operator, is_nan = operator.strip("_"), birth.value == "NaN"
    zeros = [tensor for tensor in inputs if tensor.numel() and not tensor.is_meta and bool((tensor == 0).any())]
    if operator.startswith("ctc_loss") and birth.value == "+Inf" and birth.parent is None:
        return "no way to align: a target needs more steps than its input has"
    if operator in ("log", "log2", "log10"):
        return "log of a negative number" if is_nan else "log of 0"
    of_nan = [
        (operator in ("mean", "var", "std") and not all(t.numel() for t in inputs), f"{operator} of nothing"),
        (operator in ("var", "std") and all(t.numel() == 1 for t in inputs), f"{operator} of one value"),
        (operator.startswith("weight_norm") and bool(zeros), "0 / 0, a row of the weight is all 0"),
        (operator in ("sqrt", "rsqrt"), f"{operator} of a negative number"),
        (operator == "pow" and any(bool((t < 0).any()) for t in inputs[:1]), "a negative number to a broken power"),
        (operator.endswith("softmax") and any(map(_full_row, inputs)), EMPTY),
    ]
    if is_nan and (text := next((text for holds, text in of_nan if holds), "")):
        return text
    if operator in ("div", "reciprocal", "rsqrt") and zeros:
        return "0 / 0" if is_nan else "division by 0"
    if birth.parent is not None:
        return f"out of {birth.parent.value}"
    if not is_nan and operator not in ("div", "reciprocal") and not birth.is_written:
        return "overflow: more than fp16 can hold (65504)" if "fp16" in birth.shape else "overflow"
    return CANCELLED if is_nan and SUMS.search(operator) and any(map(_is_huge, inputs)) else ""


def _full_row(tensor: Tensor) -> bool:
    """Return whether some row of a tensor, along its last dimension, is all -Inf."""
    return bool(tensor.dim() and tensor.numel() and tensor.is_floating_point() and (tensor == -math.inf).all(-1).any())


def _is_huge(tensor: Tensor) -> bool:
    """Return whether a tensor of finite numbers holds one that is too large to be meant."""
    if not tensor.numel() or not tensor.is_floating_point() or tensor.is_meta or bad(tensor):
        return False
    return bool(tensor.detach().abs().max() > HUGE)


class LoadingObserver:
    """Observes the operators of a data loading for `OperatorTrace`."""

    def __init__(self) -> None:
        self.values = NonFiniteTracker()
        self.place: dict[str, Any] = {}
        self.numpy: list[tuple[str, str]] = []  # what NumPy said, and where

    def before(self, name: str, inputs: list[Tensor], args: Any, kwargs: Any) -> None:
        self.place = {"op": name, "line": line()}

    def after(self, name: str, inputs: list[Tensor], changed: list[Tensor]) -> None:
        self.values.result(name, inputs, changed, self.place)

    def raised(self, error: BaseException, inputs: list[Tensor]) -> None:
        """Nothing: the loading went well in the run."""

    def record_numpy(self, what: str, _flag: int) -> None:
        """Take in what NumPy has met, at the innermost line of the user's own (called by NumPy)."""
        frame = next(own_frames(sys._getframe(1)), None)
        if frame is not None:
            self.numpy.append((what, f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}"))


def find_loading_line(anew: Rebuild | None, value: str) -> str:
    """Return what made `value` (NaN, +Inf, -Inf) while a batch was loaded, with its line: `aten::div` at a.py:3 f.

    Empty where that is not one place, or nobody has seen it: data that were bad in their file, say.
    """
    if anew is None:
        return ""
    observer = LoadingObserver()
    with np.errstate(divide="call", over="call", invalid="call", call=observer.record_numpy), OperatorTrace(observer):
        batch = anew()
        if batch is not None:
            batch[1](range(len(batch[0])))
    roots = [root(birth) for birth in observer.values.order]
    roots = [origin for origin in roots if origin.value == value and origin.tensor.startswith("output")]
    places = [origin.place for origin in roots if not (origin.is_written or origin.constant)]
    born = {(place.get("op"), place.get("line")) for place in places}
    born = born or {(f"NumPy, {what}", at) for what, at in observer.numpy if what in KINDS.get(value, ())}
    lines = [f"`{op}` at {at}" for op, at in born if at]
    return lines[0] if len(lines) == 1 else ""
