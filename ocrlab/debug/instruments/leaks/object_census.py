"""A census taken on suspicion: what was created in a few steps, what of it never goes away, and what holds it.

For some steps every storage is followed with the lines that created it, and every container is measured before and
after. What is still there WAIT steps later, from each of these steps, is held for ever.
"""

from __future__ import annotations

import functools
import gc
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _python_dispatch as modes

from ocrlab.debug.instruments.leaks.referrers import GROWING, Holder, HolderSearch, mean_bytes
from ocrlab.debug.instruments.memory.storage_tracker import StorageTracker
from ocrlab.debug.instruments.memory.timeline import Block
from ocrlab.debug.instruments.tensor_tree import nested_tensors
from ocrlab.debug.instruments.user_code import is_own_class, own_stack

SEES_GRAPHS = hasattr(torch._C._autograd.SavedTensor, "data")  # torch 2.8 shows no saved tensor without unpacking it
LENGTH, WAIT = 4, 8  # steps of a census, and after it until what is alive is held for ever
LEAST = 16 * 1024  # bytes a step, below which nobody runs out of memory
SHARE = 0.6  # of the steps of the census that must have left something
MOST_NODES = 6000  # of one autograd graph that are inspected, the newest first
GRADIENTS_IN_EVALUATION = "evaluation with gradients"  # the mode of a step

Storages = dict[int, Block]  # by address
Pointers = dict[int, list[Tensor]]  # Python's tensors by the address of their storage


@dataclass
class Candidate:
    """Something that grows: bytes by step, what holds it, where it was created, and whether it grew in evaluation."""

    kind: str
    bytes_by_step: list[float]
    holder: Holder
    stack: tuple[str, ...] = ()
    evaluation: bool = False


class Census:
    """One census of `length` steps; `mode` says whether a step trains, evaluates, or evaluates with gradients.

    Where the model is called `calls` times for each step of the optimizer, those count as one step. `owned` returns the
    tensors that may live for ever.
    """

    def __init__(
        self, step: int, length: int, mode: Callable[[], str], owned: Callable[[], Iterable[Tensor]], calls: int = 1
    ) -> None:
        self.first, self.last, self.calls, self.owned = step, step + length * calls, calls, owned
        self.tracker = StorageTracker(lambda: ("", mode()), own_stack)
        self.tracker.step = step
        objects = gc.get_objects()
        self._ids = np.sort(np.fromiter(map(id, objects), dtype=np.int64, count=len(objects)))
        self._lengths_before = _lengths(objects)
        self._lengths_after: dict[int, tuple[int, type]] = {}
        self.tracker.__enter__()
        self.following = True

    def tick(self, step: int) -> None:
        """Begin the next step; after the last one of the census only deaths are noted."""
        self.tracker.step = step
        if self.following and step >= self.last:
            self._stop()
            self._lengths_after = _lengths(gc.get_objects())

    def is_ready(self, step: int, wait: int = WAIT) -> bool:
        """Return whether enough steps have gone by to judge."""
        return not self.following and step >= self.last + wait

    def judge(self, step: int, hooked: Iterable[nn.Module] = ()) -> list[Candidate]:
        """Return what was created in the census and is alive, by what holds it, and the containers that only grow."""
        search = HolderSearch(self._existed, (self.__dict__, self.tracker.__dict__, self.tracker.blocks), hooked)
        candidates = self._growing_tensors(search, range(self.first, min(self.last, step)))
        reported = {id(candidate.holder.container) for candidate in candidates}
        return candidates + self._growing_containers(search, max(1, step - self.last), reported)

    def close(self) -> None:
        """Release everything."""
        self._stop()
        self.tracker.end()

    def _stop(self) -> None:
        """Stop unless another mode was put above it meanwhile: a mode that is off lets everything through."""
        if self.following and modes._get_current_dispatch_mode() is self.tracker:
            self.tracker.__exit__(None, None, None)
            self.following = False
        elif self.following:
            self.tracker.guard.fail(RuntimeError("another dispatch mode was opened meanwhile"))

    def _existed(self, number: int) -> bool:
        """Return whether an object of this id existed before the census."""
        at = int(np.searchsorted(self._ids, number))
        return at < len(self._ids) and int(self._ids[at]) == number

    def _growing_tensors(self, search: HolderSearch, steps: range) -> list[Candidate]:
        """Return what holds the storages that were created in the steps of the census and are alive."""
        owned = {tensor.untyped_storage()._cdata for tensor in stored_tensors(list(self.owned()))}
        blocks = list(self.tracker.blocks.items())
        alive = {key: b for key, b in blocks if b.phase and b.step in steps and key not in owned}
        if not self._bytes_by_step(alive.values(), steps):
            return []
        pointers: Pointers = {}
        for thing in gc.get_objects():
            if issubclass(type(thing), Tensor):  # not isinstance: some objects pretend
                for tensor in stored_tensors(thing):
                    pointers.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
        search.skip |= {id(pointers), *map(id, pointers.values())}
        by_line: dict[str, Storages] = {}
        for key, block in alive.items():
            by_line.setdefault(block.stack[0] if block.stack else block.op, {})[key] = block
        by_holder: dict[str, tuple[str, Holder, list[Block]]] = {}
        without_tensor: Storages = {}
        for storages in sorted(by_line.values(), key=lambda group: -sum(block.bytes for block in group.values())):
            holder = _holder_of_oldest(search, storages, pointers)
            if holder is None:
                without_tensor.update(storages)
            else:
                has_graph = any(tensor.grad_fn is not None for key in storages for tensor in pointers.get(key, ()))
                kind = "graph" if has_graph and holder.container is None else "tensors"
                kind = "hook" if holder.kind == "hook" else kind
                by_holder.setdefault(holder.text, (kind, holder, []))[2].extend(storages.values())
        for holder, graph_blocks in self._holders_of_graphs(search, without_tensor, pointers):
            _, holder, tensor_blocks = by_holder.get(holder.text, ("", holder, []))
            by_holder[holder.text] = ("graph", holder, tensor_blocks + graph_blocks)
        candidates = []
        for kind, holder, lasting in by_holder.values():
            if sizes := self._bytes_by_step(lasting, steps):
                largest = max(lasting, key=lambda block: block.bytes)
                stack = largest.stack or next((block.stack for block in lasting if block.stack), ())
                evaluation = largest.phase == GRADIENTS_IN_EVALUATION
                candidates.append(Candidate(kind, sizes, holder, stack, evaluation))
        return candidates

    def _bytes_by_step(self, blocks: Iterable[Block], steps: range) -> list[float]:
        """Return bytes by step if most steps left something that counts, else nothing."""
        sums = [0.0] * max(1, len(steps) // self.calls)
        for block in blocks:
            step = (block.step - steps.start) // self.calls
            if block.step in steps and step < len(sums):
                sums[step] += block.bytes
        return sums if sum(size >= LEAST for size in sums) >= max(2, SHARE * len(sums)) else []

    def _holders_of_graphs(
        self, search: HolderSearch, storages: Storages, pointers: Pointers
    ) -> Iterator[tuple[Holder, list[Block]]]:
        """Yield what holds the graphs that keep storages which no tensor of Python has."""
        roots = [tensor for tensors in pointers.values() for tensor in tensors if tensor.grad_fn is not None]
        search.skip.add(id(roots))
        roots.sort(key=lambda tensor: tensor.untyped_storage()._cdata not in self.tracker.blocks)
        oldest = min((block.step for block in storages.values()), default=0)
        waiting = {key for key, block in storages.items() if block.step == oldest}
        unnamed: set[int] = set()  # storages of graphs that only a variable of a function can hold
        for root in roots:
            covered = waiting.intersection(saved_storages(root)) if waiting else set()
            holder = search.holder(root) if covered else None
            if holder is None:
                unnamed |= covered
            else:
                waiting -= covered
                yield holder, _created_with(storages, covered)
        unnamed &= waiting
        if unnamed and (holder := search.local_holder(None)):
            yield holder, _created_with(storages, unnamed)

    def _growing_containers(self, search: HolderSearch, waited: int, reported: set[int]) -> list[Candidate]:
        """Return the containers that grew in the census and have grown on since."""
        candidates = []
        for thing in _all_containers(gc.get_objects()):
            number, kind = id(thing), type(thing)
            before, after = self._lengths_before.get(number), self._lengths_after.get(number)
            if before is None or after is None or number in reported or kind is not before[1]:
                continue
            first, later = (after[0] - before[0]) / (self.last - self.first), (len(thing) - after[0]) / waited
            if first <= 0 or later < 0.5 * first:  # what levels off is not a leak
                continue
            newest = list(thing.values() if isinstance(thing, dict) else thing)[-4:]
            size = mean_bytes(newest) * later
            holder = search.holder(thing, thing) if size >= LEAST else None
            if holder is not None:
                grown = "figures" if holder.kind == "figures" else "objects"
                candidates.append(Candidate(grown, [size * self.calls], holder))
        return candidates


def _created_with(storages: Storages, some: set[int]) -> list[Block]:
    """Return the storages that the same lines have created as some of them."""
    lines = {storages[key].stack[:1] for key in some}
    return [block for block in storages.values() if block.stack[:1] in lines]


def saved_storages(root: Tensor) -> Iterator[int]:
    """Yield the addresses of the storages that the graph of `root` has saved, without unpacking or changing anything.

    Packed tensors (checkpointing, saving on the CPU) are inspected as they are packed, since unpacking would compute.
    """
    visited: set[Any] = set()  # of nodes, which it keeps: each is a new Python object when it is read
    waiting = deque([root.grad_fn])
    while waiting and len(visited) < MOST_NODES:
        node = waiting.popleft()
        if node is not None and node not in visited:
            visited.add(node)
            for tensor in _saved_tensors(node):
                yield tensor.untyped_storage()._cdata
            waiting.extend(following for following, _ in node.next_functions)


def _saved_tensors(node: Any) -> Iterator[Tensor]:
    for name in _saved_names(type(node)):  # type: ignore[arg-type]
        try:
            saved = getattr(node, name)
            for item in saved if isinstance(saved, list | tuple) else (saved,):
                yield from stored_tensors(item.data)
        except (RuntimeError, AttributeError, TypeError):
            continue  # freed by the backward pass, or not set
    if hasattr(node, "maybe_clear_saved_tensors"):  # a function of the user's, which can hold things itself
        yield from stored_tensors(list(vars(node).values()))


@functools.cache
def _saved_names(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved"))


def stored_tensors(value: Any, depth: int = 3) -> Iterator[Tensor]:
    """Yield the tensors with storage inside lists, tuples and dicts."""
    return (t for t in nested_tensors(value, depth) if t.layout is torch.strided and t.device.type != "meta")


def _holder_of_oldest(search: HolderSearch, storages: Storages, pointers: Pointers) -> Holder | None:
    """Return what holds the oldest of some storages, where Python has a tensor on it."""
    oldest = sorted(storages, key=lambda key: storages[key].step)[:3]
    holders = (search.holder(tensor) for key in oldest for tensor in pointers.get(key, ()))
    return next(filter(None, holders), None)


def _lengths(objects: Iterable[Any]) -> dict[int, tuple[int, type]]:
    return {id(thing): (len(thing), type(thing)) for thing in _all_containers(objects)}


def _all_containers(objects: Iterable[Any]) -> Iterator[Any]:
    """Yield every list, dict, set and deque; also dicts that gc does not track, as they hold arrays only."""
    for thing in objects:
        kind = type(thing)
        inner: Iterable[Any] = ()
        if kind is dict:
            yield thing
            inner = list(thing.values())
        elif issubclass(kind, GROWING) and "weak" not in kind.__module__:
            yield thing
        elif kind is types.CellType or is_own_class(kind):  # type: ignore[arg-type]
            inner = gc.get_referents(thing)
        yield from (value for value in inner if type(value) is dict and not gc.is_tracked(value))
