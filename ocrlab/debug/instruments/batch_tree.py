"""The batch of a replayed step, whatever it is: its tensors by name, its samples, a part of it, a pixel of it.

Shapes: B samples, dimension 0 of what belongs to a batch.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ocrlab.debug.instruments.tensor_tree import DEEPEST, SIMPLE, parts, tensors

AND = " + "  # between the names of samples that lie at one place of a batch of batches (`zip` of two loaders)
PART = re.compile(r"\bbatch\[(\d+)\]")  # of such a batch, in the name of a tensor


def name_of_part(name: str, tensor: str) -> str:
    """Return which of the names of two samples that lie at one place is meant: that of the batch a tensor lies in."""
    each, match = name.split(AND), PART.search(tensor)
    return each[int(match[1])] if match and len(each) > 1 and int(match[1]) < len(each) else name


def batch_size(batch: Any, names: Sequence[str] = ()) -> int | None:
    """Return B: the number of names if a tensor or list has that size, else the size of most parts of the batch, else
    the most frequent first dimension.
    """
    counts = Counter(tensor.shape[0] for _, tensor in tensors(batch) if tensor.dim())
    inner = [part for _, part in parts(batch)]
    listed = [len(part) for part in [batch, *inner] if isinstance(part, list | tuple)]
    if names and (len(names) in counts or len(names) in listed or not counts):
        return len(names)
    if not counts:
        return next((len(part) for part in inner if isinstance(part, list)), None)
    votes: Counter[int] = Counter()  # a tensor counts for its first dimension, a list for its length and for that of
    for part in inner:  # all that is in it
        if isinstance(part, Tensor):
            votes.update({part.shape[0]} if part.dim() else ())
        elif isinstance(part, list | tuple) and part:
            firsts = {_length(item) for item in part}
            votes.update({len(part), *(first for first in firsts if len(firsts) == 1 and first)})
    ranked = votes.most_common(2)
    is_clear = bool(ranked) and (len(ranked) == 1 or ranked[0][1] > ranked[1][1])
    return ranked[0][0] if is_clear else counts.most_common(1)[0][0]


def _length(value: Any) -> int | None:
    """Return the first dimension of a tensor, the length of a list; None for what has neither."""
    if isinstance(value, Tensor):
        return int(value.shape[0]) if value.dim() else None
    return len(value) if isinstance(value, list | tuple) else None


def tensors_by_sample(batch: Any, count: int | None, name: str = "batch", depth: int = 0) -> dict[str, int]:
    """Return the names of the tensors in lists with one entry for each of `count` samples, each with its sample.

    Their dimension 0 does not count samples, whatever its size.
    """
    if isinstance(batch, (*SIMPLE, Tensor)) or not count or depth >= DEEPEST:
        return {}
    inner = parts(batch)
    if isinstance(batch, list | tuple) and len(batch) == count and not _are_whole_batches(batch, count):
        return {tensor_name: i for i, (way, value) in enumerate(inner) for tensor_name, _ in tensors(value, name + way)}
    return {
        tensor_name: index
        for way, value in inner
        for tensor_name, index in tensors_by_sample(value, count, name + way, depth + 1).items()
    }


def is_partial(batch: Any, count: int) -> bool:
    """Return whether a batch has a tensor that belongs to none of its `count` samples: another batch, class weights."""
    in_lists = tensors_by_sample(batch, count)
    return any(tensor.dim() and tensor.shape[0] != count for name, tensor in tensors(batch) if name not in in_lists)


def select(batch: Any, positions: Sequence[int], count: int, depth: int = 0) -> Any:
    """Return a batch of the same kind with only the samples at `positions` of its `count`."""
    if isinstance(batch, Tensor):
        whole = batch.dim() and batch.shape[0] == count
        return batch[torch.as_tensor(list(positions), device=batch.device)] if whole else batch
    if isinstance(batch, SIMPLE) or depth >= DEEPEST:
        return batch
    if isinstance(batch, list | tuple) and len(batch) == count and not _are_whole_batches(batch, count):
        return type(batch)(batch[position] for position in positions)
    inner = [(name, select(value, positions, count, depth + 1)) for name, value in parts(batch)]
    return _rebuild(batch, [value for _, value in inner])


def same_batch(first: Any, second: Any) -> bool:
    """Return whether two batches hold the same tensors, by name and value."""
    first_tensors, second_tensors = dict(tensors(first)), dict(tensors(second))
    return first_tensors.keys() == second_tensors.keys() and all(
        _equal(first_tensors[name], second_tensors[name]) for name in first_tensors
    )


def _equal(first: Tensor, second: Tensor) -> bool:
    alike = first.shape == second.shape and first.dtype == second.dtype and first.device == second.device
    return alike and bool(torch.isclose(first, second, rtol=0, atol=0, equal_nan=True).all())


def is_start_of(part: Any, length: int, batch: Any, count: int) -> bool:
    """Return whether the `length` rows of a part are the first ones of a batch of `count`, without padding."""
    ours, batch_tensors = dict(tensors(part)), dict(tensors(batch))
    part_lists, batch_lists = tensors_by_sample(part, length), tensors_by_sample(batch, count)
    pairs = [(ours[name], batch_tensors[name]) for name in part_lists if name in batch_lists]
    for name, tensor in ours.items():
        other = batch_tensors.get(name)
        if name in part_lists or other is None or other.dim() != tensor.dim():
            continue
        if tensor.dim() and (tensor.shape[0], other.shape[0]) == (length, count):
            pairs.append((tensor, other[:length]))
    return bool(pairs) and all(_equal_within(tensor, other) for tensor, other in pairs)


def _equal_within(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors are equal in their common part: the longest sample decides how far all are padded."""
    if first.dim() != second.dim():
        return False
    common = tuple(slice(0, min(sizes)) for sizes in zip(first.shape, second.shape, strict=True))
    return _equal(first[common], second[common])


def changes_order(collate: Callable[[Sequence[int]], Any], count: int) -> bool:
    """Return whether a collate function changes the order of samples (a sort by length)."""
    order = list(range(count))
    forward, backward = collate(order), collate(order[::-1])
    rows = [tensor for _, tensor in tensors(forward) if tensor.dim() and tensor.shape[0] == count]
    return any(not _equal(rows, rows.flip(0)) for rows in rows) and same_batch(forward, backward)


def _rebuild(batch: Any, values: list[Any]) -> Any:
    """Return a container of the same kind with other values."""
    if isinstance(batch, tuple):
        return type(batch)(*values) if hasattr(batch, "_fields") else tuple(values)
    if isinstance(batch, list):
        return values
    rebuilt = copy.copy(batch)
    if hasattr(batch, "keys") and not dataclasses.is_dataclass(batch):
        for key, value in zip(list(batch.keys()), values, strict=True):
            rebuilt[key] = value
    else:
        for field, value in zip(getattr(batch, "__dict__", ()), values, strict=False):
            object.__setattr__(rebuilt, field, value)
    return rebuilt


def _are_whole_batches(items: Sequence[Any], count: int) -> bool:
    """Return whether a list is (images, labels), and not one entry for each sample."""
    if all(isinstance(item, Mapping) and item.keys() == items[0].keys() for item in items):
        return False  # a mapping for each sample, though each may hold as many of something as there are samples
    arrays = [item for item in items if isinstance(item, Tensor)]
    if arrays:
        return all(item.dim() > 0 and item.shape[0] == count for item in arrays)
    return any(batch_size(item) == count for item in items if not isinstance(item, SIMPLE))


def positions(bad: Tensor, count: int | None, merged: bool) -> list[int] | None:
    """Return which of the `count` samples a mask is true for; None where the mask does not belong to samples.

    With `merged` dimension 0 may also be samples times something else (heads, rows), the samples outermost.
    """
    if not count or not bad.dim() or not bad.numel():
        return None
    if bad.shape[0] != count and bad.dim() > 1 and bad.shape[1] == count:  # time or words come first
        bad = bad.transpose(0, 1)
    if bad.shape[0] == count or (merged and count > 1 and bad.shape[0] % count == 0):
        return torch.nonzero(bad.reshape(count, -1).any(1)).flatten().tolist()
    return None


def is_in_first_dimension(shape: Sequence[int], count: int | None) -> bool:
    """Return whether dimension 0 itself has the size of the batch, so that `positions` did not have to guess."""
    return bool(shape) and shape[0] == count


def index_in_batch(index: Sequence[int], shape: Sequence[int], count: int | None) -> dict[str, Any]:
    """Return an index of a tensor in words of a batch: {"sample": b, "pixel": [y, x]}, each where there is one."""
    position: dict[str, Any] = {}
    if count and index and shape[0] == count:
        position["sample"] = int(index[0])
    if len(index) >= 3:
        position["pixel"] = [int(index[-2]), int(index[-1])]
    return position
