"""A census taken on suspicion: what was created in a few steps, what of it never goes away, and what holds it.

For PROBE steps every storage is followed with the lines that created it, and every container is measured before and
after. What is still there WAIT steps later, from each of these steps, is held for ever.
"""

from __future__ import annotations

import functools
import gc
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _python_dispatch as modes

from ocrlab.debug.instruments.leaks import growth_lines
from ocrlab.debug.instruments.leaks.object_sizes import is_figure_manager, mean_bytes
from ocrlab.debug.instruments.leaks.referrers import Holder, Search
from ocrlab.debug.instruments.memory.storage_tracker import StorageTracker
from ocrlab.debug.instruments.memory.timeline import Block

SEES_GRAPHS = hasattr(torch._C._autograd.SavedTensor, "data")  # torch 2.8 shows no saved tensor without unpacking it
PROBE, WAIT = 4, 8  # steps
LEAST = 16 * 1024  # bytes a step, below which nobody runs out of memory
SHARE = 0.6  # of the probed steps that must have left something
NODES = 6000  # of one autograd graph that are inspected, the newest first
KINDS = (list, dict, set, deque)

Members = list[tuple[int, Block]]  # storages with their addresses
Pointers = dict[int, list[Tensor]]  # Python's tensors by the address of their storage


@dataclass
class Candidate:
    """Something that grows: bytes by step, what holds it, where it was created, and whether it grew in evaluation."""

    kind: str
    bytes_by_step: list[float]
    holder: Holder | None
    stack: tuple[str, ...] = ()
    evaluation: bool = False


class Probe:
    """One census of `length` steps; `mode` says whether a step trains, evaluates, or evaluates with gradients.

    Where the model is called `calls` times for each step of the optimiser, those count as one step. `owned` returns the
    tensors that may live for ever.
    """

    def __init__(
        self, step: int, length: int, mode: Callable[[], str], owned: Callable[[], Iterable[Tensor]], calls: int = 1
    ) -> None:
        self.first, self.last, self.calls, self.owned = step, step + length * calls, calls, owned
        self.tracker = StorageTracker(lambda: ("", mode()), growth_lines.stack)
        self.tracker.step = step
        self.following = False
        objects = gc.get_objects()
        self._ids = np.sort(np.fromiter(map(id, objects), dtype=np.int64, count=len(objects)))
        self._before = _lengths(objects)
        self._middle: dict[int, tuple[int, type]] = {}

    def start(self) -> None:
        """Begin to follow storages."""
        self.tracker.__enter__()
        self.following = True

    def tick(self, step: int) -> None:
        """Begin the next step; after the last one of the census only deaths are noted."""
        self.tracker.step = step
        if self.following and step >= self.last:
            self._stop()
            self._middle = _lengths(gc.get_objects())

    def ripe(self, step: int, wait: int = WAIT) -> bool:
        """Tell whether enough steps have gone by to judge."""
        return not self.following and step >= self.last + wait

    def judge(self, step: int) -> list[Candidate]:
        """Return what was created in the census and is alive, by what holds it, and the containers that only grow."""
        search = Search(self._existed, (self.__dict__, self.tracker.__dict__, self.tracker.blocks))
        candidates = self._tensors(search, range(self.first, min(self.last, step)))
        reported = {id(candidate.holder.container) for candidate in candidates if candidate.holder}
        return candidates + self._containers(search, max(1, step - self.last), reported)

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
        """Tell whether an object of this id existed before the census."""
        at = int(np.searchsorted(self._ids, number))
        return at < len(self._ids) and int(self._ids[at]) == number

    def _tensors(self, search: Search, probed: range) -> list[Candidate]:
        """Return what holds the storages that were created in the probed steps and are alive."""
        owned = {tensor.untyped_storage()._cdata for tensor in stored_tensors(list(self.owned()))}
        blocks = list(self.tracker.blocks.items())
        alive = {key: b for key, b in blocks if b.phase and b.step in probed and key not in owned}
        if not self._bytes_by_step(alive.values(), probed):
            return []
        pointers = _python_tensors()
        search.skip |= {id(pointers), *map(id, pointers.values())}
        groups: dict[str, Members] = {}  # by the line that created them
        for key, block in alive.items():
            groups.setdefault(block.stack[0] if block.stack else block.op, []).append((key, block))
        by_holder: dict[str, tuple[str, Holder, list[Block]]] = {}
        loose: dict[int, Block] = {}
        for members in sorted(groups.values(), key=lambda members: -sum(block.bytes for _, block in members)):
            holder = _holder_of_tensors(search, members, pointers)
            if holder is None:
                loose.update(members)
            else:
                entry = by_holder.setdefault(holder.text, (_kind(holder, members, pointers), holder, []))
                entry[2].extend(block for _, block in members)
        for holder, graph_blocks in self._holders_of_graphs(search, loose, pointers):
            _, holder, tensor_blocks = by_holder.get(holder.text, ("", holder, []))
            by_holder[holder.text] = ("graph", holder, tensor_blocks + graph_blocks)
        candidates = []
        for kind, holder, holder_blocks in by_holder.values():
            if steps := self._bytes_by_step(holder_blocks, probed):
                largest = max(holder_blocks, key=lambda block: block.bytes)
                stack = largest.stack or next((block.stack for block in holder_blocks if block.stack), ())
                candidates.append(Candidate(kind, steps, holder, stack, largest.phase == "evaluation with gradients"))
        return candidates

    def _bytes_by_step(self, blocks: Iterable[Block], probed: range) -> list[float]:
        """Return bytes by step if most steps left something that counts, else nothing."""
        sums = [0.0] * max(1, len(probed) // self.calls)
        for block in blocks:
            step = (block.step - probed.start) // self.calls
            if block.step in probed and step < len(sums):
                sums[step] += block.bytes
        return sums if sum(size >= LEAST for size in sums) >= max(2, SHARE * len(sums)) else []

    def _holders_of_graphs(
        self, search: Search, loose: dict[int, Block], pointers: Pointers
    ) -> list[tuple[Holder, list[Block]]]:
        """Return what holds the graphs that keep storages which no tensor of Python has."""
        roots = [tensor for tensors in pointers.values() for tensor in tensors if tensor.grad_fn is not None]
        search.skip.add(id(roots))
        roots.sort(key=lambda tensor: tensor.untyped_storage()._cdata not in self.tracker.blocks)
        oldest = min((block.step for block in loose.values()), default=0)
        waiting = {key for key, block in loose.items() if block.step == oldest}
        holders = []
        for root in roots:
            if not waiting:
                break
            covered = waiting.intersection(saved_storages(root))
            holder = search.holder(root) if covered else None
            if holder is not None:
                waiting -= covered
                lines = {loose[key].stack[:1] for key in covered}
                holders.append((holder, [block for block in loose.values() if block.stack[:1] in lines]))
        return holders

    def _containers(self, search: Search, waited: int, reported: set[int]) -> list[Candidate]:
        """Return the containers that grew in the census and have grown on since."""
        candidates = []
        for thing in _all_containers(gc.get_objects()):
            number, kind = id(thing), type(thing)
            before, middle = self._before.get(number), self._middle.get(number)
            if before is None or middle is None or number in reported or kind is not before[1]:
                continue
            first, later = (middle[0] - before[0]) / (self.last - self.first), (len(thing) - middle[0]) / waited
            if first <= 0 or later < 0.5 * first:  # what levels off is no leak
                continue
            items = list(thing.values() if isinstance(thing, dict) else thing)
            size = mean_bytes(items[-4:]) * later
            holder = search.holder(thing) if size >= LEAST else None
            if holder is not None and (holder.container is None or id(holder.container) not in reported):
                figures = holder.kind == "figures" or (bool(items) and is_figure_manager(items[0]))
                candidates.append(
                    Candidate(
                        "figures" if figures else "objects", [size * self.calls], replace(holder, container=thing)
                    )
                )
        return candidates


def saved_storages(root: Tensor, most: int = NODES) -> Iterator[int]:
    """Yield the addresses of the storages that the graph of `root` has saved, without unpacking or changing anything.

    Packed tensors (checkpointing, saving on the CPU) are inspected as they are packed, since unpacking would compute.
    """
    waiting, visited = deque([root.grad_fn]), set()
    alive: list[Any] = []  # a node is a new Python object each time it is read; its id must not be used again
    while waiting and len(alive) < most:
        node = waiting.popleft()
        if node is None or node in visited:
            continue
        visited.add(node)
        alive.append(node)
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
    if isinstance(value, Tensor):
        if value.layout is torch.strided and value.device.type != "meta":
            yield value
    elif depth and isinstance(value, dict | list | tuple):
        for item in list(value.values() if isinstance(value, dict) else value):
            yield from stored_tensors(item, depth - 1)


def _python_tensors() -> Pointers:
    pointers: Pointers = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), Tensor):  # not isinstance: some objects pretend
            for tensor in stored_tensors(thing):
                pointers.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
    return pointers


def _holder_of_tensors(search: Search, members: Members, pointers: Pointers) -> Holder | None:
    """Return what holds the oldest of some storages, where Python has a tensor on it."""
    for key, _ in sorted(members, key=lambda member: member[1].step)[:3]:
        for tensor in pointers.get(key, ()):
            if holder := search.holder(tensor):
                return holder
    return None


def _kind(holder: Holder, members: Members, pointers: Pointers) -> str:
    if holder.kind == "hook":
        return "hook"
    graph = any(tensor.grad_fn is not None for key, _ in members for tensor in pointers.get(key, ()))
    return "graph" if graph and holder.container is None else "tensors"


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
        elif issubclass(kind, KINDS) and "weak" not in kind.__module__:
            yield thing
        elif kind is types.CellType or growth_lines.is_own_class(kind):  # type: ignore[arg-type]
            inner = gc.get_referents(thing)
        yield from (value for value in inner if type(value) is dict and not gc.is_tracked(value))
