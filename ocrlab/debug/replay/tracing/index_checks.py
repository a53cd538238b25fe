"""What operators need of their indices and targets, looked at before they run: on a GPU it would be too late after.

The limits are those of PyTorch's operator reference (NLLLoss, BCELoss, Embedding, gather, scatter, index, CTCLoss).
Shapes: B samples, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SLACK = 1e-6  # of a probability: what rounding leaves
MAPS = ("shrink map", "shrink mask", "threshold map", "threshold mask")
ALONG = {  # operators whose third argument is an index along the dimension that the second one names
    f"aten::{name}"
    for name in (
        "gather scatter scatter_ scatter_add scatter_add_ index_select index_add index_add_ index_copy index_copy_"
        " index_fill_"
    ).split()
}


@dataclass(frozen=True)
class AllowedRange:
    """A tensor of an operator whose values must lie in low <= value < high (<= for probabilities)."""

    role: str  # target, index, input
    tensor: Tensor
    low: float
    high: float
    ignored: int | None = None

    @property
    def words(self) -> str:
        """The limits for people."""
        if self.tensor.is_floating_point():
            return f"{self.low:g} to {self.high:g}"
        return f"{self.low:g} to {self.high - 1:g}"


@dataclass(frozen=True)
class OutOfRange:
    """The first value that is out of its range: where, what was allowed, and a mask of all of them."""

    role: str
    value: float
    index: tuple[int, ...]
    allowed: str
    shape: tuple[int, ...]
    mask: Tensor
    tensor: Tensor  # on the host
    source: Tensor  # itself


def find_out_of_range(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> OutOfRange | None:
    """Return the first value out of range of what an operator such as `aten::gather` is given, or None."""
    for need in _ranges(name, args, kwargs):
        tensor = need.tensor
        if tensor.is_meta or not tensor.numel():
            continue
        if tensor.is_floating_point():
            mask = (tensor < need.low - SLACK) | (tensor > need.high + SLACK)  # NaN is reported elsewhere
        else:
            mask = (tensor < need.low) | (tensor >= need.high)
            if need.ignored is not None:
                mask &= tensor != need.ignored
        if bool(mask.any()):
            index = tuple(torch.nonzero(mask)[0].tolist()) if mask.dim() else ()
            value, shape = float(tensor[index]), tuple(tensor.shape)
            # To the host: once the operator has run, its device may answer nothing more.
            return OutOfRange(need.role, value, index, need.words, shape, mask.cpu(), tensor.detach().cpu(), tensor)
    return None


def _ranges(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[AllowedRange]:
    """Yield the limits of what an operator is given."""
    match name:
        case "aten::nll_loss_forward" | "aten::nll_loss2d_forward":
            scores, target = args[0], args[1]
            ignored = args[4] if len(args) > 4 else kwargs.get("ignore_index", -100)
            if isinstance(target, Tensor) and not target.is_floating_point():
                yield AllowedRange("target", target, 0, scores.shape[1 if scores.dim() > 1 else 0], ignored)
        case "aten::multi_margin_loss" | "aten::_ctc_loss":
            yield AllowedRange("target", args[1], 0, args[0].shape[-1])
        case "aten::binary_cross_entropy" | "aten::binary_cross_entropy_with_logits":
            yield AllowedRange("target", args[1], 0.0, 1.0)
            if name.endswith("entropy"):
                yield AllowedRange("input", args[0], 0.0, 1.0)
        case "ocrlab::db_loss_cpu":  # after the two logits its maps, each in 0..1
            for role, tensor in zip(MAPS, args[2:6], strict=False):
                if isinstance(tensor, Tensor):
                    yield AllowedRange(f"target ({role})", tensor, 0, 1 if tensor.is_floating_point() else 2)
        case "aten::embedding" | "aten::embedding_renorm_":
            yield AllowedRange("index", args[1], 0, args[0].shape[0])
        case "aten::take":
            yield AllowedRange("index", args[1], -args[0].numel(), args[0].numel())
        case "aten::index" | "aten::index_put" | "aten::index_put_":
            for dimension, index in enumerate(args[1]):
                if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8):
                    return  # a mask takes several dimensions; what follows cannot be counted so simply
                if isinstance(index, Tensor):
                    long = args[0].shape[dimension]
                    yield AllowedRange("index", index, -long, long)
        case _ if name in ALONG and isinstance(args[2], Tensor) and args[0].dim():
            yield AllowedRange("index", args[2], 0, args[0].shape[args[1]])
