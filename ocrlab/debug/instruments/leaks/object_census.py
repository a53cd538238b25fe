"""A closer look, taken on suspicion only: who is born in a few steps, who of them never dies, and who keeps them.

For `PROBE` steps every storage is followed with the lines that made it, and every container is measured before and
after. What is still there `WAIT` steps later, from each of these steps, is kept for ever by something.
"""

from __future__ import annotations

import gc
import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils import _python_dispatch as modes

from ocrlab.debug.instruments.leaks import autograd_graph, growth_lines
from ocrlab.debug.instruments.leaks.referrers import Holder, Search
from ocrlab.debug.instruments.memory.storage_tracker import StorageTracker, stored_bytes
from ocrlab.debug.instruments.memory.timeline import Block

PROBE, WAIT = 4, 8  # steps
LEAST = 16 * 1024  # bytes a step, below which nobody runs out of memory
SHARE = 0.6  # of the probed steps that must have left something
KINDS = (list, dict, set, deque)
ITEMS = 4  # items of a container whose size is looked at
INSIDE = 4  # levels of what an item holds


@dataclass
class Candidate:
    """Something that grows: bytes by step, who keeps it, where it was made, and whether it grew in evaluation."""

    kind: str
    bytes_by_step: list[float]
    holder: Holder | None
    stack: tuple[str, ...] = ()
    evaluation: bool = False


class Probe:
    """One closer look, of `length` steps; `mode` says whether a step trains, evaluates, or evaluates with gradients.

    Where the model is called `calls` times for each step of the optimiser, those count as one step.
    """

    def __init__(
        self,
        tick: int,
        length: int,
        mode: Callable[[], str],
        owned: Callable[[], Iterable[Tensor]],
        calls: int = 1,
    ) -> None:
        self.begun, self.length, self.calls, self.owned = tick, length * calls, calls, owned
        self.live = StorageTracker(lambda: ("", mode()), growth_lines.stack)
        objects = gc.get_objects()
        self._ids = np.sort(np.fromiter(map(id, objects), dtype=np.int64, count=len(objects)))
        self._before = _lengths(objects)
        del objects  # nothing is kept alive by having been looked at
        self._middle: dict[int, tuple[int, type]] = {}
        self._level = modes._len_torch_dispatch_stack()
        self.following = False
        self.live.step = tick

    def start(self) -> None:
        """Begin to follow storages."""
        self.live.__enter__()
        self.following = True

    def tick(self, tick: int) -> None:
        """Begin the next step; after the last one of the look only the deaths are noted."""
        self.live.step = tick
        if self.following and tick >= self.begun + self.length:
            self.stop()
            self._middle = _lengths(gc.get_objects())

    def stop(self) -> None:
        """Stop following, if nothing else was put above it meanwhile; a mode that is off lets everything through."""
        top = modes._get_current_dispatch_mode()
        if self.following and top is self.live:
            self.live.__exit__(None, None, None)
            self.following = False
        elif self.following:
            self.live.guard.fail(RuntimeError("another dispatch mode was opened meanwhile"))

    def ripe(self, tick: int, wait: int = WAIT) -> bool:
        """Tell whether enough steps have gone by to judge."""
        return not self.following and tick >= self.begun + self.length + wait

    def judge(self, tick: int) -> list[Candidate]:
        """Return what was born in the look and is alive, by who keeps it, and the containers that only grow."""
        last = min(self.begun + self.length, tick)
        probed = range(self.begun, last)
        search = Search(self.old, (self.__dict__, self.live.__dict__, self.live.blocks))
        candidates = self._tensors(search, probed)
        reported = {id(candidate.holder.container) for candidate in candidates if candidate.holder}
        return candidates + self._containers(search, tick, reported)

    def close(self) -> None:
        """Let go of everything."""
        self.stop()
        self.live.end()

    def old(self, number: int) -> bool:
        """Tell whether an object of this id was there before the look."""
        at = int(np.searchsorted(self._ids, number))
        return at < len(self._ids) and int(self._ids[at]) == number

    # Tensors.

    def _survivors(self, probed: range) -> dict[int, Block]:
        mine = {t.untyped_storage()._cdata for t in autograd_graph.tensors(list(self.owned()))}
        blocks = list(self.live.blocks.items())
        return {key: b for key, b in blocks if b.phase and b.step in probed and key not in mine}

    def _tensors(self, search: Search, probed: range) -> list[Candidate]:
        alive = self._survivors(probed)
        if _enough(_by_step(alive.values(), probed, self.calls)) is None:
            return []
        pointers = _python_tensors()
        search.skip |= {id(pointers), *map(id, pointers.values())}
        groups: dict[str, list[tuple[int, Block]]] = {}
        for key, block in alive.items():
            groups.setdefault(block.stack[0] if block.stack else block.op, []).append((key, block))
        by_holder: dict[str, tuple[str, Holder, list[Block]]] = {}
        loose: dict[int, Block] = {}
        for members in sorted(groups.values(), key=lambda some: -sum(block.bytes for _, block in some)):
            holder = self._of_python(search, members, pointers)
            if holder is None:
                loose.update(members)
            else:
                kind, _, blocks = by_holder.setdefault(holder.words, (_kind(holder, members, pointers), holder, []))
                blocks.extend(block for _, block in members)
        for words, holder, blocks in self._of_graphs(search, loose, pointers):
            _, _, mine = by_holder.setdefault(words, ("graph", holder, []))
            by_holder[words] = ("graph", holder, mine)
            mine.extend(blocks)
        candidates = []
        for kind, holder, blocks in by_holder.values():
            steps = _enough(_by_step(blocks, probed, self.calls))
            if steps is not None:
                biggest = max(blocks, key=lambda block: block.bytes)
                evaluation = biggest.phase == "evaluation with gradients"
                candidates.append(Candidate(kind, steps, holder, _shown(biggest.stack, blocks), evaluation))
        return candidates

    def _of_python(self, search: Search, members: list[tuple[int, Block]], pointers: dict[int, Any]) -> Holder | None:
        """Return who keeps the oldest of some storages, where Python has a tensor on it."""
        for key, _ in sorted(members, key=lambda member: member[1].step)[:3]:
            for tensor in pointers.get(key, ()):
                holder = search.holder(tensor)
                if holder is not None:
                    return holder
        return None

    def _of_graphs(
        self, search: Search, loose: dict[int, Block], pointers: dict[int, Any]
    ) -> list[tuple[str, Holder, list[Block]]]:
        """Return who keeps the graphs that keep storages which nothing in Python has."""
        roots = [t for some in pointers.values() for t in some if t.grad_fn is not None]
        search.skip.add(id(roots))
        roots.sort(key=lambda tensor: tensor.untyped_storage()._cdata not in self.live.blocks)
        oldest = min((block.step for block in loose.values()), default=0)
        waiting = {key for key, block in loose.items() if block.step == oldest}
        by_holder: dict[str, tuple[str, Holder, list[Block]]] = {}
        for root in roots:
            if not waiting:
                break
            covered = {key for key in autograd_graph.saved_storages(root) if key in waiting}
            holder = search.holder(root) if covered else None
            if holder is not None:
                waiting -= covered
                lines = {loose[key].stack[:1] for key in covered}
                blocks = [block for block in loose.values() if block.stack[:1] in lines]
                by_holder.setdefault(holder.words, (holder.words, holder, []))[2].extend(blocks)
        return list(by_holder.values())

    # Everything else.

    def _containers(self, search: Search, tick: int, reported: set[int]) -> list[Candidate]:
        candidates = []
        waited = max(1, tick - self.begun - self.length)
        for thing in _containers(gc.get_objects()):  # again: nothing was kept
            number, length = id(thing), len(thing)
            before, middle = self._before.get(number), self._middle.get(number)
            if before is None or middle is None or number in reported or type(thing) is not before[1]:
                continue
            first = (middle[0] - before[0]) / self.length
            then = (length - middle[0]) / waited
            if first <= 0 or then < 0.5 * first:  # what levels off is no leak
                continue
            size = _item_bytes(thing)
            if size * then < LEAST:
                continue
            holder = search.holder(thing)
            if holder is not None and not (holder.container is not None and id(holder.container) in reported):
                kind = "figures" if holder.kind == "figures" or _is_figures(thing) else "objects"
                candidates.append(Candidate(kind, [size * then * self.calls], _with(holder, thing)))
        return candidates


def _with(holder: Holder, thing: Any) -> Holder:
    return Holder(**{**holder.__dict__, "container": thing})


def _lengths(objects: Iterable[Any]) -> dict[int, tuple[int, type]]:
    return {id(thing): (len(thing), type(thing)) for thing in _containers(objects)}


def _containers(objects: Iterable[Any]) -> Iterator[Any]:
    """Yield every list, dict, set and deque; of dicts also those that gc does not track, as they hold arrays only."""
    for thing in objects:
        kind = type(thing)
        if kind is dict:
            yield thing
            for value in list(thing.values()):
                if type(value) is dict and not gc.is_tracked(value):
                    yield value
        elif issubclass(kind, KINDS) and "weak" not in kind.__module__:  # not isinstance: some objects pretend
            yield thing
        elif kind is types.CellType or growth_lines.is_own_class(kind):  # type: ignore[arg-type]
            for value in gc.get_referents(thing):
                if type(value) is dict and not gc.is_tracked(value):
                    yield value


def _python_tensors() -> dict[int, list[Tensor]]:
    """Return every tensor that Python knows of, by the address of its storage."""
    by_storage: dict[int, list[Tensor]] = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), Tensor):
            for tensor in autograd_graph.tensors(thing):
                by_storage.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
    return by_storage


def _by_step(blocks: Iterable[Block], probed: range, calls: int) -> list[float]:
    sums = dict.fromkeys(range(max(1, len(probed) // calls)), 0.0)
    for block in blocks:
        step = (block.step - probed.start) // calls
        if block.step in probed and step in sums:
            sums[step] += block.bytes
    return list(sums.values())


def _enough(by_step: list[float]) -> list[float] | None:
    """Return bytes by step if most steps left something that counts, else None."""
    left = [count for count in by_step if count >= LEAST]
    return by_step if len(left) >= max(2, SHARE * len(by_step)) else None


def _kind(holder: Holder, members: list[tuple[int, Block]], pointers: dict[int, Any]) -> str:
    if holder.kind == "hook":
        return "hook"
    graph = any(tensor.grad_fn is not None for key, _ in members for tensor in pointers.get(key, ()))
    return "graph" if graph and holder.container is None else "tensors"


def _shown(stack: tuple[str, ...], blocks: Iterable[Block]) -> tuple[str, ...]:
    return stack or next((block.stack for block in blocks if block.stack), ())


def _item_bytes(thing: Any) -> float:
    """Return the mean size of the last items of a container, in bytes, with what they hold."""
    values = list(thing.values()) if isinstance(thing, dict) else list(thing)
    some = values[-ITEMS:]
    return sum(_bytes(value, INSIDE) for value in some) / max(1, len(some))


def _bytes(value: Any, depth: int) -> float:
    if isinstance(value, Tensor):
        return stored_bytes(value)
    size = getattr(value, "nbytes", None)
    if isinstance(size, int):
        return float(size)
    if type(value).__module__.startswith("PIL.") and hasattr(value, "size"):
        width, height = value.size
        return float(width * height * len(value.getbands()))
    if _is_figure_manager(value):
        return float(np.prod(value.canvas.get_width_height()) * 4)
    total = float(sys.getsizeof(value, 0))
    if depth and isinstance(value, dict):
        total += sum(_bytes(item, depth - 1) for item in list(value.values())[:64])
    elif depth and isinstance(value, list | tuple | set | deque):
        items = list(value)[:64]
        total += sum(_bytes(item, depth - 1) for item in items) * (len(value) / max(1, len(items)))
    elif depth and hasattr(value, "__dict__") and not isinstance(value, type):
        total += sum(_bytes(item, depth - 1) for item in list(vars(value).values())[:64])
    return total


def _is_figure_manager(value: Any) -> bool:
    return hasattr(value, "canvas") and hasattr(value, "num") and hasattr(value.canvas, "get_width_height")


def _is_figures(thing: Any) -> bool:
    return isinstance(thing, dict) and bool(thing) and _is_figure_manager(next(iter(thing.values())))
