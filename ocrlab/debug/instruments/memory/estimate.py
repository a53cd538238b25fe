"""What a training step will need, before it runs: a step of fake tensors, which have sizes and no memory.

needs = estimate.estimate(model, batch, loss, precision="bf16")
needs.parts                     bytes by name: parameters, gradients, optimiser state, activations, ...
needs.peak                      their sum, at the highest moment of a step

The highest moment is found by following every storage from its birth to its death, so that gradients that come while
activations go are not counted twice. What an operator takes inside itself and the holes of a heap are no tensors, and
not in it.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from ocrlab.debug.instruments.memory.module_attribution import ModuleTracker
from ocrlab.debug.instruments.memory.storage_tracker import StorageTracker, unpack_saved
from ocrlab.debug.instruments.memory.timeline import Block
from ocrlab.debug.instruments.tensor_tree import tensors
from ocrlab.errors import ConfigError

STEPS = 3  # optimiser steps: the second has the optimiser's state, the third is whole
KINDS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": None}
ORDER = (
    "parameters",
    "gradients",
    "optimiser state",
    "averaged weights",
    "activations",
    "workspace",
    "batch",
    "validation",
)
Loss = Callable[[nn.Module, Any], Tensor]
After = Callable[[nn.Module], None]


@dataclass(frozen=True)
class Estimate:
    """Bytes by part at the highest moment of a step, their sum, and where that is."""

    parts: dict[str, int] = field(default_factory=dict)
    peak: int = 0
    module: str = ""
    phase: str = ""


def estimate(
    model: nn.Module,
    batch: Any,
    loss: Loss,
    *,
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] = torch.optim.AdamW,
    precision: str = "fp32",
    accumulation: int = 1,
    averaged: bool = False,
    after: After | None = None,
) -> Estimate:
    """Return what a training step of `model` needs; neither the model nor the batch is touched, no memory is taken.

    `batch` is any nesting of tensors, which may be on the meta device: only shapes and types count. `loss(model,
    batch)` returns the scalar that is trained on, and `after(model)` runs before the first step and after
    each one, such as validation, with the averaged weights if there are such. Raises ConfigError where the step depends
    on values.
    """
    if precision not in KINDS:
        raise ConfigError("The precision is unknown", got=precision, need="one of " + ", ".join(KINDS))
    if accumulation < 1:
        raise ConfigError("Accumulation takes a number of batches", got=accumulation, need="1 or more")
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    imagined = fake_copy(model, mode)
    mean = fake_copy(model, mode).eval().requires_grad_(False) if averaged else None
    trainable = [p for p in imagined.parameters() if p.requires_grad]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch about its own fake tensors
            kind = KINDS[precision]
            return _run_steps(imagined, mean, batch, loss, optimizer, trainable, mode, kind, accumulation, after)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        what = "The step cannot be estimated: what it does depends on values"
        raise ConfigError(what, got=str(error), do="Measure it instead: ocrlab memory fit") from error


def fake_copy(model: nn.Module, mode: FakeTensorMode | None = None) -> nn.Module:
    """Return a copy of a model whose parameters and buffers have shapes and no memory; None: the mode that is on."""
    memo: dict[int, Any] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        with mode or contextlib.nullcontext():  # not mode.from_tensor, which gives the same fake tensor to both copies
            fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(fake, requires_grad=tensor.requires_grad) if parameter else fake
    return copy.deepcopy(model, memo)


class FakeTensorTracker(StorageTracker):
    """Follows storages, and answers 1 where a program reads a value that a fake tensor does not have."""

    counts_fakes = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            kind = args[0].dtype
            return 1.0 if kind.is_floating_point else kind == torch.bool or 1
        return super().__torch_dispatch__(func, types, args, kwargs)


def _run_steps(
    model: nn.Module,
    mean: nn.Module | None,
    batch: Any,
    loss: Loss,
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    trainable: list[nn.Parameter],
    mode: FakeTensorMode,
    kind: torch.dtype | None,
    accumulation: int,
    after: After | None,
) -> Estimate:
    modules = ModuleTracker(model, lambda _name, _entered: None)
    live = FakeTensorTracker(modules.where)
    modules.attach()
    try:
        stepper = optimizer(trainable)
        pack = lambda tensor: live.saved(tensor, modules.where()[0])  # noqa: E731
        with mode, live, torch.autograd.graph.saved_tensors_hooks(pack, unpack_saved):
            _name_tensors(live, model, "parameters")
            if mean is not None:
                _name_tensors(live, mean, "averaged weights")
            _run_after(live, mean or model, after)
            for _ in range(STEPS):
                for micro in range(min(accumulation, 2)):  # the second one finds gradients there
                    _step(model, batch, loss, stepper, kind, live, fresh=micro == 0)
                modules.optimising = True
                stepper.step()
                modules.optimising = False
                _name_optimizer_state(live, model, stepper)
                _run_after(live, mean or model, after)
    finally:
        modules.detach()
        live.end()
    return estimate_of_blocks([*live.blocks.values(), *live.dead])


def _step(
    model: nn.Module,
    batch: Any,
    loss: Loss,
    stepper: Any,
    kind: torch.dtype | None,
    live: FakeTensorTracker,
    *,
    fresh: bool,
) -> None:
    """Make one micro-batch as Lightning does: old gradients are dropped between the forward pass and the backward."""
    inputs = _fake_batch(batch)
    for _, tensor in tensors(inputs):
        live.classify(tensor, "batch", "batch")
    with torch.autocast("cpu", kind or torch.bfloat16, enabled=kind is not None):
        value = loss(model, inputs)
    if fresh:
        stepper.zero_grad()
    value.backward()


def _run_after(live: FakeTensorTracker, model: nn.Module, after: After | None) -> None:
    """Run what comes between two steps, and name the storages that it creates."""
    if after is None:
        return
    began = live.event
    with torch.no_grad():
        after(model)
    for block in (*live.blocks.values(), *live.dead):
        if block.born >= began:
            block.kind = block.phase = "validation"


def _name_tensors(live: StorageTracker, model: nn.Module, kind: str) -> None:
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        live.classify(tensor, kind, name)


def _name_optimizer_state(live: StorageTracker, model: nn.Module, stepper: torch.optim.Optimizer) -> None:
    """Name the storages that are gradients, and those of the optimiser."""
    for name, p in model.named_parameters():
        if p.grad is not None:
            live.classify(p.grad, "gradients", name)
        for value in stepper.state.get(p, {}).values():
            if isinstance(value, Tensor):
                live.classify(value, "optimiser state", name)


def estimate_of_blocks(blocks: list[Block]) -> Estimate:
    """Return the estimate of a step from the life of its storages."""
    for block in blocks:  # gradients of the first step are gone before they can be named
        if block.kind == "workspace" and block.phase == "backward" and block.died is None:
            block.kind = "gradients"
    changes = [(b.born, b.bytes) for b in blocks] + [(b.died, -b.bytes) for b in blocks if b.died is not None]
    total = peak = at = 0
    for event, change in sorted(changes):
        total += change
        if total > peak:
            peak, at = total, event
    alive = [b for b in blocks if b.born <= at and (b.died is None or b.died > at)]
    parts = dict.fromkeys(ORDER, 0)
    for block in alive:
        parts[block.kind if block.kind in parts else "workspace"] += block.bytes
    last = max(alive, key=lambda b: (bool(b.phase), b.born), default=None)
    return Estimate(parts, peak, last.module if last else "", last.phase if last else "")


def _fake_batch(batch: Any) -> Any:
    """Return new fake tensors like those of a batch."""
    if isinstance(batch, Tensor):
        return torch.empty_strided(batch.shape, batch.stride(), dtype=batch.dtype)
    if isinstance(batch, dict):
        return type(batch)({key: _fake_batch(value) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(_fake_batch, batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map(_fake_batch, batch))
    return batch
