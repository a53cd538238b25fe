"""The smallest step there is, to tell a gradient that is 0 at the start from one that stays 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ocrlab.debug.instruments.step_check.findings import error_of, is_readable, stored_values
from ocrlab.debug.instruments.step_check.state_guard import StepState

SIZE = 1e-3  # by which each value is moved against its gradient: a step of Adam


def parameters_after_nudge(model: nn.Module, loss: Callable[[], Any], state: StepState) -> set[str]:
    """Return the parameters that get a gradient after a small step of all that have one; the weights stay moved.

    The optimiser's own step would not do: in a warm-up its rate is 0. Nothing is returned where the loss raises.
    """
    state.restore()
    for nudged in (False, True):
        if nudged:
            _nudge(state)
            state.restore_random()
            state.restore_batch()
        state.clear_gradients()
        if error_of(lambda: loss().sum().backward()) is not None:
            return set()
    return {name for name, p in model.named_parameters() if p.grad is not None and bool(stored_values(p.grad).any())}


@torch.no_grad()
def _nudge(state: StepState) -> None:
    for p, _ in state.gradients:
        if p.requires_grad and p.is_leaf and p.grad is not None and is_readable(p.grad):
            p.sub_(p.grad.sign(), alpha=SIZE)
