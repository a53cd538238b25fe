"""Module names as ranges of the profile: each forward of each module, on a CUDA device for Nsight Systems as well.

Of the backward pass there are no ranges, neither in the trace nor in Nsight Systems: its operators get their module
from the forward that made them, in the table only.

The hooks are torch's global ones, so that no model has to be handed over; a module gets the name that it has in the
outermost module that was called. Sources: torch.nn.modules.module.register_module_forward_hook, torch.cuda.nvtx.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch
from torch.nn.modules import module as module_hooks

PREFIX = "module: "
ROOT = "model"  # what the outermost module is called where it has no name


class ModuleRanges:
    """Open a range at each forward, from `start` to `stop`; compiled modules are left as they are."""

    def __init__(self) -> None:
        self.local = threading.local()  # DataParallel calls its replicas in threads
        self.names: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self.handles: list[Any] = []

    def start(self) -> None:
        """Begin; raises nothing."""
        if not self.handles:
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
            for name, each in module.named_modules():
                self.names.setdefault(each, name or type(module).__name__)
        return self.names.get(module) or type(module).__name__

    def _enter(self, module: torch.nn.Module, _args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        line = self._line()
        name = PREFIX + self.name(module, not line)
        opened = torch.profiler.record_function(name)
        opened.__enter__()
        marked = torch.cuda.is_initialized()
        if marked:
            torch.cuda.nvtx.range_push(name)
        line.append((module, opened, marked))

    def _leave(self, module: torch.nn.Module, _args: Any, _out: Any) -> None:
        if torch.compiler.is_compiling():
            return
        line = self._line()
        if not any(each is module for each, _, _ in line):
            return  # it began before the hooks were there
        while line:  # more than one where a forward was left by a way that calls no hook
            each, opened, marked = line.pop()
            if marked:
                torch.cuda.nvtx.range_pop()
            opened.__exit__(None, None, None)
            if each is module:
                break

    def _line(self) -> list[Any]:
        if not hasattr(self.local, "line"):
            self.local.line = []
        return self.local.line  # type: ignore[no-any-return]
