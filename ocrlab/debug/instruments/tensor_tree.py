"""The tensors inside a value of any type: a batch, the arguments of a module, what a model returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

DEEPEST = 8  # containers inside each other
MOST_VALUES = 50_000  # inspected in one tree: an attribute may lead into half of the program
PACKED = ".data (packed)"  # rows are time steps of all samples, the longest first: a row is not a sample
SIMPLE = (str, bytes, int, float, bool, type(None))


def parts(value: Any) -> list[tuple[str, Any]]:
    """Return the direct parts of a container, each with its path: `[0]`, `['image']`, `.logits`."""
    if isinstance(value, (*SIMPLE, Tensor, type, nn.Module)):
        return []
    if isinstance(value, Mapping) or (hasattr(value, "keys") and hasattr(value, "__getitem__")):
        return [(f"[{key!r}]", value[key]) for key in list(value.keys())]  # some have keys and cannot be iterated
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{field}", item) for field, item in zip(value._fields, value, strict=True)]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"[{index}]", item) for index, item in enumerate(value)]
    if hasattr(value, "__dict__"):
        return [] if callable(value) else [(f".{name}", item) for name, item in vars(value).items()]
    return [(f".{field.name}", getattr(value, field.name)) for field in fields(value)] if is_dataclass(value) else []


def nested_tensors(value: Any, depth: int = DEEPEST) -> Iterator[Tensor]:
    """Yield the tensors in lists, tuples and dicts, `depth` of them inside each other; looks into nothing else."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, dict | list | tuple):
        for item in list(value.values()) if isinstance(value, dict) else value:
            yield from nested_tensors(item, depth - 1)


def tensors(value: Any, name: str = "batch") -> Iterator[tuple[str, Tensor]]:
    """Yield (path, tensor) of everything in a value, in order: `batch[0]`, `batch['image']`, `batch.images`.

    A packed sequence counts as its data.
    """
    waiting = [(name, value, 0)]
    for _ in range(MOST_VALUES):
        if not waiting:
            return
        path, item, depth = waiting.pop()
        if isinstance(item, Tensor):
            yield path, item
        elif isinstance(item, PackedSequence):
            yield path + PACKED, item.data
        elif depth < DEEPEST:
            inner = [(path + step, part, depth + 1) for step, part in parts(item) if not isinstance(part, SIMPLE)]
            waiting += reversed(inner)


def dotted_tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) as `tensors` does, with dots in the names: `images`, `labels.0`, `targets.3.boxes`."""
    for path, tensor in tensors(value, name):
        steps = path.replace("[", ".").replace("]", "").replace("'", "").replace('"', "")
        yield steps.removeprefix(".") or "batch", tensor
