"""Which module runs, forward or backward, without touching the graph.

Full backward hooks would put a function of their own around every module, and forbid in-place operations after it. So
the node that autograd is executing is asked for its sequence number, and the module is the one that made that number.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from ocrlab.debug.instruments.call_hook import CallHook
from ocrlab.debug.instruments.compiled_modules import is_jit
from ocrlab.debug.instruments.memory.timeline import OUTSIDE

LEAF = 2**64 - 1  # the sequence number of every node that accumulates a gradient


class ModuleTracker:
    """Follows the modules of a model; `edge(name, entered)` is called whenever one begins or ends."""

    def __init__(self, model: nn.Module, edge: Callable[[str, bool], None]) -> None:
        self.edge = edge
        self.optimising = False
        self.names = dict(model.named_modules())
        self.parameters = {id(p): name for name, module in self.names.items() for p in module.parameters(recurse=False)}
        self._local = threading.local()  # replicas run in threads; autograd has one for each device
        self._marks: dict[int, tuple[list[int], list[list[Any]]]] = {}
        self._handles: list[Any] = []

    def attach(self) -> None:
        """Hook every module; the hooks look and return nothing."""
        for name, module in self.names.items():
            if is_jit(module):
                continue
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
        if not any(end is None for _, spans in self._marks.values() for _, end, _ in spans):
            self._marks.clear()

    @property
    def depth(self) -> int:
        """Return how many modules of this thread are running."""
        return len(self._stack())

    def where(self) -> tuple[str, str]:
        """Return (module, phase): forward, evaluation, backward, recompute, optimizer, or outside."""
        stack = self._stack()
        node = torch._C._current_autograd_node()
        if node is not None:
            return (stack[-1], "recompute") if stack else (self._module_of_node(node), "backward")
        if self.optimising:
            return OUTSIDE, "optimizer"
        if stack:
            return stack[-1], "forward" if torch.is_grad_enabled() else "evaluation"
        return OUTSIDE, "outside"

    def _module_of_node(self, node: Any) -> str:
        number = node._sequence_nr()
        if number == LEAF:
            return self.parameters.get(id(getattr(node, "variable", None)), OUTSIDE)
        here = threading.get_ident()
        for thread in (here, *(thread for thread in self._marks if thread != here)):
            starts, spans = self._marks.get(thread, ([], []))
            for index in range(bisect_right(starts, number) - 1, -1, -1):  # the last one that began is the innermost
                _, end, name = spans[index]
                if end is None or number < end:
                    return str(name)
        return OUTSIDE

    def _stack(self) -> list[str]:
        if not hasattr(self._local, "stack"):
            self._local.stack, self._local.open = [], []
        stack: list[str] = self._local.stack
        return stack

    def _enter(self, name: str, _module: nn.Module, _args: Any) -> None:
        stack = self._stack()
        self.edge(name, True)
        starts, spans = self._marks.setdefault(threading.get_ident(), ([], []))
        number = torch.autograd._get_sequence_nr()
        starts.append(number)
        spans.append([number, None, name])
        stack.append(name)
        self._local.open.append(spans[-1])

    def _leave(self, name: str, _module: nn.Module, _args: Any, _output: Any) -> None:
        stack = self._stack()
        while stack:  # what an exception left open ends here too
            ended = stack.pop()
            self._local.open.pop()[1] = torch.autograd._get_sequence_nr()
            if ended == name:
                break
        self.edge(name, False)
