"""What a contract check looks at and says: the tensors of any batch, the ranges they must keep, one finding a rule.

A tensor is named by its way through the batch, with dots: `images`, `labels.0`, `targets.3.boxes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ocrlab.debug.instruments.tensor_facts import under_vmap
from ocrlab.debug.instruments.tensor_tree import DEEPEST, parts

ALSO = 6  # more places that are told of one rule
NONE = "none of the batch"


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


def table_lines(findings: Sequence[Finding]) -> list[str]:
    """Return findings as the lines of a table; of one rule with one remedy the first, with the places of the others."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.judgement, finding.rule, finding.need, finding.do), []).append(finding)
    width = max((len(finding.rule) for finding in findings), default=0)
    lines = []
    for first, *others in groups.values():
        places = ", ".join(other.where for other in others[:ALSO])
        more = f" and {len(others) - ALSO} more" if len(others) > ALSO else ""
        cells = {"got": first.got, "need": first.need, "do": first.do} | ({"also at": places + more} if others else {})
        lines.append(f"{first.judgement}  {first.rule:{width}}  {first.where}")
        lines += [f"      {name:{width}}  {text}" for name, text in cells.items()]
    return lines


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
    """Tell whether a tensor says where attention may look: it is 0 there, -infinity elsewhere, and not learned."""
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
