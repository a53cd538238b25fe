"""Which stage of a model was entered last: at most twenty hooks on its top modules, each some hundred nanoseconds."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ocrlab.flight.ring import Writer

MOST = 18  # and two on the whole model
LISTS = (nn.ModuleList, nn.ModuleDict)  # they are never called, their members are
LOSSES = ("loss", "criterion")


class Stages:
    """Hooks that write a stage's name into the ring when its forward begins."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.handles: list[Any] = []
        self.on = True
        self.in_step = False  # a step is being made: what the model does is its forward, and then comes the loss

    def attach(self, model: nn.Module) -> None:
        """Put hooks on the top modules of a model."""
        self.detach()
        self.on = True
        for name, module in top(model):
            self.handles.append(module.register_forward_pre_hook(self._entry(name)))
        _, whole = _unwrapped(model)
        self.handles.append(whole.register_forward_pre_hook(self._phase("forward")))
        self.handles.append(whole.register_forward_hook(self._phase("loss")))

    def detach(self) -> None:
        """Take every hook out again."""
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def _entry(self, name: str) -> Any:
        enter = self.writer.entry(name)
        is_loss = any(word in name.lower() for word in LOSSES)
        is_compiling = torch.compiler.is_compiling

        def entered(_module: nn.Module, _inputs: Any) -> None:
            if is_compiling() or not self.on:
                return  # nothing of ours goes into a compiled graph
            try:
                enter()
                if is_loss and self.in_step:
                    self.writer.phase("loss")
            except ValueError:  # the ring is closed
                self.on = False

        return entered

    def _phase(self, name: str) -> Any:
        def moved(_module: nn.Module, _inputs: Any, _outputs: Any = None) -> None:
            if self.in_step and self.on and not torch.compiler.is_compiling():
                try:
                    self.writer.phase(name)
                except ValueError:
                    self.on = False

        return moved


def top(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return (name, module) of the first two levels below a model, at most eighteen, in the order of its definition.

    A wrapper around one module (DataParallel, a LightningModule with one network) is looked through; a compiled or a
    scripted module is taken as one piece.
    """
    if _whole(model):
        return [("model", model)]
    prefix, model = _unwrapped(model)
    first = _children(prefix, model)
    found = first[:MOST]
    inner = [pair for name, module in first for pair in _children(f"{name}.", module)]
    inner.sort(key=lambda pair: pair[0].count("."))  # the members of lists last: there may be many
    found += inner[: MOST - len(found)]
    return found or [(prefix.rstrip(".") or "model", model)]


def _unwrapped(model: nn.Module) -> tuple[str, nn.Module]:
    prefix = ""
    for _ in range(0 if _whole(model) else 4):
        heavy = [(n, m) for n, m in model.named_children() if any(True for _ in m.parameters())]
        if len(heavy) != 1 or _whole(heavy[0][1]) or any(True for _ in model.parameters(recurse=False)):
            break
        name, inner = heavy[0]
        if not any(True for _ in inner.children()) or isinstance(inner, LISTS):
            break
        prefix, model = (prefix if name in ("module", "_orig_mod") else f"{prefix}{name}."), inner
    return prefix, model


def _children(prefix: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    if _whole(module):
        return []
    found: list[tuple[str, nn.Module]] = []
    for name, child in module.named_children():
        if isinstance(child, LISTS):
            found += _children(f"{prefix}{name}.", child)
        elif not isinstance(child, torch.jit.ScriptModule):
            found.append((prefix + name, child))
    return found


def _whole(module: nn.Module) -> bool:
    """Tell whether a module must not be looked into."""
    return isinstance(module, torch.jit.ScriptModule) or type(module).__name__ == "OptimizedModule"
