"""What autograd's graph keeps alive behind a tensor, read without unpacking anything and without changing it."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

SEES = hasattr(torch._C._autograd.SavedTensor, "data")  # torch 2.8 shows no saved tensor without unpacking it
NODES = 6000  # of one graph that are looked at, the newest first


def saved_storages(root: Tensor, most: int = NODES) -> Iterator[int]:
    """Yield the addresses of the storages that the graph behind `root` has saved; those that were freed are not there.

    Packed tensors (checkpointing, saving on the CPU) are looked at as they are packed, since unpacking would compute.
    """
    waiting, visited = deque([root.grad_fn]), set()
    alive: list[Any] = []  # a node seen from Python is a new object each time; its id must not be used again
    while waiting and len(alive) < most:
        node = waiting.popleft()
        if node is None or node in visited:
            continue
        visited.add(node)
        alive.append(node)
        for tensor in _saved(node):
            yield tensor.untyped_storage()._cdata
        waiting.extend(below for below, _ in node.next_functions)


def _saved(node: Any) -> Iterator[Tensor]:
    for name in _names(type(node)):  # type: ignore[arg-type]
        try:
            raw = getattr(node, name)
            for saved in raw if isinstance(raw, list | tuple) else (raw,):
                yield from tensors(saved.data)
        except (RuntimeError, AttributeError, TypeError):
            continue  # freed by the backward pass, or not set
    if hasattr(node, "maybe_clear_saved_tensors"):  # a function of the user's, which can keep things in itself
        yield from tensors(list(vars(node).values()))


@functools.cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved"))


def tensors(value: Any, depth: int = 3) -> Iterator[Tensor]:
    """Yield the tensors with storage inside lists, tuples and dicts."""
    if isinstance(value, Tensor):
        if value.layout.__str__() == "torch.strided" and value.device.type != "meta":
            yield value
    elif depth and isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item, depth - 1)
    elif depth and isinstance(value, dict):
        for item in list(value.values()):
            yield from tensors(item, depth - 1)
