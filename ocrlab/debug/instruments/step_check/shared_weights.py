"""Weights that are others than they seem: one block under many names, a frozen part that nothing has trained."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from ocrlab.debug.instruments.step_check.findings import Finding, is_readable

NORMS = (_BatchNorm, nn.LayerNorm, nn.GroupNorm)
FEW = 2  # weights of more than one dimension, from which on what is frozen is a part of a network
BOUND = 1.0001  # times the largest value of torch's own start, which float32 may round


def check_shared_blocks(model: nn.Module, same: set[int]) -> Iterator[Finding]:
    """Yield lists whose entries are all one and the same block, of those (`same`, by id) that keep a tensor's shape.

    What changes the shape is a head, which may well be one for many layers.
    """
    for name, module in model.named_modules():
        entries = list(module._modules.values())  # children() names each once
        if not isinstance(module, nn.ModuleList | nn.Sequential) or len(entries) < 2:
            continue
        block = entries[0]
        if block is None or any(entry is not block for entry in entries) or id(block) not in same:
            continue
        count = sum(p.numel() for p in block.parameters() if p.requires_grad)
        if count:
            got = f"its {len(entries)} entries are one and the same {type(block).__name__}: {count} weights in place of"
            got += f" {count * len(entries)}"
            do = "Make each by its own call, [block() for _ in range(n)]: [block()] * n holds one n times. If they are"
            do += " to share their weights, nothing is wrong"
            yield Finding("weights.shared", name or "the model", got, "blocks of their own", do, "warn")


def check_untrained_part(model: nn.Module) -> Iterator[Finding]:
    """Yield a frozen part whose weights are those that torch begins with: no checkpoint has reached it.

    Told by its normalisations, which no training leaves at 1 and 0, and by linear and convolution weights that lie
    within the bounds of torch's own start. To be asked before a step: BatchNorm counts what it sees.
    """
    parts = [(name, module) for name, module in model.named_modules() if _frozen(module)]
    norms = [module for _, module in parts if isinstance(module, NORMS) and module.weight is not None]
    layers = [(name, module) for name, module in parts if isinstance(module, nn.Linear | _ConvNd)]
    if not norms or len(layers) < FEW or not all(_begins(module) for module in norms):
        return
    if all(_within(module) for _, module in layers):
        got = f"frozen, and as torch made it: {len(norms)} normalisations hold 1 and 0, {len(layers)} layers lie within"
        got += " the bounds of their random start"
        do = "Look at what load_state_dict(..., strict=False) returns: keys with another prefix (module., model.) load"
        do += " nothing. If random features are meant, nothing is wrong"
        yield Finding(
            "weights.untrained", f"{layers[0][0]} and what is frozen with it", got, "a checkpoint", do, "warn"
        )


def _frozen(module: nn.Module) -> bool:
    own = list(module.parameters(recurse=False))
    return bool(own) and not any(p.requires_grad for p in own) and all(is_readable(p) for p in own)


def _begins(module: nn.Module) -> bool:
    """Tell whether a normalisation has learned nothing, and seen nothing."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if weight is None or not bool((weight == 1).all()) or (bias is not None and bool(bias.any())):
        return False
    mean, variance = getattr(module, "running_mean", None), getattr(module, "running_var", None)
    return mean is None or variance is None or (not bool(mean.any()) and bool((variance == 1).all()))


def _within(module: nn.Module) -> bool:
    """Tell whether a layer's weights lie within 1 / sqrt(fan in), up to it: how torch begins."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    bound = float(weight[0].numel()) ** -0.5
    largest = float(weight.detach().abs().max())
    return 0.5 * bound < largest <= BOUND * bound
