"""Which stage of a model was entered last: at most twenty of its modules are heard, for one or two microseconds each.

A forward hook would make the call of its module take torch's slow way: five to ten microseconds each, with caches as
cold as within a training step. A module asks first for what `Module.compile` leaves to be called in place of itself,
and that is what we leave; torch drops it from copies and pickles of a module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ocrlab.flight.ring import Writer
from ocrlab.trace.compiled import HEARD, SLOT

MOST = 18  # and two on the whole model
LISTS = (nn.ModuleList, nn.ModuleDict)  # they are never called, their members are
LOSSES = ("loss", "criterion")


class Stages:
    """What writes a stage's name into the ring when its forward begins."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.undo: list[Callable[[], Any]] = []
        self.on = True
        self.in_step = False  # a step is being made: what the model does is its forward, and then comes the loss

    def attach(self, model: nn.Module) -> None:
        """Listen to the top modules of a model."""
        self.detach()
        self.on = True
        for name, module in top(model):
            self._listen(module, self._entry(name))
        _, whole = _unwrapped(model)
        self._listen(whole, self._phase("forward"), self._phase("loss"))

    def detach(self) -> None:
        """Stop listening."""
        while self.undo:
            self.undo.pop()()

    def _listen(self, module: nn.Module, before: Callable[[], None], after: Callable[[], None] | None = None) -> None:
        """Have `before` and `after` called around the forward of a module."""
        if not _leaves_room(module):
            self.undo.append(module.register_forward_pre_hook(lambda *_: before()).remove)
            if after is not None:
                self.undo.append(module.register_forward_hook(lambda *_: after()).remove)
            return
        held = module.__dict__.get(SLOT)
        inner = held or module._call_impl

        def called(*args: Any, **kwargs: Any) -> Any:
            before()
            return inner(*args, **kwargs)

        def surrounded(*args: Any, **kwargs: Any) -> Any:
            before()
            output = inner(*args, **kwargs)
            after()  # type: ignore[misc]  # there is one
            return output

        module.__dict__[SLOT] = ours = called if after is None else surrounded
        setattr(ours, HEARD, getattr(held, HEARD, held))  # not to be taken for torch.compile's

        def leave() -> None:
            if module.__dict__.get(SLOT) is ours:  # nobody has compiled it meanwhile
                del module.__dict__[SLOT]
                if held is not None:
                    module.__dict__[SLOT] = held

        self.undo.append(leave)

    def _entry(self, name: str) -> Callable[[], None]:
        enter = self.writer.entry(name)
        is_loss = any(word in name.lower() for word in LOSSES)
        is_compiling = torch.compiler.is_compiling

        def entered() -> None:
            if is_compiling() or not self.on:
                return  # nothing of ours goes into a compiled graph
            try:
                enter()
                if is_loss and self.in_step:
                    self.writer.phase("loss")
            except ValueError:  # the ring is closed
                self.on = False

        return entered

    def _phase(self, name: str) -> Callable[[], None]:
        def moved() -> None:
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


def _leaves_room(module: nn.Module) -> bool:
    """Tell whether a module is called in torch's own way, and no copy of it will be that takes along what we leave.

    DataParallel's replicas do: what they call would be the first card's module. It runs in a process of its own with
    several cards.
    """
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    usual = type(module).__call__ is nn.Module.__call__ and type(module).__name__ != "OptimizedModule"
    if not usual or getattr(nn.Module, SLOT, module) is not None:
        return False
    return distributed or torch.cuda.device_count() <= 1


def _whole(module: nn.Module) -> bool:
    """Tell whether a module must not be looked into."""
    return isinstance(module, torch.jit.ScriptModule) or type(module).__name__ == "OptimizedModule"
