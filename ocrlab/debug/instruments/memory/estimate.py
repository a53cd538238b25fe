"""What a training step will need, before it runs: a step of fake tensors, which have sizes and no memory.

needs = estimate.estimate(model, batch, loss, precision="bf16")
needs.parts                     bytes by name: parameters, gradients, optimiser state, activations, ...
needs.peak                      their sum, at the highest moment of a step

The highest moment is found by following every storage from its birth to its death, so that gradients that come while
activations go are not counted twice. What an operator takes inside itself and the holes of a heap are not tensors, and
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
from torch.utils._pytree import tree_map_only

from ocrlab.debug.instruments.memory.module_attribution import ModuleTracker
from ocrlab.debug.instruments.memory.storage_tracker import StorageTracker, unpack_saved
from ocrlab.debug.instruments.memory.timeline import Block
from ocrlab.debug.instruments.tensor_tree import tensors
from ocrlab.errors import ConfigError

STEPS = 3  # optimizer steps: the second has the optimizer's state, the third is whole
KINDS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": None}
ORDER = (
    "parameters", "gradients", "optimiser state", "averaged weights", "activations", "workspace", "batch", "validation",
)  # fmt: skip
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
        raise ConfigError("Unknown precision", got=precision, need="one of " + ", ".join(KINDS))
    if accumulation < 1:
        raise ConfigError("Accumulation takes a number of batches", got=accumulation, need="1 or more")
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    imagined = fake_copy(model, mode)
    mean = fake_copy(model, mode).eval().requires_grad_(False) if averaged else None
    modules = ModuleTracker(imagined, lambda _name, _entered: None)
    live, kind = FakeTensorTracker(modules.where), KINDS[precision]
    stepper = optimizer([p for p in imagined.parameters() if p.requires_grad])
    pack = lambda tensor: live.saved(tensor, modules.where()[0])  # noqa: E731
    fake = lambda tensor: torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)  # noqa: E731

    def run_after() -> None:
        """Run what comes between two steps, and name the storages that it creates."""
        if after is not None:
            began = live.event
            with torch.no_grad():
                after(mean or imagined)
            for block in (*live.blocks.values(), *live.dead):
                if block.born >= began:
                    block.kind = block.phase = "validation"

    modules.attach()
    try:
        with warnings.catch_warnings(), mode, live, torch.autograd.graph.saved_tensors_hooks(pack, unpack_saved):
            warnings.simplefilter("ignore")  # of torch about its own fake tensors
            for part, what in ((imagined, "parameters"), (mean, "averaged weights")):
                for name, tensor in [*part.named_parameters(), *part.named_buffers()] if part is not None else ():
                    live.classify(tensor, what, name)
            run_after()
            for _ in range(STEPS):
                for micro in range(min(accumulation, 2)):  # the second one finds gradients there
                    inputs = tree_map_only(Tensor, fake, batch)
                    for _, tensor in tensors(inputs):
                        live.classify(tensor, "batch", "batch")
                    with torch.autocast("cpu", kind or torch.bfloat16, enabled=kind is not None):
                        value = loss(imagined, inputs)
                    if micro == 0:  # as Lightning does: old gradients go between the forward pass and the backward
                        stepper.zero_grad()
                    value.backward()
                modules.optimising = True
                stepper.step()
                modules.optimising = False
                for name, p in imagined.named_parameters():
                    if p.grad is not None:
                        live.classify(p.grad, "gradients", name)
                    for state in stepper.state.get(p, {}).values():
                        if isinstance(state, Tensor):
                            live.classify(state, "optimiser state", name)
                run_after()
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        reason = "The step cannot be estimated: what it does depends on values"
        raise ConfigError(reason, got=str(error), do="Measure it instead: ocrlab memory fit") from error
    finally:
        modules.detach()
        live.end()
    return _estimate([*live.blocks.values(), *live.dead])


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


def _estimate(blocks: list[Block]) -> Estimate:
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
