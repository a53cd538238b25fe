"""Values and names of tensors in words: what is not finite and where, rows that are equal, parameters by module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ocrlab.debug.instruments.tensor_facts import under_vmap

ROWS = 4  # samples from which on equal answers are not chance
SAME = 1e-6  # of the largest answer: by less, two answers in float32 are one
ORDERED: tuple[torch.dtype, ...] = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool)
ORDERED += (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)  # types that have amin and amax


def is_readable(tensor: Tensor) -> bool:
    """Return whether the values of a tensor can be looked at: it is dense, holds something, and no vmap is around."""
    there = tensor.layout == torch.strided and not tensor.is_nested and tensor.numel() > 0
    return there and tensor.device.type != "meta" and not under_vmap(tensor)


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


def position_text(broken: Tensor, names: Sequence[str] | None = None) -> str:
    """Return in words where the first True of a mask is: the sample by name or number, then pixel or position."""
    at = torch.nonzero(broken)[0].tolist() if broken.ndim else []
    if not at:
        return "its only value"
    if len(at) == 1 and not names:
        return f"position {at[0]}"
    text = f"sample {names[at[0]]!r}" if names and len(names) == len(broken) else f"sample {at[0]}"
    rest = at[1:]
    if len(rest) >= 2:
        front = f", channel {', '.join(map(str, rest[:-2]))}" if any(n > 1 for n in broken.shape[1:-2]) else ""
        return f"{text}{front}, pixel x={rest[-1]} y={rest[-2]}"
    return f"{text}, position {rest[0]}" if rest else text


def value_at(tensor: Tensor, broken: Tensor) -> str:
    """Return the first value at which a mask is True, and how many there are."""
    first = int(broken.flatten().to(torch.uint8).argmax())
    value = tensor.detach().flatten()[first].item()
    shown = f"{value:g}" if isinstance(value, float | int) and not isinstance(value, bool) else str(value)
    return f"{shown} ({int(broken.sum())} of {tensor.numel()} values)"


def error_of(action: Callable[[], Any]) -> Exception | None:
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


def listing(model: nn.Module, names: Sequence[str], most: int = 6) -> str:
    """Return parameter names in words, the first few of them: whole modules by their name."""
    left, texts = list(names), list[str]()
    every = [name for name, _ in model.named_parameters()]
    for module, _ in model.named_modules():
        prefix = f"{module}."
        mine = [name for name in left if name.startswith(prefix)] if module else []
        if mine and len(mine) == sum(name.startswith(prefix) for name in every):
            texts.append(f"{module} ({len(mine)} parameters)" if len(mine) > 1 else mine[0])
            left = [name for name in left if not name.startswith(prefix)]
    return shortened_list([*texts, *left], most)


def shortened_list(names: Sequence[str], most: int = 6) -> str:
    """Return names in words, the first few of them."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def rows_equal(tensor: Tensor) -> Tensor:
    """Return whether every row of a tensor is the same, as far as float32 can tell, as a tensor where that one is.

    The extremes of each column take one row of memory in place of a copy of all rows.
    """
    values = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
    if values.dtype not in ORDERED:
        values = values.float()
    ends = (values.amin(0), values.amax(0), values[0])
    low, high, first = (part.float() if part.dtype != torch.float64 else part for part in ends)
    largest = torch.maximum(high.abs(), low.abs()).max()
    return torch.maximum(high - first, first - low).max() <= SAME * largest
