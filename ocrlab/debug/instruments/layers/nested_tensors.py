"""The tensors inside whatever a module takes or returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

PACKED = ".data (packed)"  # rows are steps of all samples, the longest first: a row is no sample
MOST = 32  # tensors of one value; a list of a thousand boxes is looked at in part
DEEPEST = 5


def inside(value: Any) -> list[tuple[str, Tensor]]:
    """Return the first 32 tensors of a value with how they are reached: `[0]`, `['loss']`, `.logits`, "" for itself.

    Looks into tuples, lists, sets, mappings, named tuples, dataclasses, and plain objects that hold tensors.
    """
    found: list[tuple[str, Tensor]] = []
    if isinstance(value, Tensor):
        return [("", value)]
    _gather(value, "", found, DEEPEST)
    return found


def _gather(value: Any, path: str, found: list[tuple[str, Tensor]], deeper: int) -> None:
    if isinstance(value, Tensor):
        found.append((path, value))
        return
    if deeper == 0 or value is None or isinstance(value, str | bytes | int | float | type | nn.Module):
        return
    for step, part in _parts(value):
        if len(found) >= MOST:
            return
        _gather(part, path + step, found, deeper - 1)


def _parts(value: Any) -> list[tuple[str, Any]]:
    """Return what a value holds, with how each is reached."""
    if isinstance(value, PackedSequence):
        return [(PACKED, value.data)]
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", part) for name, part in zip(value._fields, value, strict=True)]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"[{place}]", part) for place, part in enumerate(value)]
    if is_dataclass(value):
        return [(f".{field.name}", getattr(value, field.name, None)) for field in fields(value)]
    held = getattr(value, "__dict__", {})
    return [(f".{name}", part) for name, part in held.items() if isinstance(part, Tensor | list | tuple | dict)]
