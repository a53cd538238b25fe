"""All that a training step changes, kept and put back: weights, buffers, gradients, optimisers, generators, modes."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Kept:
    """The state of a model and its optimisers when it was made; `restore` puts it back, in the same tensors."""

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self.model, self.optimizers = model, list(optimizers)
        self.tensors = {name: (tensor, tensor.detach().clone()) for name, tensor in tensors_of(model, optimizers)}
        self.gradients = [(p, None if p.grad is None else p.grad.detach().clone()) for p in self.parameters()]
        self.states = [copy.deepcopy(o.state_dict()) for o in optimizers]
        self.modes = [(module, module.training) for module in model.modules()]
        self.random = (random.getstate(), np.random.get_state(), torch.get_rng_state())  # noqa: NPY002
        self.cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def parameters(self) -> list[Tensor]:
        """Return every parameter of the model and of the optimisers, once."""
        named = (tensor for tensor, _ in self.tensors.values())
        return [tensor for tensor in named if isinstance(tensor, nn.Parameter) or tensor.requires_grad]

    def before(self, name: str) -> Tensor:
        """Return what a tensor held."""
        return self.tensors[name][1]

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back, but for the counters by which torch sees that a tensor was written to."""
        for tensor, value in self.tensors.values():
            tensor.copy_(value)
        for tensor, gradient in self.gradients:
            tensor.grad = gradient
        for optimizer, state in zip(self.optimizers, self.states, strict=True):
            optimizer.load_state_dict(state)
        self.restore_modes()

    def restore_modes(self) -> None:
        """Put back train and eval mode, and the generators of the CPU; no CUDA call is made."""
        for module, training in self.modes:
            module.training = training
        self.restore_random()

    def restore_random(self) -> None:
        """Put back the generators of the CPU."""
        python, numpy, cpu = self.random
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(cpu)

    def restore_cuda_random(self) -> None:
        """Put back the generators of the GPUs; not to be called after a CUDA error."""
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)


def tensors_of(model: nn.Module, optimizers: Sequence[Optimizer]) -> list[tuple[str, Tensor]]:
    """Return parameters and buffers of the model by name, then what else the optimisers move as `optimizer.G.I`."""
    named: list[tuple[str, Tensor]] = [*model.named_parameters(), *model.named_buffers()]
    known = {id(tensor) for _, tensor in named}
    for number, optimizer in enumerate(optimizers):
        for g, group in enumerate(optimizer.param_groups):
            for i, parameter in enumerate(group["params"]):
                if id(parameter) not in known:
                    known.add(id(parameter))
                    named.append((f"optimizer{number or ''}.group {g}.{i}", parameter))
    return named


def rates(optimizers: Sequence[Optimizer]) -> dict[int, float]:
    """Return the learning rate of every parameter that an optimiser moves, by `id`."""
    found: dict[int, float] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            found.update((id(parameter), float(group["lr"])) for parameter in group["params"] if "lr" in group)
            found.update((id(parameter), 1.0) for parameter in group["params"] if "lr" not in group)
    return found


def scalar(value: Any) -> Any:
    """Return the loss in what a step gave back: a tensor, its `loss` or `total`, or the first of a sequence."""
    for name in ("loss", "total"):
        if isinstance(value, dict) and name in value:
            return value[name]
        if not isinstance(value, Tensor) and isinstance(getattr(value, name, None), Tensor):
            return getattr(value, name)
    if isinstance(value, list | tuple) and value:
        return value[0]
    return value
