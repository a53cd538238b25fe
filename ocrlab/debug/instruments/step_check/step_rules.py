"""The rules of a training step from its loss on, one function for each moment of it, each of which yields findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from ocrlab.debug.instruments.step_check.findings import (
    Finding,
    group_by_module,
    index_text,
    is_readable,
    listing,
    not_finite,
    shortened_list,
    stored_values,
    value_at,
)
from ocrlab.debug.instruments.step_check.state_guard import (
    StepState,
    learning_rates,
    unlisted_modules,
    unregistered_tensors,
)

VANISHED = 1e-8  # share of the largest gradient: what float32 can tell beside it
WORSE = (3.0, 1.0)  # times, and by how much, a loss may grow by its own step: more is not a step down
SMALL = 1e-2  # what a block multiplies by, from which on down it begins as next to nothing
ROUNDING = 1e-5  # share of the largest gradient: of a bias before BatchNorm, which is 0 but for rounding, it is 5e-6
MANY, FEW = 64, 0.1  # values with a gradient, and the share of them that a step in half precision should change


def check_loss(total: Any) -> Iterator[Finding]:
    """Yield why a loss cannot be trained on."""
    if not isinstance(total, Tensor):
        do = "Return the loss tensor itself, without .item()"
        if total is None:
            do = "Look for a `return` that is missing; a model of Hugging Face gives a loss only where it gets `labels`"
        yield Finding("loss.type", "the loss", type(total).__name__, "a tensor", do)
        return
    if total.numel() != 1:
        yield Finding("loss.scalar", "the loss", f"shape {tuple(total.shape)}", "a scalar", "Take its mean or sum")
    if total.requires_grad and total.grad_fn is None:
        do = "Return the loss as it was computed: torch.tensor(loss) and .item() cut it off from the model"
        yield Finding("loss.gradient", "the loss", "a tensor that was made anew, without a graph", "a graph", do)
    if not total.requires_grad:
        do = "Look for detach(), .data, no_grad(), or a step by NumPy between the model and the loss"
        yield Finding("loss.gradient", "the loss", "it does not depend on any trainable weight", "a graph", do)
    broken = not_finite(total)
    if broken is not None:
        do = "See the first module above whose output is not finite; if none is, it is the loss itself"
        yield Finding("loss.finite", "the loss", value_at(total, broken), "finite", do)
    if total.dtype in (torch.float16, torch.bfloat16):
        do = "Compute the loss in float32: sums over a batch lose their last digits"
        yield Finding("loss.dtype", "the loss", str(total.dtype)[6:], "float32", do, "warn")


def check_gradients(model: nn.Module, called: set[str]) -> Iterator[Finding]:
    """Yield trainable parameters that no gradient reaches, or one that is not finite, or only zeros."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    for rest in group_by_module(model, [name for name, p in named if p.grad is None]):
        owner = rest[0].rpartition(".")[0]
        ran = owner in called or not called
        got = "no gradient; the module ran" if ran else "no gradient; the module was never called"
        do = "Look for detach(), argmax or an output that the loss does not use" if ran else "Call it, or remove it"
        yield Finding("gradient.missing", listing(model, rest), got, "a gradient", do)
    for name, p in named:
        broken = None if p.grad is None else not_finite(stored_values(p.grad))
        if broken is not None and p.grad is not None:
            do = "Look for sqrt, log or a division at 0, or scale the loss where it is float16"
            yield Finding(
                "gradient.finite", f"{name}{index_text(broken)}", value_at(stored_values(p.grad), broken), "finite", do
            )


def check_batch_written(state: StepState) -> Iterator[Finding]:
    """Yield what the forward pass wrote into its batch."""
    for name, tensor in state.written():
        where = f"batch.{name}" if name != "batch" else name
        view = tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size()
        got = "the forward pass wrote into it" + (": it is a view of the data, which are another's from now on" * view)
        do = "Write x = x - mean in place of x -= mean, or clone it first"
        yield Finding("batch.written", where, got, "the batch as it came", do, "fail" if view else "warn")


def check_unlisted_weights(model: nn.Module, optimizers: Sequence[Any]) -> Iterator[Finding]:
    """Yield modules in a plain list or dict, and plain tensors, that get gradients and are in no optimiser."""
    if not optimizers:
        return
    optimized = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
    hidden: dict[str, int] = {}
    for name, module in unlisted_modules(model):
        own = [p for p in module.parameters() if p.grad is not None and p.requires_grad]
        if own and module.training and not any(id(p) in optimized for p in own):
            hidden[name.partition("[")[0]] = hidden.get(name.partition("[")[0], 0) + len(own)
    for name, count in hidden.items():
        got = f"{count} parameters get gradients and are in no optimiser: a plain list or dict hides them"
        do = "Use nn.ModuleList or nn.ModuleDict: parameters(), to() and state_dict() know nothing of them now"
        yield Finding("weights.unlisted", name, got, "registered modules", do)
    plain_ones = [name for name, t in unregistered_tensors(model) if t.grad is not None and id(t) not in optimized]
    if plain_ones:
        got = "a tensor that gets a gradient, is not a parameter of the model, and is in no optimiser: it never moves"
        do = "Wrap it in nn.Parameter and set it as an attribute, or use nn.ParameterList for several"
        yield Finding("weights.unlisted", shortened_list(plain_ones), got, "a registered parameter", do)


def check_vanishing_gradients(model: nn.Module) -> Iterator[Finding]:
    """Yield weights whose gradient is nothing beside that of the others."""
    sizes = {
        name: float(stored_values(p.grad).float().square().mean().sqrt())
        for name, p in model.named_parameters()
        if p.requires_grad and p.ndim > 1 and p.grad is not None and is_readable(stored_values(p.grad))
    }
    sizes = {name: size for name, size in sizes.items() if 0 < size < float("inf")}
    most = max(sizes, key=lambda name: sizes[name], default="")
    gone = [name for name, size in sizes.items() if size < VANISHED * sizes[most]]
    gone = [name for name in gone if sizes[name] < VANISHED * sizes[most] * gate_scale(model, name)]
    if gone:
        got = f"gradients of {min(sizes[n] for n in gone):.1g} (root mean square), beside {sizes[most]:.1g} of {most}"
        do = "Use ReLU in place of sigmoid, normalisation, and connections that skip layers"
        yield Finding("gradient.vanishing", listing(model, gone), got, f"above {VANISHED:g} of it", do, "warn")


def gate_scale(model: nn.Module, name: str) -> float:
    """Return by what a block multiplies what it adds, where it begins small on purpose (LayerScale); else 1.

    Such a gate is a vector of a block, or of a part of it beside the one that holds the weight, and no bias.
    """
    block = name.split(".")
    smallest = 1.0
    for gate, p in model.named_parameters():
        *owner, own = gate.split(".")
        around, near = owner == block[: len(owner)], len(owner) > 1 and owner[:-1] == block[: len(owner) - 1]
        if owner and (around or near) and p.ndim <= 1 and p.requires_grad and "bias" not in own and is_readable(p):
            size = float(p.detach().abs().max())
            smallest = min(smallest, size) if 0 < size < SMALL else smallest
    return smallest


def check_loss_fell(before: float, after: float) -> Iterator[Finding]:
    """Yield that the loss of the very batch of a step is much larger after it."""
    times, more = WORSE
    if after > before + more and after > times * abs(before):
        do = "Take a smaller learning rate, a tenth at first"
        got = f"the step made the loss of its own batch larger: {before:.4g}, then {after:.4g}"
        yield Finding("step.worse", "the optimiser's step", got, "a smaller loss", do, "warn")


def gradient_norms(model: nn.Module) -> dict[str, float]:
    """Return the norm of the gradient of every trainable parameter that has one."""
    named = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None and p.requires_grad]
    whole = ((name, stored_values(grad)) for name, grad in named)
    real = (
        (name, torch.view_as_real(grad) if grad.is_complex() else grad) for name, grad in whole if is_readable(grad)
    )
    return {name: float(grad.float().norm()) for name, grad in real}


def check_batchnorm_statistics(model: nn.Module, state: StepState) -> Iterator[Finding]:
    """Yield BatchNorm in train mode whose running mean a step did not move, or made useless."""
    for name, module in model.named_modules():
        if not isinstance(module, _BatchNorm) or not module.training or not module.track_running_stats:
            continue
        label = f"{name}.running_mean" if name else "running_mean"
        mean = module.running_mean
        if mean is None or label not in state.tensors or not_finite(mean) is not None:
            continue  # what is not finite was found in the forward pass
        count = module.num_batches_tracked
        if count is not None and bool((mean == state.before(label)).all()) and not bool(count > 0):
            do = "Call it in forward, and check its momentum"
            yield Finding("batchnorm.still", name, "its statistics did not move", "an update in each step", do, "warn")


def self_moving_parameters(model: nn.Module, state: StepState) -> set[str]:
    """Return the frozen parameters that the forward pass moved by itself: an average of other weights."""
    named = [(name, p) for name, p in model.named_parameters() if not p.requires_grad and is_readable(p)]
    return {name for name, p in named if not bool((p.detach() == state.before(name)).all())}


def rounding_only(model: nn.Module) -> set[str]:
    """Return biases and the like whose gradient may be nothing but rounding."""
    sizes = {
        name: float(stored_values(p.grad).float().square().mean().sqrt())
        for name, p in model.named_parameters()
        if p.grad is not None and is_readable(stored_values(p.grad))
    }
    most = max(sizes.values(), default=0.0)
    return {name for name, p in model.named_parameters() if p.ndim <= 1 and sizes.get(name, most) < ROUNDING * most}


def check_weights_moved(
    model: nn.Module, optimizers: Sequence[Optimizer], state: StepState, by_itself: set[str] | None = None
) -> Iterator[Finding]:
    """Yield weights that the optimiser should have moved and did not, or moved and should not have."""
    lr, still, pulled, every = learning_rates(optimizers), [], [], 0
    tiny = rounding_only(model)
    for name, p in model.named_parameters():
        if not is_readable(p):
            continue
        same = bool((p.detach() == state.before(name)).all())
        if not p.requires_grad and not same and name not in (by_itself or ()):
            pulled.append(name)
        grad = None if p.grad is None else stored_values(p.grad)
        pushed = grad is not None and bool(grad.count_nonzero()) and not_finite(grad) is None and name not in tiny
        if p.requires_grad and pushed and lr.get(id(p), 0) > 0:
            every += 1
            still += [name] if same else []
        broken = not_finite(p)
        if broken is not None and not_finite(state.before(name)) is None:
            do = "Look at the gradient and at the optimiser's eps and rate"
            yield Finding("weights.after", f"{name}{index_text(broken)}", value_at(p, broken), "finite", do)
    for finding, names in _rounded_away(model, state, lr):
        still = [name for name in still if name not in names]
        yield finding
    kinds = {name: p.dtype for name, p in model.named_parameters()}
    for dtype in sorted({kinds[name] for name in still}, key=str):
        rest = [name for name in still if kinds[name] == dtype]
        wide, kind = dtype in (torch.float32, torch.float64), str(dtype).removeprefix("torch.")
        do = "Look at the learning rate: the update may be lost in rounding"
        do = do if wide else f"Keep the weights in float32 if the update is lost in {kind}, or look at the rate"
        got, some_do = f"a gradient, but no change ({kind})", wide and len(still) < every
        yield Finding("weights.still", listing(model, rest), got, "a change", do, "warn" if some_do else "fail")
    for rest in group_by_module(model, pulled):
        do = "Take them out of the optimiser and set their .grad to None: weight decay and momentum moved them"
        yield Finding("weights.frozen_moved", listing(model, rest), "frozen, and moved", "as before", do)


def _rounded_away(model: nn.Module, state: StepState, lr: dict[int, float]) -> Iterator[tuple[Finding, set[str]]]:
    """Yield half precision weights of which a step changes next to no value that has a gradient, and their names."""
    for dtype in (torch.bfloat16, torch.float16):
        names: set[str] = set()
        pushed = changed = 0
        for name, p in model.named_parameters():
            if p.dtype != dtype or not p.requires_grad or p.grad is None or not lr.get(id(p)) or not is_readable(p):
                continue
            if p.grad.layout == torch.strided:
                has = p.grad.detach() != 0
                names, pushed = names | {name}, pushed + int(has.sum())
                changed += int(((p.detach() != state.before(name)) & has).sum())
        if pushed >= MANY and changed < FEW * pushed:
            kind = str(dtype).removeprefix("torch.")
            got = f"the step changes {changed} of {pushed} values that have a gradient: {kind} rounds the others back"
            do = "Keep the weights in float32, and compute in autocast; or take a larger rate"
            yield Finding("weights.still", listing(model, sorted(names)), got, "a change of most", do), names


def check_evaluation(model: nn.Module, state: StepState) -> Iterator[Finding]:
    """Yield what a pass in eval mode changed."""
    changed = []
    for name, (tensor, value) in state.tensors.items():
        if is_readable(tensor) and not bool(((tensor == value) | (tensor != tensor)).all()):
            changed.append(name)
    for rest in group_by_module(model, changed):
        do = "Ask self.training before you write to it, unless this loss is never computed in eval mode"
        yield Finding("eval.changes", listing(model, rest), "a pass in eval mode changed it", "as before", do, "warn")
