"""Which stage of a model was entered last: at most twenty modules are heard, for about a microsecond each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ocrlab.debug.flight_record.ring_format import PHASE_AT, STAGE_AT
from ocrlab.debug.flight_record.ring_writer import Writer
from ocrlab.debug.recorder import call_hooks, rng_state

MOST = 18  # and two on the whole model
ALL = MOST + 2  # of all models
FEW = 5  # models that are looked into; each of more is one stage
LISTS = (nn.ModuleList, nn.ModuleDict)  # they are never called, their members are
WRAPPERS = ("DataParallel", "DistributedDataParallel")
LOSSES = ("loss", "criterion")
Around = Callable[[Callable[..., Any]], Callable[..., Any]]
Quick: Any = getattr(rng_state.quick, "Quick", ())  # does the same in C
compiling = torch.compiler.is_dynamo_compiling  # one function, where is_compiling are two


@dataclass
class Now:
    """How far the micro-batch at hand is; of a usual step C keeps the same."""

    in_step: bool = False  # its record is written, its backward has not begun: what the model does is its forward
    stepped: bool = False  # an optimiser has
    clean: bool = True  # no gradient waits: the last micro-batch ended with a step, or there was none
    micro: int = -1  # the micro-batch at hand, from 0
    number: int = 0  # the optimiser step that is being made
    epoch: int = 0


class Stages:
    """What writes a stage's name into the ring when its forward begins.

    From the beginning of a backward on, and so in the optimiser's step, none is told but what is computed again: the
    one that was entered last is the loss's or the last layer's, while the backward goes through all of them the other
    way; no call of a module tells where it is, and a wrong name is worse than none. A replay names the module.
    """

    def __init__(self, writer: Writer, now: Any = None) -> None:
        self.writer, self.now = writer, now or Now()
        self.undo: list[Callable[[], Any]] = []
        self.on = True
        self.whole: nn.Module | None = None  # what is called as the model, where it is called through `_surrounds`
        self.scales: Any = None  # hears its calls, too: a frame of its own would cost as much again

    def attach(self, *models: nn.Module) -> None:
        """Listen to the top modules of a model, or of several, whose stages begin with what they are."""
        self.detach()
        self.on = True
        for name, module in top(models[0]) if len(models) == 1 else shared(models):
            self._listen(module, self._calls(name), self._entry(name))
        for model in models if len(models) <= FEW else models[:1]:
            _, whole = unwrapped(model)
            heard = self._hear(whole)
            if model is models[0]:
                self.whole = whole if heard else None

    def detach(self) -> None:
        """Stop listening."""
        self.whole = self.scales = None
        while self.undo:
            self.undo.pop()()

    def _hear(self, whole: nn.Module) -> bool:
        """Listen to the calls of a whole model; tells whether without a hook."""
        return self._listen(
            whole, lambda inner: self._surrounds(inner, whole), self._phase("forward"), self._phase("loss")
        )

    def _listen(
        self, module: nn.Module, around: Around, before: Callable[[], None], after: Callable[[], None] | None = None
    ) -> bool:
        """Have a module called through what `around` makes of its call; by hooks `before` and `after` where there is
        no room for that. Tells whether there is.
        """
        undo = call_hooks.listen(module, around)
        if undo is not None:
            self.undo.append(undo)
            return True
        self.undo.append(module.register_forward_pre_hook(lambda *_: before()).remove)
        if after is not None:
            self.undo.append(module.register_forward_hook(lambda *_: after()).remove)
        return False

    def _calls(self, name: str) -> Around:
        """Return what makes of a module's call one that says its name first: flat, as it is called in each step."""
        page, number = self.writer.page, self.writer.word(name)
        loss = self._phase("loss")

        def around(inner: Callable[..., Any]) -> Callable[..., Any]:
            if isinstance(self.now, Quick) and not _is_loss(name):
                return self.now.stage(inner, number)  # type: ignore[no-any-return]

            def called(*args: Any, **kwargs: Any) -> Any:
                if not compiling() and self.on:  # nothing of ours goes into a compiled graph
                    try:
                        page[STAGE_AT] = number
                    except ValueError:  # the ring is closed
                        self.on = False
                return inner(*args, **kwargs)

            def called_for_a_loss(*args: Any, **kwargs: Any) -> Any:
                loss()
                return called(*args, **kwargs)

            return called_for_a_loss if _is_loss(name) else called

        return around

    def _surrounds(self, inner: Callable[..., Any], module: nn.Module) -> Callable[..., Any]:
        """Return a call of the whole model: it is the forward, and then comes the loss."""
        page, now = self.writer.page, self.now
        forward, loss = self.writer.word("forward"), self.writer.word("loss")

        def surrounded(*args: Any, **kwargs: Any) -> Any:
            if compiling():
                return inner(*args, **kwargs)
            scales = self.scales
            if scales is not None and (scales.looking or not module.training):
                scales.entered(module, args, kwargs)
            if not (now.in_step and self.on):
                return inner(*args, **kwargs)
            try:
                page[PHASE_AT] = forward
            except ValueError:  # the ring is closed
                self.on = False
            output = inner(*args, **kwargs)
            try:
                if now.in_step and self.on:
                    page[PHASE_AT] = loss
            except ValueError:
                self.on = False
            return output

        return surrounded

    def _entry(self, name: str) -> Callable[[], None]:
        """Return what a hook on a stage does."""
        return self._calls(name)(lambda: None)

    def _phase(self, name: str) -> Callable[[], None]:
        page, number = self.writer.page, self.writer.word(name)

        def moved() -> None:
            if self.now.in_step and self.on and not compiling():
                try:
                    page[PHASE_AT] = number
                except ValueError:
                    self.on = False

        return moved


def _is_loss(name: str) -> bool:
    return any(word in name.lower() for word in LOSSES)


def top(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return (name, module) of the first two levels below a model, at most eighteen, in the order of its definition.

    A wrapper around one module (DataParallel, a LightningModule with one network) is looked through; a compiled or a
    scripted module is taken as one piece.
    """
    if _whole(model):
        return [("model", model)]
    prefix, model = unwrapped(model)
    first = _children(prefix, model)
    found = first[:MOST]
    inner = [pair for name, module in first for pair in _children(f"{name}.", module)]
    inner.sort(key=lambda pair: pair[0].count("."))  # the members of lists last: there may be many
    found += inner[: MOST - len(found)]
    return found or [(prefix.rstrip(".") or "model", model)]


def shared(models: Sequence[nn.Module]) -> list[tuple[str, nn.Module]]:
    """Return (name, module) of the stages of several models, `Generator.up`: of each as many as there is room for. A
    model of a class that another one has is told by its place in the list, too: `Net[1].stem`.
    """
    kinds = [_kind(model) for model in models]
    called = [f"{kind}[{i}]" if kinds.count(kind) > 1 else kind for i, kind in enumerate(kinds)]
    if len(models) > FEW:
        return [*zip(called, models, strict=True)][:MOST]
    found = [top(model) for model in models]
    while sum(map(len, found)) > ALL - 2 * len(models):
        max(found, key=len).pop()
    named = [(owner if name == "model" else f"{owner}.{name}", m) for owner, of in zip(called, found, strict=True)
             for name, m in of]  # fmt: skip
    first = {id(module): (name, module) for name, module in reversed(named)}  # two may have one in common
    return [pair for pair in named if first[id(pair[1])] == pair]


def _kind(model: nn.Module) -> str:
    """Return the class of a model without what torch has put around it."""
    for _ in range(4):
        inner = model._modules.get("module" if type(model).__name__ in WRAPPERS else "_orig_mod")
        if inner is None or type(model).__name__ not in (*WRAPPERS, "OptimizedModule"):
            break
        model = inner
    return type(model).__name__


def unwrapped(model: nn.Module) -> tuple[str, nn.Module]:
    """Return the network in wrappers around nothing else, and what its names begin with."""
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
