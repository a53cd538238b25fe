"""The number of a training step: counted by its optimiser, else by calls of the model, else by hand."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.optim.optimizer import Optimizer


@dataclass
class StepCounter:
    """The number of the current step, and whether it is watched.

    `on_end` and `on_begin` are called around the change of the number, `on_join` where all calls so far turn out to be
    one step.
    """

    model: weakref.ref[nn.Module]
    every: int
    on_end: Callable[[], None]
    on_begin: Callable[[], None]
    on_join: Callable[[], None]
    number: int = 0
    micro: int = 0  # calls of the model since the watch began
    counted: bool = False  # by an optimiser or by hand; else each call of the opener is a step
    trains: bool = False  # there was a call with gradients
    opener: object = None  # the first module that was called
    _leader: weakref.ref[Optimizer] | None = None
    _ours: weakref.WeakKeyDictionary[Optimizer, bool] = field(default_factory=weakref.WeakKeyDictionary)

    @property
    def is_watched(self) -> bool:
        """Whether statistics are taken in this step."""
        return self.number % self.every == 0

    @property
    def has_optimizer(self) -> bool:
        """Whether an optimiser of the model has made a step."""
        return self._leader is not None

    def count_call(self, who: object) -> None:
        """Count a call of a module, for which `who` stands."""
        if self.opener is None:
            self.opener = who
        elif who is self.opener and not in_backward():
            self.micro += 1
            if not self.counted:
                self.end()
        if not self.counted and not self.trains and torch.is_grad_enabled():
            self.trains, self.number = True, 0  # what came before, like a trial of the validation, was not a step
            self.on_begin()

    def end(self) -> None:
        """End this step."""
        self.on_end()
        self.number += 1
        self.on_begin()

    def count_optimizer_step(self, optimizer: Optimizer) -> None:
        """Note that an optimiser has stepped; of several the first one counts."""
        if self._is_model_optimizer(optimizer):
            leader = self._leader() if self._leader else None
            if leader is None:
                self._leader = weakref.ref(optimizer)
            if leader is None or leader is optimizer:
                self.end_by_hand()

    def end_by_hand(self) -> None:
        """End this step, as `watch.step()` does; calls taken for steps so far were micro-batches of it."""
        if not self.counted:
            self.counted, self.number = True, 0
            self.on_join()
        self.end()

    def _is_model_optimizer(self, optimizer: Optimizer) -> bool:
        """Return whether an optimiser has a parameter of the model."""
        model = self.model()
        if optimizer not in self._ours and model is not None:
            ids = {id(parameter) for parameter in model.parameters()}
            self._ours[optimizer] = any(id(p) in ids for group in optimizer.param_groups for p in group["params"])
        return self._ours.get(optimizer, False)


def in_backward() -> bool:
    """Return whether this thread is inside of a backward pass: a forward there is one that checkpointing repeats."""
    return bool(torch._C._current_graph_task_id() != -1)
