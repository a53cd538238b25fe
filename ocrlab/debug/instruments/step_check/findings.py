"""The findings of a step check: tensors of the batch, ranges that they must keep, and names and places as text."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ocrlab.debug.instruments.tensor_facts import under_vmap
from ocrlab.debug.instruments.tensor_tree import DEEPEST, dotted_tensors, parts

NONE = "none of the batch"
ROWS = 4  # from so many samples on, equal answers are not chance
SAME = 1e-6  # of the largest answer: by less, two answers in float32 are one
ORDERED: tuple[torch.dtype, ...] = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool)
ORDERED += (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)  # types that have amin and amax


@dataclass(frozen=True)
class Finding:
    """One violated rule: which, where (module, tensor, sample, pixel), what was measured, what is needed, what to do.

    `judgement` is fail for what makes training wrong, warn for what may be meant so or only costs time.
    """

    rule: str
    where: str
    got: str
    need: str
    do: str
    judgement: Literal["fail", "warn"] = "fail"

    def __str__(self) -> str:
        return f"[{self.judgement}] {self.rule} at {self.where}: {self.got}. Needed: {self.need}. {self.do}."


@dataclass(frozen=True)
class Range:
    """Between what the values of a tensor lie, or the `only` ones it may hold; `name` may have * as in file names."""

    name: str
    low: float
    high: float
    only: tuple[float, ...] = ()
    do: str = "Look at what makes this tensor"

    def broken(self, tensor: Tensor) -> Tensor:
        """Return where the rule does not hold, as a mask of the tensor's shape; what is not finite breaks it too."""
        if self.only:
            allowed = torch.tensor(self.only, device=tensor.device, dtype=torch.float64)
            return ~torch.isin(tensor.double(), allowed)
        return ~((tensor >= self.low) & (tensor <= self.high))

    @property
    def words(self) -> str:
        """What is needed."""
        return "only " + ", ".join(f"{v:g}" for v in self.only) if self.only else f"{self.low:g} to {self.high:g}"


def names_in(tree: Any, count: int, deep: int = 0) -> list[str] | None:
    """Return the first list of `count` texts in a batch, which are taken for the names of its samples."""
    if isinstance(tree, list | tuple) and count and len(tree) == count and all(isinstance(item, str) for item in tree):
        return list(tree)
    if deep < DEEPEST and not isinstance(tree, str | Tensor):
        for _, item in parts(tree):
            names = names_in(item, count, deep + 1)
            if names:
                return names
    return None


def check_empty_batch(named: Sequence[tuple[str, Tensor]]) -> Iterator[Finding]:
    """Yield that a batch holds no sample at all: a mean over nothing is NaN. Single tensors may well be empty."""
    if named and all(tensor.ndim and not tensor.shape[0] for _, tensor in named):
        shape = " x ".join(map(str, named[0][1].shape))
        do = "Look at the sampler, and at what filters or collates the samples; skip such a batch"
        yield Finding("batch.empty", named[0][0], f"no sample ({shape})", "one at least", do)


def is_readable(tensor: Tensor) -> bool:
    """Return whether the values of a tensor can be looked at: it is dense, holds something, and no vmap is around."""
    there = tensor.layout == torch.strided and not tensor.is_nested and tensor.numel() > 0
    return there and tensor.device.type != "meta" and not under_vmap(tensor)


def position_text(broken: Tensor, names: Sequence[str] | None = None) -> str:
    """Return in words where the first True of a mask is: the sample by name or number, then pixel or position."""
    first = int(broken.flatten().to(torch.uint8).argmax())
    at: list[int] = []
    for size in reversed(broken.shape):
        at.insert(0, first % size)
        first //= size
    if not at:
        return "its only value"
    if len(at) == 1 and not names:
        return f"position {at[0]}"
    is_named = names is not None and len(names) == broken.shape[0]
    text = f"sample {names[at[0]]!r}" if is_named and names is not None else f"sample {at[0]}"
    rest = at[1:]
    if len(rest) >= 2:
        front = f", channel {', '.join(map(str, rest[:-2]))}" if any(n > 1 for n in broken.shape[1:-2]) else ""
        return f"{text}{front}, pixel x={rest[-1]} y={rest[-2]}"
    return f"{text}, position {rest[0]}" if rest else text


def value_at(tensor: Tensor, broken: Tensor) -> str:
    """Return the first value at which a mask is True, and how many there are."""
    first = int(broken.flatten().to(torch.uint8).argmax())
    value = tensor.detach().flatten()[first].item()
    count = int(broken.sum())
    shown = f"{value:g}" if isinstance(value, float | int) and not isinstance(value, bool) else str(value)
    return f"{shown} ({count} of {tensor.numel()} values)" if count > 1 else f"{shown} (1 of {tensor.numel()} values)"


def stored_values(tensor: Tensor) -> Tensor:
    """Return the values of a tensor that are stored: of a sparse gradient those of its rows."""
    return tensor.detach().coalesce().values() if tensor.layout == torch.sparse_coo else tensor.detach()


def not_finite(tensor: Tensor) -> Tensor | None:
    """Return where a tensor holds NaN or infinity, or None where it holds none or cannot."""
    if not is_readable(tensor) or not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    with torch.no_grad():
        finite = tensor.detach().isfinite()
        return None if bool(finite.all()) else ~finite


def is_attention_mask(tensor: Tensor) -> bool:
    """Return whether a tensor says where attention may look: it is 0 there, -infinity elsewhere, and not learned."""
    if tensor.requires_grad or isinstance(tensor, nn.Parameter) or not tensor.is_floating_point():
        return False
    zeros = tensor == 0
    return bool(zeros.any()) and bool((zeros | (tensor == -torch.inf)).all())


def check_values(
    tensors: Sequence[tuple[str, Tensor]], ranges: Sequence[Range], names: Sequence[str] | None, part: str
) -> Iterator[Finding]:
    """Yield what is wrong with the values of named tensors of a `part` (batch, output): NaN, infinity, ranges."""
    for name, tensor in tensors:
        where = f"{part}.{name}" if name != part else part
        broken = not_finite(tensor)
        if broken is not None and not ("mask" in name.lower() and is_attention_mask(tensor)):
            do = "Look at this sample's file, and at divisions and logarithms where it is made"
            yield Finding(
                f"{part}.finite", f"{where}, {position_text(broken, names)}", value_at(tensor, broken), "finite", do
            )
            continue
        for rule in (rule for rule in ranges if fnmatchcase(name, rule.name)):
            if is_readable(tensor) and bool((wrong := rule.broken(tensor.detach())).any()):
                place = f"{where}, {position_text(wrong, names)}"
                yield Finding(f"{part}.range", place, value_at(tensor, wrong), rule.words, rule.do)
    for rule in ranges:
        if not any(fnmatchcase(name, rule.name) for name, _ in tensors):
            got = "there are " + (", ".join(name for name, _ in tensors[:8]) or "no tensors")
            yield Finding(f"{part}.missing", f"{part}.{rule.name}", got, "a tensor of this name", "Correct the name")


def error_of(action: Callable[[], Any]) -> BaseException | None:
    """Call something and return what it raises, but for what a person or the interpreter raises."""
    try:
        action()
    except Exception as error:
        return error
    return None


def is_sticky(error: BaseException | None) -> bool:
    """Return whether an error leaves the CUDA context dead, so that no further call may be made on it."""
    if error is None or isinstance(error, torch.cuda.OutOfMemoryError):
        return False
    return type(error).__name__ == "AcceleratorError" or "CUDA error:" in str(error)


def group_by_module(model: nn.Module, names: Sequence[str]) -> list[list[str]]:
    """Return parameter names in groups, one for each highest module all of whose parameters are among them."""
    left, groups = list(names), []
    for module, _ in model.named_modules():
        if module and left:
            prefix = f"{module}."
            all_of_it = [name for name, _ in model.named_parameters() if name.startswith(prefix)]
            mine = [name for name in left if name.startswith(prefix)]
            if mine and len(mine) == len(all_of_it):
                groups.append(mine)
                left = [name for name in left if not name.startswith(prefix)]
    return [*groups, *([name] for name in left)]


def listing(model: nn.Module, names: Sequence[str]) -> str:
    """Return parameter names in words: whole modules by their name."""
    return shortened_list([common_prefix(rest) for rest in group_by_module(model, names)])


def common_prefix(names: Sequence[str]) -> str:
    """Return what a module's parameters have in common, with their number."""
    if len(names) == 1:
        return names[0]
    words = [name.split(".") for name in names]
    same = 0
    while all(len(w) > same + 1 and w[same] == words[0][same] for w in words):
        same += 1
    return f"{'.'.join(words[0][:same])} ({len(names)} parameters)"


def shortened_list(names: Sequence[str], most: int = 6) -> str:
    """Return names in words, the first few of them."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def index_text(broken: Tensor) -> str:
    """Return the position of the first True of a mask, as one writes it in code."""
    at = torch.nonzero(broken)[0].tolist() if broken.ndim else []
    return f"[{', '.join(map(str, at))}]"


def last_line(error: BaseException) -> str:
    """Return the file and line at which something was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if "/torch/" not in frame.filename and "/instruments/step_check/" not in frame.filename
    ]
    if not own:
        return "in torch"
    return f"{own[-1].filename.rpartition('/')[2]}:{own[-1].lineno}"


def advice(error: BaseException, batch: Any) -> str:
    """Return what to do about an error of the forward pass."""
    text, devices = str(error), {str(t.device) for _, t in dotted_tensors(batch)}
    if "Expected more than 1 value per channel" in text:
        return "Use a larger batch or crop: BatchNorm has one value for each channel here"
    if "same device" in text:
        return f"Move the batch ({', '.join(sorted(devices))}) to the model's device"
    if "positional argument" in text or "has no attribute" in text:
        return "`loss` is called as loss(model, batch) and does the whole forward pass"
    return "Look at the line that is named; its shapes stand in the stages of the report"


def all_rows_equal(tensors: list[Tensor]) -> bool:
    """Return whether every row of some tensors is the same, as far as float32 can tell; of a device it waits."""
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
