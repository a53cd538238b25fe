"""Whose sample a row of a batch is, where a collate function leaves samples out or makes several rows of one.

The first samples are put together once more, some of them: a row belongs to the one with which it appears. What is put
together so must be the beginning of the batch. Shapes: B rows.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ocrlab.debug.instruments import batch_tree

Make = Callable[[Sequence[int]], Any]
ALWAYS = {"masked_select", "nonzero", "take", "_unique2", "unique_dim", "unique_consecutive", "_pack_padded_sequence"}
ALWAYS |= {"bincount", "histc"}
# Which argument names the dimensions that an operator goes along or sums over, and those without any.
DIMENSIONS: dict[str, tuple[int, tuple[int, ...]]] = {
    **dict.fromkeys("gather index_select scatter scatter_add scatter_reduce index_add index_reduce".split(), (1, (0,))),
    **dict.fromkeys("sort argsort".split(), (1, (-1,))),
    **dict.fromkeys("topk kthvalue".split(), (2, (-1,))),
    **dict.fromkeys("sum nansum mean amax amin max min prod var std logsumexp median any all".split(), (1, ())),
    **dict.fromkeys("argmax argmin".split(), (1, ())),
    **dict.fromkeys("norm linalg_vector_norm".split(), (2, ())),
    "flip": (1, (0,)),
    "roll": (2, (0,)),  # without any it rolls them all
}


def name_rows(rows: Sequence[int], batch: Any, count: int, names: Sequence[str], make: Make) -> list[str] | None:
    """Return the names of the samples of which `rows` of a batch are made; None if that is unknown.

    `make` puts together some of the samples that have `names`. Where a part of the batch is not its beginning (mixtures
    are drawn), one with a row for each sample is taken to have them in their order.
    """
    number = len(names)
    plain = [names[row] for row in rows] if count == number else None
    if number == 1:
        return list(names)

    @functools.cache
    def length(first: int) -> int:
        return count if first == number else _length(make, first, batch, count)

    try:  # a row is of the sample with which it appears
        origins = {bisect.bisect_right(range(1, number), row, key=length) for row in rows}
        if all(_is_missed(make, sample, number, count, length) for sample in origins):
            return [names[sample] for sample in sorted(origins)]
    except LookupError:
        pass
    return plain


def _length(make: Make, first: int, batch: Any, count: int) -> int:
    """Return how many rows the first samples make; raises LookupError where those are not the first of the batch."""
    if not first:
        return 0
    try:
        part = make(range(first))
    except Exception:  # it refuses an empty list, as all of them are left out
        return 0
    rows = batch_tree.batch_size(part) or 0
    if rows and not batch_tree.is_start_of(part, rows, batch, count):
        raise LookupError(f"the first {first} samples are not the beginning of the batch")
    return rows


def _is_missed(make: Make, sample: int, number: int, count: int, length: Callable[[int], int]) -> bool:
    """Return whether a batch without a sample has as many rows less as it is thought to make."""
    try:
        without = batch_tree.batch_size(make([other for other in range(number) if other != sample]))
    except Exception:
        return False
    return (without or 0) == count - length(sample + 1) + length(sample)


def reorders_rows(name: str, args: Sequence[Any], kwargs: dict[str, Any], count: int | None) -> bool:
    """Return whether an operator puts the rows of its first argument, which are of B samples, into another order, or
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
    if operator not in DIMENSIONS:
        return False
    place, default = DIMENSIONS[operator]
    argument = kwargs.get("dims", kwargs.get("dim", args[place] if len(args) > place else None))
    dims = [argument] if isinstance(argument, int) else argument if isinstance(argument, list | tuple) else ()
    if not any(int(dim) % tensor.dim() == 0 for dim in dims or default):
        return False
    return operator != "index_select" or _picks(args[2] if len(args) > 2 else kwargs.get("index"), count)


def _picks(chosen: Any, count: int) -> bool:
    """Return whether an index of dimension 0 is any other than 0, 1, 2 ... of all rows."""
    if not isinstance(chosen, Tensor):
        return False
    plain = chosen.dim() == 1 and chosen.dtype == torch.int64 and len(chosen) == count and not chosen.is_meta
    return not (plain and bool((chosen == torch.arange(count, device=chosen.device)).all()))
