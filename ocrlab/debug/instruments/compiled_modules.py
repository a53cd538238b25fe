"""Modules that run as a graph, of torch.compile or torch.jit, inside of which no hooks run."""

from __future__ import annotations

import gc
import sys

import torch
from torch import nn

SLOT = "_compiled_call_impl"  # of a module: what is called in place of it


def is_compiled(model: nn.Module) -> bool:
    """Return whether a model, or a part of it, runs as a graph of torch.compile."""
    return any(is_compiled_module(module) for module in model.modules())


def is_jit(module: nn.Module) -> bool:
    """Return whether a module comes from torch.jit, by script or by trace: neither it nor its children take hooks."""
    return isinstance(module, torch.jit.ScriptModule)


def any_compiled() -> bool:
    """Return whether any module of this process runs as a graph; scans all objects if one was ever compiled."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    if not counters.get("stats", {}).get("unique_graphs"):
        return False
    gc.collect()  # it may be garbage
    return any(is_compiled_module(module) for module in gc.get_objects() if issubclass(type(module), nn.Module))


def is_compiled_module(module: nn.Module) -> bool:
    """Return whether this module itself was passed to torch.compile, or compiled in place."""
    return (
        vars(module).get(SLOT) is not None or type(module).__name__ == "OptimizedModule" or hasattr(module, "_orig_mod")
    )
