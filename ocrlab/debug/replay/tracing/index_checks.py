"""What operators need of their indices and targets, looked at before they run: on a GPU it would be too late after.

The limits are those of PyTorch's operator reference (NLLLoss, BCELoss, Embedding, gather, scatter, index, CTCLoss).
Shapes: B samples, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SLACK = 1e-6  # of a probability: what rounding leaves


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
    needs = NEEDS.get(name)
    violations = (_outside(need) for need in needs(list(args), kwargs)) if needs is not None else ()
    return next((violation for violation in violations if violation is not None), None)


def _outside(need: AllowedRange) -> OutOfRange | None:
    tensor = need.tensor
    if tensor.is_meta or not tensor.numel():
        return None
    if tensor.is_floating_point():
        mask = (tensor < need.low - SLACK) | (tensor > need.high + SLACK)  # NaN is reported elsewhere
    else:
        mask = (tensor < need.low) | (tensor >= need.high)
        if need.ignored is not None:
            mask &= tensor != need.ignored
    if not bool(mask.any()):
        return None
    index = tuple(torch.nonzero(mask)[0].tolist()) if mask.dim() else ()
    value = float(tensor[index])
    shape = tuple(tensor.shape)  # the rest to the host: once the operator has run, its device may answer nothing more
    return OutOfRange(need.role, value, index, need.words, shape, mask.cpu(), tensor.detach().cpu(), tensor)


def _classes(args: list[Any], kwargs: Mapping[str, Any]) -> Iterator[AllowedRange]:
    scores, target = args[0], args[1]
    ignored = args[4] if len(args) > 4 else kwargs.get("ignore_index", -100)
    if isinstance(target, Tensor) and not target.is_floating_point():
        yield AllowedRange("target", target, 0, scores.shape[1 if scores.dim() > 1 else 0], ignored)


def _last_dimension(args: list[Any], kwargs: Mapping[str, Any]) -> Iterator[AllowedRange]:
    yield AllowedRange("target", args[1], 0, args[0].shape[-1])


def _targets(args: list[Any], kwargs: Mapping[str, Any]) -> Iterator[AllowedRange]:
    yield AllowedRange("target", args[1], 0.0, 1.0)


def _probabilities(args: list[Any], kwargs: Mapping[str, Any]) -> Iterator[AllowedRange]:
    yield from _targets(args, kwargs)
    yield AllowedRange("input", args[0], 0.0, 1.0)


def _maps(args: list[Any], kwargs: Mapping[str, Any]) -> Iterator[AllowedRange]:
    """Yield the maps of `ocrlab::db_loss_cpu`: after the two logits, each of them in 0..1."""
    for role, tensor in zip(("shrink map", "shrink mask", "threshold map", "threshold mask"), args[2:6], strict=False):
        if isinstance(tensor, Tensor):
            yield AllowedRange(f"target ({role})", tensor, 0, 1 if tensor.is_floating_point() else 2)


def _embedding(args: list[Any], kwargs: Mapping[str, Any]) -> Iterator[AllowedRange]:
    yield AllowedRange("index", args[1], 0, args[0].shape[0])


def _along(args: list[Any], kwargs: Mapping[str, Any]) -> Iterator[AllowedRange]:
    if isinstance(args[2], Tensor) and args[0].dim():
        yield AllowedRange("index", args[2], 0, args[0].shape[args[1]])


def _take(args: list[Any], kwargs: Mapping[str, Any]) -> Iterator[AllowedRange]:
    yield AllowedRange("index", args[1], -args[0].numel(), args[0].numel())


def _indices(args: list[Any], kwargs: Mapping[str, Any]) -> Iterator[AllowedRange]:
    for dimension, index in enumerate(args[1]):
        if isinstance(index, Tensor) and index.dtype not in (torch.bool, torch.uint8):
            long = args[0].shape[dimension]
            yield AllowedRange("index", index, -long, long)
        elif isinstance(index, Tensor):
            return  # a mask takes several dimensions; what follows cannot be counted so simply


NEEDS: dict[str, Callable[[list[Any], Mapping[str, Any]], Iterator[AllowedRange]]] = {
    "aten::nll_loss_forward": _classes,
    "aten::nll_loss2d_forward": _classes,
    "aten::multi_margin_loss": _last_dimension,
    "aten::binary_cross_entropy": _probabilities,
    "aten::binary_cross_entropy_with_logits": _targets,
    "ocrlab::db_loss_cpu": _maps,
    "aten::embedding": _embedding,
    "aten::embedding_renorm_": _embedding,
    "aten::take": _take,
    "aten::index": _indices,
    "aten::index_put": _indices,
    "aten::index_put_": _indices,
    "aten::_ctc_loss": _last_dimension,
}
ALONG = "gather scatter scatter_ scatter_add scatter_add_ index_select index_add index_add_ index_copy index_copy_"
NEEDS |= {f"aten::{name}": _along for name in (*ALONG.split(), "index_fill_")}
