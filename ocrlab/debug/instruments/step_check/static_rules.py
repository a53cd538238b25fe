"""The rules of a training step that hold before anything runs: weights, devices, modes, groups of the optimiser."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ocrlab.debug.instruments.step_check.findings import (
    Finding,
    index_text,
    is_attention_mask,
    is_readable,
    listing,
    not_finite,
    shortened_list,
    value_at,
)
from ocrlab.debug.instruments.step_check.state_guard import learning_rates

DROPPED = 0.9  # dropout from here on leaves less than a tenth
DECAY = 0.01  # share of the weights that decay takes away in one step; what is published lies below 1e-3
NORMS = (_BatchNorm, nn.LayerNorm, nn.GroupNorm)
FEW = 2  # weights of more than one dimension, from which on what is frozen is a part of a network
BOUND = 1.0001  # times the largest value of torch's own start, which float32 may round


def check_model(model: nn.Module, optimizers: Sequence[Optimizer]) -> Iterator[Finding]:
    """Yield what is wrong before anything runs: weights, devices, modes, optimiser groups."""
    named = [*model.named_parameters(), *model.named_buffers()]
    lazy = [name for name, p in named if is_lazy(p)]
    if lazy:
        do = "Run one batch through the model first, and make the optimiser after that"
        yield Finding("weights.lazy", shortened_list(lazy), "not initialised", "weights", do)
        return
    meta = [name for name, t in named if t.device.type == "meta"]
    if meta:
        do = "Use to_empty(device=...) and load or initialise the weights"
        yield Finding("weights.meta", shortened_list(meta), "on the meta device", "a device that holds values", do)
        return
    devices = sorted({str(t.device) for _, t in named})
    if len(devices) > 1:
        by = {device: [name for name, t in named if str(t.device) == device] for device in devices}
        fewest = min(by.values(), key=len)
        do = "Register tensors with register_buffer so that .to() moves them, and call model.to(device) once"
        yield Finding("device.model", shortened_list(fewest), ", ".join(devices), "one device", do)
    for name, tensor in named:
        broken = not_finite(tensor)
        if broken is not None and not (
            is_attention_mask(tensor) and not name.endswith(("running_mean", "running_var"))
        ):
            do = "The checkpoint or the last step is broken; look at the loss curve"
            yield Finding("weights.finite", f"{name}{index_text(broken)}", value_at(tensor, broken), "finite", do)
    if not any(p.requires_grad for p in model.parameters()):
        yield Finding("weights.frozen", "the model", "no parameter is trainable", "one", "Set requires_grad_(True)")
    elif not any(p.requires_grad and p.ndim > 1 for p in model.parameters()):
        frozen = [name for name, p in model.named_parameters() if p.ndim > 1]
        if frozen:
            got, do = (
                f"frozen, like all of its kind: {shortened_list(frozen)}",
                "Check the names of the parameters that you freeze",
            )
            yield Finding("weights.biases", "the model", f"only biases train; weights are {got}", "weights", do, "warn")
    yield from check_switches(model)
    yield from check_modes(model)
    yield from check_groups(model, optimizers)


def check_switches(model: nn.Module) -> Iterator[Finding]:
    """Yield modules with an attribute requires_grad, which torch never reads: their parameters are as they were."""
    for name, module in model.named_modules():
        wanted = vars(module).get("requires_grad")
        own = [p.requires_grad for p in module.parameters()]
        if isinstance(wanted, bool) and own and all(is_on != wanted for is_on in own):
            got = f"its attribute requires_grad is {wanted}, which nothing reads: its {len(own)} parameters are "
            got += "still frozen" if wanted else "still trained"
            do = "Call module.requires_grad_(...), which sets it on each parameter"
            yield Finding("weights.switch", name or "the model", got, "parameters that are set", do)


def check_modes(model: nn.Module) -> Iterator[Finding]:
    """Yield modules in the wrong mode for a training step."""
    if not model.training and not trains_head(model):
        yield Finding("mode.eval", "the model", "eval mode", "train mode", "Call model.train() before the step")
        return
    still, adrift, teachers = [], [], tuple(f"{name}." for name in teacher_names(model))
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p >= DROPPED:
            do = "It is the share that is dropped, not the share that is kept"
            yield Finding("mode.dropout", name, f"drops {module.p:.0%}", f"less than {DROPPED:.0%}", do, "warn")
        if not isinstance(module, _BatchNorm | nn.SyncBatchNorm):
            continue
        weights = list(module.parameters(recurse=False))
        frozen = bool(weights) and not any(p.requires_grad for p in weights)
        still += [name] if not module.training and not frozen and weights else []
        adrift += [name] if module.training and frozen and module.track_running_stats else []
        adrift = [name for name in adrift if not name.startswith(teachers)]
    if still:
        do = "Call model.train() after the last eval(), or freeze its weights as well where it is meant"
        yield Finding(
            "mode.batchnorm", shortened_list(still), "eval mode in a model that trains", "train mode", do, "warn"
        )
    if adrift and any(type(module).train is not nn.Module.train for module in model.modules()):
        adrift = _adrift_in_training(model, adrift)
    if adrift:
        do = "Put frozen BatchNorm into eval mode; model.train() sets it back at every epoch"
        got = "frozen weights, but running statistics that still move"
        yield Finding("mode.batchnorm_frozen", shortened_list(adrift), got, "eval mode", do, "warn")


def _adrift_in_training(model: nn.Module, names: Sequence[str]) -> list[str]:
    """Return those of some modules that are still in train mode after the model's own train()."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.train()
        return [name for name in names if model.get_submodule(name).training]
    finally:
        for module, training in modes:
            module.training = training


def trains_head(model: nn.Module) -> bool:
    """Return whether what trains in a model in eval mode was put back into train mode: a head on a frozen trunk."""
    own = [module for module in model.modules() if any(p.requires_grad for p in module.parameters(recurse=False))]
    return bool(own) and all(module.training for module in own)


def teacher_names(model: nn.Module) -> list[str]:
    """Return the frozen parts beside which the same part is trained: teachers, targets, averages."""
    parts = [(name, type(m), [p.shape for p in m.parameters()], m) for name, m in model.named_children()]
    trained = [(kind, shapes) for _, kind, shapes, m in parts if any(p.requires_grad for p in m.parameters())]
    frozen = [part for part in parts if part[2] and not any(p.requires_grad for p in part[3].parameters())]
    return [name for name, kind, shapes, _ in frozen if (kind, shapes) in trained]


def check_groups(model: nn.Module, optimizers: Sequence[Optimizer]) -> Iterator[Finding]:
    """Yield parameters that no optimiser moves, that it moves for nothing, or that are not the model's."""
    if not optimizers:
        return
    lr, named = learning_rates(optimizers), dict(model.named_parameters())
    without = [name for name, p in named.items() if p.requires_grad and id(p) not in lr]
    if without:
        do = "Make the optimiser from the parameters that the model has now"
        yield Finding("optimizer.missing", listing(model, without), "in no group", "each trainable one in one", do)
    waiting = {id(p) for o in optimizers for g in o.param_groups if g.get("initial_lr", 0) > 0 for p in g["params"]}
    idle = [n for n, p in named.items() if p.requires_grad and lr.get(id(p)) == 0 and id(p) not in waiting]
    if idle:
        do = "Give the group a rate, or freeze it with requires_grad_(False)"
        yield Finding("optimizer.rate", listing(model, idle), "learning rate 0", "above 0", do, "warn")
    frozen = [name for name, p in named.items() if not p.requires_grad and id(p) in lr]
    if frozen:
        do = "Leave frozen parameters out of the optimiser: an old gradient or momentum would still move them"
        yield Finding(
            "optimizer.frozen", listing(model, frozen), "frozen, with a learning rate", "no group", do, "warn"
        )
    yield from check_decay(optimizers)
    stale = [name for name, p in named.items() if not p.requires_grad and p.grad is not None and id(p) in lr]
    if stale:
        do = "Set .grad = None where you freeze"
        yield Finding("gradient.stale", listing(model, stale), "a gradient of earlier", "none", do, "warn")
    strangers = len(lr.keys() - {id(p) for p in named.values()})
    if strangers:
        do = "Make the optimiser after the model is built, moved and wrapped"
        yield Finding(
            "optimizer.stranger", "the optimiser", f"{strangers} tensors not of this model", "none", do, "warn"
        )


def check_decay(optimizers: Sequence[Optimizer]) -> Iterator[Finding]:
    """Yield groups whose weight decay alone makes the weights vanish."""
    for number, group in ((i, g) for o in optimizers for i, g in enumerate(o.param_groups)):
        share = float(group.get("lr", 0) or 0) * float(group.get("weight_decay", 0) or 0)
        if share >= DECAY:
            got = f"weight decay {group['weight_decay']:g} takes {share:.1%} of the weights away in each step"
            do = "Take a smaller one: 1e-4 to 0.1 is usual"
            yield Finding("optimizer.decay", f"the optimiser's group {number}", got, f"below {DECAY:.0%}", do)


def check_batch_types(model: nn.Module, named: Sequence[tuple[str, Tensor]]) -> Iterator[Finding]:
    """Yield tensors of a batch on another device than the weights, or in float64 beside float32 weights."""
    first = next(iter(model.parameters()), None)
    for name, tensor in named if first is not None else ():
        assert first is not None
        if tensor.device != first.device and tensor.ndim:
            do = "Move the batch to the model's device before the step"
            yield Finding("device.batch", f"batch.{name}", str(tensor.device), str(first.device), do, "warn")
        if tensor.dtype == torch.float64 and first.dtype != torch.float64:
            do = "Use .float(); NumPy's arrays are float64 by default"
            yield Finding("dtype.batch", f"batch.{name}", "float64", str(first.dtype)[6:], do, "warn")


def check_untrained_part(model: nn.Module) -> Iterator[Finding]:
    """Yield a frozen part whose weights are those that torch begins with: no checkpoint has reached it.

    The signs are normalisations at 1 and 0, which no training leaves so, and linear and convolution weights within the
    bounds of torch's initialisation. Call it before a step: BatchNorm counts its batches.
    """
    parts = [(name, module) for name, module in model.named_modules() if _frozen(module)]
    norms = [module for _, module in parts if isinstance(module, NORMS) and module.weight is not None]
    layers = [(name, module) for name, module in parts if isinstance(module, nn.Linear | _ConvNd)]
    if not norms or len(layers) < FEW or not all(_begins(module) for module in norms):
        return
    if all(is_torch_start(module) for _, module in layers):
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
    """Return whether a normalisation has learned nothing, and seen nothing."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if weight is None or not bool((weight == 1).all()) or (bias is not None and bool(bias.any())):
        return False
    mean, variance = getattr(module, "running_mean", None), getattr(module, "running_var", None)
    return mean is None or variance is None or (not bool(mean.any()) and bool((variance == 1).all()))


def is_torch_start(module: nn.Module) -> bool:
    """Return whether a layer's weights lie within 1 / sqrt(fan in), up to it: how torch begins."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    bound = float(weight[0].numel()) ** -0.5
    largest = float(weight.detach().abs().max())
    return 0.5 * bound < largest <= BOUND * bound
