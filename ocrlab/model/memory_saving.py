"""An encoder that trains in less memory: its stages computed again in the backward pass, its BatchNorm left as it is.

Both are for training alone; a model that predicts is never changed, and names and values in checkpoints are the same.

Shapes: B batch, C channels, H W pixels of a map.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def recomputed(stage: nn.Module, x: Tensor) -> Tensor:
    """Return `stage(x)` and keep only `x` for the backward pass, which computes the rest again (Chen et al. 2016).

    The numbers are those of `stage(x)`, bit for bit; a stage must draw no random numbers.
    """
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if not torch.compiler.is_compiling():  # a compiled graph counts a batch once by itself, and takes no contexts
        options["context_fn"] = lambda: (contextlib.nullcontext(), counted_once(stage))
    return cast(Tensor, checkpoint(stage, x, **options))


@contextlib.contextmanager
def counted_once(stage: nn.Module) -> Iterator[None]:
    """Inside the block BatchNorm uses the batch's statistics as before, and moves its running ones by nothing."""
    norms = [m for m in stage.modules() if isinstance(m, _BatchNorm) and m.training and m.track_running_stats]
    before = [(m, m.momentum, m.num_batches_tracked) for m in norms]
    for norm, _, count in before:
        norm.momentum, norm.num_batches_tracked = 0.0, count if count is None else count.clone()
    try:
        yield
    finally:
        for norm, momentum, count in before:
            norm.momentum, norm.num_batches_tracked = momentum, count


class FrozenBatchNorm2d(nn.Module):
    """BatchNorm with the statistics and weights that it has: maps (B, C, H, W) times one number a channel plus another.

    No BatchNorm2d for torch, which would keep its input for the backward pass and let SyncBatchNorm take its place.
    """

    def __init__(self, trained: nn.BatchNorm2d) -> None:
        super().__init__()
        self.eps = trained.eps
        for name, parameter in trained.named_parameters():
            self.register_parameter(name, nn.Parameter(parameter.detach(), requires_grad=False))
        for name, buffer in trained.named_buffers():
            self.register_buffer(name, buffer)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, _Frozen.apply(x, self.running_mean, self.running_var, self.weight, self.bias, self.eps))


class _Frozen(torch.autograd.Function):
    """BatchNorm with constants, of which the backward pass needs no map."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(var, weight)
        ctx.eps = eps
        return batch_norm(x, mean, var, weight, bias, False, 0.0, eps)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        var, weight = ctx.saved_tensors
        zero = torch.zeros_like(var)
        gradient = batch_norm(gradients[0], zero, var, weight, zero, False, 0.0, ctx.eps)  # times the same number
        return gradient, None, None, None, None, None


def freeze(module: nn.Module) -> None:
    """Put FrozenBatchNorm2d in the place of each BatchNorm2d below `module`."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, FrozenBatchNorm2d(child))
        else:
            freeze(child)
