"""Operators behind which row 3 of a tensor is no longer sample 3: a sort by length, a mask, a mean over the samples.

Shapes: B samples, dimension 0 of what belongs to a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

ALWAYS = {"masked_select", "nonzero", "take", "_unique2", "unique_dim", "unique_consecutive", "_pack_padded_sequence"}
ALWAYS |= {"bincount", "histc"}
ALONG = {"sort", "argsort", "topk", "gather", "index_select", "kthvalue"}  # a dimension
ALONG |= {"scatter", "scatter_add", "scatter_reduce", "index_add", "index_reduce"}
LAST = {"sort", "argsort", "topk", "kthvalue"}  # the last one, where none is said
OVER = {"sum": 1, "mean": 1, "amax": 1, "amin": 1, "max": 1, "min": 1, "prod": 1, "var": 1, "std": 1, "logsumexp": 1}
OVER |= {"median": 1, "any": 1, "all": 1, "argmax": 1, "argmin": 1, "norm": 2, "linalg_vector_norm": 2, "nansum": 1}
SEVERAL = {"flip": 1, "roll": 2}  # dimensions, as which argument, as in OVER; roll without any rolls them all


def reorders_rows(name: str, args: Sequence[Any], kwargs: dict[str, Any], count: int | None) -> bool:
    """Tell whether an operator puts the rows of its first argument, which are of B samples, into another order, or
    leaves none of them: what a sum over all samples gives for each class are rows of classes.
    """
    operator, tensor = name.rpartition("::")[2].rstrip("_"), args[0] if args else None
    if not count or not isinstance(tensor, Tensor) or not tensor.dim():
        return False
    if operator in ALWAYS:
        return True
    if tensor.shape[0] != count:
        return False
    if operator == "index":
        return _picks(args[1][0], count)
    if operator in SEVERAL or operator in OVER:
        place = SEVERAL.get(operator, OVER.get(operator, 1))
        dims = args[place] if len(args) > place else kwargs.get("dims", kwargs.get("dim"))
        dims = [dims] if isinstance(dims, int) else dims if isinstance(dims, list | tuple) else ()
        return any(int(dim) % tensor.dim() == 0 for dim in dims or (() if operator in OVER else (0,)))
    if operator not in ALONG:
        return False
    place = 2 if operator in ("topk", "kthvalue") else 1
    dim = kwargs.get("dim", args[place] if len(args) > place else -1 if operator in LAST else 0)
    if not isinstance(dim, int) or isinstance(dim, bool) or dim % tensor.dim():
        return False
    return operator != "index_select" or _picks(args[2] if len(args) > 2 else kwargs.get("index"), count)


def _picks(chosen: Any, count: int) -> bool:
    """Tell whether an index of dimension 0 is any other than 0, 1, 2 ... of all rows."""
    if not isinstance(chosen, Tensor):
        return False
    plain = chosen.dim() == 1 and chosen.dtype == torch.int64 and len(chosen) == count and not chosen.is_meta
    return not (plain and bool((chosen == torch.arange(count, device=chosen.device)).all()))
