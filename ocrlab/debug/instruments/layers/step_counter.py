"""Which step it is, in anybody's training: counted by its optimiser, else by calls of the model, else by hand."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.optim.optimizer import Optimizer


@dataclass
class StepCounter:
    """The number of the step that is being made, and whether it is looked at.

    `ended` and `began` are called around the change of the number, `joined` where all so far turn out to be one step.
    """

    model: weakref.ref[nn.Module]
    every: int
    ended: Callable[[], None]
    began: Callable[[], None]
    joined: Callable[[], None]
    number: int = 0
    micro: int = 0  # calls of the model since the watch began
    counted: bool = False  # by an optimiser or by hand; else each call of the opener is a step
    trains: bool = False  # a call with gradients was seen
    opener: object = None  # the first module that was called
    _leader: weakref.ref[Optimizer] | None = None
    _ours: weakref.WeakKeyDictionary[Optimizer, bool] = field(default_factory=weakref.WeakKeyDictionary)

    @property
    def looked_at(self) -> bool:
        """Whether statistics are taken in this step."""
        return self.number % self.every == 0

    @property
    def led(self) -> bool:
        """Whether an optimiser of the model has made a step."""
        return self._leader is not None

    def entered(self, who: object) -> None:
        """Note that a module was called; `who` stands for it."""
        if self.opener is None:
            self.opener = who
        elif who is self.opener and not in_backward():
            self.micro += 1
            if not self.counted:
                self.end()
        if not self.counted and not self.trains and torch.is_grad_enabled():
            self.trains, self.number = True, 0  # what came before, like a trial of the validation, was no step
            self.began()

    def end(self) -> None:
        """End this step."""
        self.ended()
        self.number += 1
        self.began()

    def stepped(self, optimizer: Optimizer) -> None:
        """Note that an optimiser has stepped; of several the first one counts."""
        if not self._holds(optimizer):
            return
        leader = self._leader() if self._leader else None
        if leader is None:
            self._leader = weakref.ref(optimizer)
        elif leader is not optimizer:
            return
        self.by_hand()

    def by_hand(self) -> None:
        """End this step, as also `seen.step()` does; calls taken for steps so far were micro-batches of it."""
        if not self.counted:
            self.counted, self.number = True, 0
            self.joined()
        self.end()

    def _holds(self, optimizer: Optimizer) -> bool:
        """Tell whether an optimiser has a parameter of the model."""
        is_leader = self._ours.get(optimizer)
        model = self.model()
        if is_leader is None and model is not None:
            ids = {id(parameter) for parameter in model.parameters()}
            is_leader = any(id(p) in ids for group in optimizer.param_groups for p in group["params"])
            self._ours[optimizer] = is_leader
        return bool(is_leader)


def in_backward() -> bool:
    """Tell whether this thread is inside of a backward: a forward there is one that checkpointing does again."""
    return bool(torch._C._current_graph_task_id() != -1)
