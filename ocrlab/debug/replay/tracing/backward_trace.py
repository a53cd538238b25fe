"""Which module the backward pass of a replayed step is in: nodes of the graph by the sequence number of their making.

Full backward hooks of modules would wrap their inputs and outputs, which forbids in-place operators after them
(ReLU(inplace=True)); hooks on the nodes of the graph change nothing. Tensor hooks run before a node's own, so that the
node which comes next is foretold, as the engine takes it: the ready one that was made last.
"""

from __future__ import annotations

import bisect
import functools
import heapq
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ocrlab.debug.replay.tracing.call_stack import node_function

Place = dict[str, Any]
COUNTED = 1 << 62  # sequence numbers above it are not numbers: gradients of leaves


class BackwardTrace:
    """Nodes of the graph and the places where they were made; `changed(name, place)` is called at each node.

    `began` is called with what backward is called of, `ended` with whether it leaves gradients in the leaves: one that
    only asks for them (torch.autograd.grad, a gradient penalty) is a part of the forward.
    """

    def __init__(
        self, changed: Callable[[str, Place], None], began: Callable[[Any], None], ended: Callable[[bool], None]
    ):
        self.changed, self.began, self.ended = changed, began, ended
        self.places: dict[int, Place] = {}  # by sequence number
        self.marks: list[tuple[int, Place]] = []  # in order
        self.parameters: dict[int, str] = {}
        self.originals: list[tuple[Any, str, Any]] = []
        self.depth = self.sequence_number = 0
        self.now: tuple[str, Place] | None = None  # the node that runs, or that comes next
        self.node: Any = None  # the same, itself

    def hook(self, parameters: dict[int, str]) -> None:
        """Look into every backward pass that begins from now on; `parameters` are names by id."""
        self.places, self.marks, self.parameters, self.depth, self.now = {}, [], parameters, 0, None
        self.sequence_number = sequence()
        for name in ("backward", "grad"):
            original = getattr(torch.autograd, name)
            self.originals.append((torch.autograd, name, original))
            setattr(torch.autograd, name, self._around(original, leaves=name == "backward"))

    def unhook(self) -> None:
        """Put the functions of torch back."""
        while self.originals:
            owner, name, original = self.originals.pop()
            setattr(owner, name, original)

    def mark(self, place: Place) -> None:
        """Say that nodes which are made from now on belong to a place."""
        self.sequence_number = sequence()
        self.marks.append((self.sequence_number, place))

    def assign_last_node(self, place: Place) -> None:
        """Say that the node which was made last belongs to the operator that begins now."""
        now = sequence()
        if now > self.sequence_number:  # else it has no node, and the last one is of somebody before it
            self.places[now - 1] = place
        self.sequence_number = now

    def place(self, number: int, *, wraps: bool = False) -> Place:
        """Return where the node with a sequence number was made. One that `wraps` a module for its backward hook was
        made just after that module's exit or entry.
        """
        if number in self.places and not wraps:
            return self.places[number]
        index = bisect.bisect_right(self.marks, number, key=lambda mark: mark[0]) - 1
        place = self.marks[index][1] if index >= 0 else {}
        return dict(place["left"]) if wraps and place.get("left") else place

    def _around(self, original: Callable[..., Any], *, leaves: bool) -> Callable[..., Any]:
        @functools.wraps(original)
        def around(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            handles = self._watch(tensors)
            self.depth += 1
            if self.depth == 1:
                self.began(tensors)
            before = self.now
            try:
                result = original(tensors, *args, **kwargs)
                self.now = before if self.depth > 1 else None  # after an exception it stays: that is where
            finally:
                self.depth -= 1
                for handle in handles:
                    handle.remove()
            if self.depth == 0:
                self.ended(leaves)
            return result

        return around

    def _watch(self, tensors: Any) -> list[Any]:
        """Put hooks on every node below some tensors; return their handles."""
        starts = [tensors] if isinstance(tensors, Tensor) else list(tensors) if isinstance(tensors, Iterable) else []
        roots = [tensor.grad_fn for tensor in starts if isinstance(tensor, Tensor) and tensor.grad_fn is not None]
        waiting: dict[Any, int] = {}
        nodes, todo = set(roots), list(dict.fromkeys(roots))
        while todo:
            for after, _ in todo.pop().next_functions:
                if after is not None:
                    waiting[after] = waiting.get(after, 0) + 1
                    if after not in nodes:
                        nodes.add(after)
                        todo.append(after)
        ready = _Ready(waiting)
        handles: list[Any] = []
        for node in nodes:
            handles.append(node.register_prehook(functools.partial(self._at, node)))
            handles.append(node.register_hook(functools.partial(self._done, node, ready)))
        for node in roots:
            if not waiting.get(node):
                ready.push(node)
        self._at(ready.next())
        return handles

    def _done(self, node: Any, ready: _Ready, *_gradients: Any) -> None:
        ready.done(node)
        self._at(ready.next())

    def _at(self, node: Any, *_gradients: Any) -> None:
        """Note that a node comes next, or runs."""
        if node is None:
            return
        name, number, own = node.name().rpartition("::")[2], node._sequence_nr(), node_function(node)
        place = {"parameter": self.parameters.get(id(getattr(node, "variable", None)))}
        if number < COUNTED:
            place = self.place(number, wraps=name.startswith("BackwardHookFunction"))
        self.now, self.node = (name, {**place, "function": own} if own else place), node
        self.changed(*self.now)


class _Ready:
    """The nodes whose gradients have all arrived, as the engine would take them: the latest made first."""

    def __init__(self, waiting: dict[Any, int]) -> None:
        self.waiting = waiting
        self.heap: list[tuple[int, int, Any]] = []
        self.ended: set[Any] = set()
        self.ties = itertools.count()

    def push(self, node: Any) -> None:
        heapq.heappush(self.heap, (-node._sequence_nr(), next(self.ties), node))

    def done(self, node: Any) -> None:
        self.ended.add(node)
        for after, _ in node.next_functions:
            if after is not None:
                self.waiting[after] -= 1
                if self.waiting[after] == 0:
                    self.push(after)

    def next(self) -> Any:
        while self.heap and self.heap[0][2] in self.ended:
            heapq.heappop(self.heap)
        return self.heap[0][2] if self.heap else None


def sequence() -> int:
    """Return the number that the next node of the graph gets in this thread."""
    return int(torch._C._autograd._get_sequence_nr())
