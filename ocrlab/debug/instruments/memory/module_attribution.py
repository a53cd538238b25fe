"""Which module runs, forward or backward, without touching the graph.

Full backward hooks would put a function of their own around every module, and forbid in-place operations after it. So
the node that autograd is executing is asked for its sequence number, and the module is the one that made that number.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from ocrlab.debug.instruments.call_hook import CallHook, ThreadStack
from ocrlab.debug.instruments.compiled_modules import is_jit
from ocrlab.debug.instruments.memory.timeline import OUTSIDE

LEAF = 2**64 - 1  # the sequence number of every node that accumulates a gradient


@dataclass(slots=True)
class Span:
    """The sequence numbers that one forward of a module took."""

    module: str
    start: int
    end: int | None = None


class ModuleTracker:
    """Follows the modules of a model; `edge(name, entered)` is called whenever one begins or ends."""

    def __init__(self, model: nn.Module, edge: Callable[[str, bool], None]) -> None:
        self.edge = edge
        self.optimising = False
        self.names = dict(model.named_modules())
        self.parameters = {id(p): name for name, module in self.names.items() for p in module.parameters(recurse=False)}
        self._stack = ThreadStack()  # of spans; autograd has a thread for each device
        self._spans: dict[int, list[Span]] = {}  # by thread, in the order of their starts
        self._handles: list[Any] = []

    def attach(self) -> None:
        """Hook every module; the hooks look and return nothing."""
        for name, module in self.names.items():
            if not is_jit(module):
                name = name or "(model)"
                enter, leave = CallHook(partial(self._enter, name)), CallHook(partial(self._leave, name))
                self._handles.append(module.register_forward_pre_hook(enter, prepend=True))
                self._handles.append(module.register_forward_hook(leave, always_call=True))

    def detach(self) -> None:
        """Take every hook away."""
        while self._handles:
            self._handles.pop().remove()

    def clear(self) -> None:
        """Forget the graphs of earlier steps."""
        if all(span.end is not None for spans in self._spans.values() for span in spans):
            self._spans.clear()

    @property
    def depth(self) -> int:
        """Return how many modules of this thread are running."""
        return len(self._stack.entered)

    def where(self) -> tuple[str, str]:
        """Return (module, phase): forward, evaluation, backward, recompute, optimizer, or outside."""
        inner = self._stack.entered[-1].module if self._stack.entered else ""
        node = torch._C._current_autograd_node()
        if node is not None:
            return (inner, "recompute") if inner else (self._module_of_node(node), "backward")
        if self.optimising:
            return OUTSIDE, "optimizer"
        if inner:
            return inner, "forward" if torch.is_grad_enabled() else "evaluation"
        return OUTSIDE, "outside"

    def _module_of_node(self, node: Any) -> str:
        number = node._sequence_nr()
        if number == LEAF:
            return self.parameters.get(id(getattr(node, "variable", None)), OUTSIDE)
        here = threading.get_ident()
        for thread in sorted(self._spans, key=lambda thread: thread != here):
            spans = self._spans[thread]
            for span in reversed(spans[: bisect_right(spans, number, key=lambda span: span.start)]):
                if span.end is None or number < span.end:  # the last one that began is the innermost
                    return span.module
        return OUTSIDE

    def _enter(self, name: str, _module: nn.Module, _args: Any) -> None:
        self.edge(name, True)
        span = Span(name, torch.autograd._get_sequence_nr())
        self._spans.setdefault(threading.get_ident(), []).append(span)
        self._stack.entered.append(span)

    def _leave(self, name: str, _module: nn.Module, _args: Any, _output: Any) -> None:
        while self._stack.entered:  # what an exception left open ends here too
            ended = self._stack.entered.pop()
            ended.end = torch.autograd._get_sequence_nr()
            if ended.module == name:
                break
        self.edge(name, False)
