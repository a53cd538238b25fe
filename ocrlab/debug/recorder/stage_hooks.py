"""Which stage of a model was entered last: forward pre-hooks on at most twenty modules."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ocrlab.debug.flight_record.ring_format import PHASE_AT, STAGE_AT
from ocrlab.debug.flight_record.ring_writer import Writer
from ocrlab.debug.instruments.call_hook import CallHook

MAX_STAGES = 18  # and two on the whole model
MAX_STAGES_OF_ALL = MAX_STAGES + 2  # of all models
MAX_MODELS = 5  # models with stages of their own; each of more is one stage
LISTS = (nn.ModuleList, nn.ModuleDict)  # they are never called, their members are
WRAPPERS = ("DataParallel", "DistributedDataParallel")
LOSSES = ("loss", "criterion")
compiling = torch.compiler.is_dynamo_compiling  # one function, where is_compiling are two


class StepStart(enum.Enum):
    """What marks the beginning of a step in a hand-written loop."""

    UNKNOWN = enum.auto()
    BATCH = enum.auto()  # of `rec.batches`
    MARKED = enum.auto()  # by `rec.steps`
    UNMARKED = enum.auto()  # it ends with the step of the optimizer


@dataclass
class StepPosition:
    """How far the current micro-batch is."""

    in_step: bool = False  # between its record and its backward: calls of the model are its forward
    stepped: bool = False  # whether an optimizer has
    clean: bool = True  # no gradient is accumulated
    micro: int = -1  # the current micro-batch, from 0
    number: int = 0  # the current optimizer step
    epoch: int = 0


class StageHook(CallHook):
    """A forward pre-hook that writes one byte: the number of a stage, or of a phase within a step.

    Like any `CallHook`, copies and pickles of the module do not take it along.
    """

    def __init__(self, stages: StageHooks, at: int, number: int) -> None:
        self.stages, self.at, self.number = stages, at, number

    def __call__(self, *_: Any) -> None:
        if compiling():  # no recording inside a compiled graph
            return
        stages = self.stages
        if stages.on and (self.at != PHASE_AT or stages.now.in_step):
            try:
                stages.writer.page[self.at] = self.number
            except (ValueError, OSError):  # the ring is closed, or its disk is full
                stages.on = False


class StageHooks:
    """The hooks that write a stage's name into the ring when its forward begins.

    From the backward until the end of the optimizer's step only recomputed stages are recorded: the last stage is the
    loss's or the last layer's, while the backward goes through all of them in reverse, and a wrong name is worse than
    none. A replay names the module.
    """

    def __init__(self, writer: Writer) -> None:
        self.writer, self.now = writer, StepPosition()
        self.handles: list[Any] = []
        self.on = True

    def attach(self, *models: nn.Module) -> None:
        """Hook the top modules of a model, or of several, whose stages begin with the name of the model."""
        self.detach()
        self.on = True
        for name, module in top_modules(models[0]) if len(models) == 1 else stages_of_models(models):
            if isinstance(module, torch.jit.ScriptModule):  # it takes no hooks
                continue
            if any(word in name.lower() for word in LOSSES):
                self._hook(module.register_forward_pre_hook, PHASE_AT, "loss")
            self._hook(module.register_forward_pre_hook, STAGE_AT, name)
        for model in models if len(models) <= MAX_MODELS else models[:1]:
            _, whole = unwrap(model)
            if isinstance(whole, torch.jit.ScriptModule):
                continue
            self._hook(whole.register_forward_pre_hook, PHASE_AT, "forward")
            self._hook(whole.register_forward_hook, PHASE_AT, "loss")  # after the model comes the loss

    def detach(self) -> None:
        """Remove every hook."""
        while self.handles:
            self.handles.pop().remove()

    def _hook(self, register: Callable[[Any], Any], at: int, word: str) -> None:
        self.handles.append(register(StageHook(self, at, self.writer.word(word))))


def top_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return (name, module) of the first two levels below a model, at most eighteen, in the order of its definition.

    A wrapper around one module (DataParallel, a LightningModule with one network) is looked through; a compiled or a
    scripted module is taken as one piece.
    """
    if _is_opaque(model):
        return [("model", model)]
    prefix, model = unwrap(model)
    first = _children(prefix, model)
    stages = first[:MAX_STAGES]
    inner = [pair for name, module in first for pair in _children(f"{name}.", module)]
    inner.sort(key=lambda pair: pair[0].count("."))  # the members of lists last: there may be many
    stages += inner[: MAX_STAGES - len(stages)]
    return stages or [(prefix.rstrip(".") or "model", model)]


def stages_of_models(models: Sequence[nn.Module]) -> list[tuple[str, nn.Module]]:
    """Return (name, module) of the stages of several models, `Generator.up`: of each as many as there is room for. A
    model whose class occurs twice also gets its place in the list: `Net[1].stem`.
    """
    kinds = [_class_name(model) for model in models]
    called = [f"{kind}[{i}]" if kinds.count(kind) > 1 else kind for i, kind in enumerate(kinds)]
    if len(models) > MAX_MODELS:
        return [*zip(called, models, strict=True)][:MAX_STAGES]
    by_model = [top_modules(model) for model in models]
    while sum(map(len, by_model)) > MAX_STAGES_OF_ALL - 2 * len(models):
        max(by_model, key=len).pop()
    named = [(owner if name == "model" else f"{owner}.{name}", m) for owner, of in zip(called, by_model, strict=True)
             for name, m in of]  # fmt: skip
    first = {id(module): (name, module) for name, module in reversed(named)}  # two may have one in common
    return [pair for pair in named if first[id(pair[1])] == pair]


def _class_name(model: nn.Module) -> str:
    """Return the class of a model without what torch has put around it."""
    for _ in range(4):
        inner = model._modules.get("module" if type(model).__name__ in WRAPPERS else "_orig_mod")
        if inner is None or type(model).__name__ not in (*WRAPPERS, "OptimizedModule"):
            break
        model = inner
    return type(model).__name__


def unwrap(model: nn.Module) -> tuple[str, nn.Module]:
    """Return the network in wrappers around nothing else, and what its names begin with."""
    prefix = ""
    for _ in range(0 if _is_opaque(model) else 4):
        heavy = [(n, m) for n, m in model.named_children() if any(True for _ in m.parameters())]
        if len(heavy) != 1 or _is_opaque(heavy[0][1]) or any(True for _ in model.parameters(recurse=False)):
            break
        name, inner = heavy[0]
        if not any(True for _ in inner.children()) or isinstance(inner, LISTS):
            break
        prefix, model = (prefix if name in ("module", "_orig_mod") else f"{prefix}{name}."), inner
    return prefix, model


def _children(prefix: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    if _is_opaque(module):
        return []
    children: list[tuple[str, nn.Module]] = []
    for name, child in module.named_children():
        if isinstance(child, LISTS):
            children += _children(f"{prefix}{name}.", child)
        elif not isinstance(child, torch.jit.ScriptModule):
            children.append((prefix + name, child))
    return children


def _is_opaque(module: nn.Module) -> bool:
    """Return whether a module is one piece: compiled or scripted."""
    return isinstance(module, torch.jit.ScriptModule) or type(module).__name__ == "OptimizedModule"
