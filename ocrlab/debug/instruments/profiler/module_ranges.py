"""Module names as ranges of the profile: each forward of each module.

Of the backward pass there are no ranges in the trace: its operators get their module from the forward that made them,
in the table only.

The hooks are torch's global ones, so that no model has to be handed over; a module gets the name that it has in the
outermost module that was called. Source: torch.nn.modules.module.register_module_forward_hook.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.nn.modules import module as module_hooks

from ocrlab.debug.instruments.call_hook import ThreadStack

PREFIX = "module: "


class ModuleRanges:
    """Open a range at each forward, from `start` to `stop`; compiled modules are left as they are."""

    def __init__(self) -> None:
        self.stack = ThreadStack()  # of (module, its range)
        self.names: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self.handles: list[Any] = []

    def start(self) -> None:
        """Begin; raises nothing."""
        self.handles = [
            module_hooks.register_module_forward_pre_hook(self._enter),
            module_hooks.register_module_forward_hook(self._leave, always_call=True),
        ]

    def stop(self) -> None:
        """Take the hooks out."""
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def name(self, module: torch.nn.Module, outermost: bool) -> str:
        """Return the name of a module; calling the outermost one names everything inside it."""
        if outermost and module not in self.names:
            for name, part in module.named_modules():
                self.names.setdefault(part, name or type(module).__name__)
        return self.names.get(module) or type(module).__name__

    def _enter(self, module: torch.nn.Module, _args: Any) -> None:
        if not torch.compiler.is_compiling():
            entered = self.stack.entered
            opened = torch.profiler.record_function(PREFIX + self.name(module, not entered))
            opened.__enter__()
            entered.append((module, opened))

    def _leave(self, module: torch.nn.Module, _args: Any, _out: Any) -> None:
        entered = self.stack.entered
        if torch.compiler.is_compiling() or all(other is not module for other, _ in entered):
            return  # it began before the hooks were there
        while entered:  # more than one where a forward was left by a way that calls no hook
            ended, opened = entered.pop()
            opened.__exit__(None, None, None)
            if ended is module:
                break
