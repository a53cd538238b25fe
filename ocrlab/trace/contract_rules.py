"""The rules of a training step, one function for each moment of it; each yields a finding for what is violated."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ocrlab.trace.contract_batch import Finding, entries, leaves, masks, not_finite, plain, value_at
from ocrlab.trace.contract_state import Kept, rates, unlisted

VANISHED = 1e-8  # share of the largest gradient: what float32 can tell beside it
DROPPED = 0.9  # dropout from here on leaves less than a tenth
DECAY = 0.01  # share of the weights that decay takes away in one step; what is published lies below 1e-3
WORSE = (3.0, 1.0)  # times, and by how much, a loss may grow by its own step: more is no step down
ROUNDING = 1e-5  # share of the largest gradient: of a bias before BatchNorm, which is 0 but for rounding, it is 5e-6
SAME = 1e-3  # share by which two passes in eval mode may differ: kernels that add in any order


def standing(model: nn.Module, optimizers: Sequence[Optimizer]) -> Iterator[Finding]:
    """Yield what is wrong before anything runs: weights, devices, modes, optimiser groups."""
    named = [*model.named_parameters(), *model.named_buffers()]
    lazy = [name for name, p in named if is_lazy(p)]
    if lazy:
        do = "Run one batch through the model first, and make the optimiser after that"
        yield Finding("weights.lazy", some(lazy), "not initialised", "weights", do)
        return
    meta = [name for name, t in named if t.device.type == "meta"]
    if meta:
        do = "Use to_empty(device=...) and load or initialise the weights"
        yield Finding("weights.meta", some(meta), "on the meta device", "a device that holds values", do)
        return
    devices = sorted({str(t.device) for _, t in named})
    if len(devices) > 1:
        by = {device: [name for name, t in named if str(t.device) == device] for device in devices}
        fewest = min(by.values(), key=len)
        do = "Register tensors with register_buffer so that .to() moves them, and call model.to(device) once"
        yield Finding("device.model", some(fewest), ", ".join(devices), "one device", do)
    for name, tensor in named:
        broken = not_finite(tensor)
        if broken is not None and not (masks(tensor) and not name.endswith(("running_mean", "running_var"))):
            do = "The checkpoint or the last step is broken; look at the loss curve"
            yield Finding("weights.finite", f"{name}{index(broken)}", value_at(tensor, broken), "finite", do)
    if not any(p.requires_grad for p in model.parameters()):
        yield Finding("weights.frozen", "the model", "no parameter is trainable", "one", "Set requires_grad_(True)")
    elif not any(p.requires_grad and p.ndim > 1 for p in model.parameters()):
        frozen = [name for name, p in model.named_parameters() if p.ndim > 1]
        if frozen:
            got, do = (
                f"frozen, like all of its kind: {some(frozen)}",
                "Look at the names by which parameters are frozen",
            )
            yield Finding("weights.biases", "the model", f"only biases train; weights are {got}", "weights", do, "warn")
    yield from modes(model)
    yield from groups(model, optimizers)


def modes(model: nn.Module) -> Iterator[Finding]:
    """Yield modules in the wrong mode for a training step."""
    if not model.training:
        yield Finding("mode.eval", "the model", "eval mode", "train mode", "Call model.train() before the step")
        return
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p >= DROPPED:
            do = "It is the share that is dropped, not the share that is kept"
            yield Finding("mode.dropout", name, f"drops {module.p:.0%}", f"less than {DROPPED:.0%}", do, "warn")
        if not isinstance(module, _BatchNorm | nn.SyncBatchNorm):
            continue
        weights = list(module.parameters(recurse=False))
        frozen = bool(weights) and not any(p.requires_grad for p in weights)
        if not module.training and not frozen and weights:
            do = "Call model.train() after the last eval(), or freeze its weights as well where it is meant"
            yield Finding("mode.batchnorm", name, "eval mode in a model that trains", "train mode", do, "warn")
        if module.training and frozen and module.track_running_stats:
            do = "Put frozen BatchNorm into eval mode; model.train() sets it back at every epoch"
            got = "frozen weights, but its running statistics still move"
            yield Finding("mode.batchnorm_frozen", name, got, "eval mode", do, "warn")


def groups(model: nn.Module, optimizers: Sequence[Optimizer]) -> Iterator[Finding]:
    """Yield parameters that no optimiser moves, that it moves for nothing, or that are not the model's."""
    if not optimizers:
        return
    lr, named = rates(optimizers), dict(model.named_parameters())
    without = [name for name, p in named.items() if p.requires_grad and id(p) not in lr]
    if without:
        do = "Make the optimiser from the parameters that the model has now"
        yield Finding("optimizer.missing", grouped(model, without), "in no group", "each trainable one in one", do)
    waiting = {id(p) for o in optimizers for g in o.param_groups if g.get("initial_lr", 0) > 0 for p in g["params"]}
    idle = [n for n, p in named.items() if p.requires_grad and lr.get(id(p)) == 0 and id(p) not in waiting]
    if idle:
        do = "Give the group a rate, or freeze it with requires_grad_(False)"
        yield Finding("optimizer.rate", grouped(model, idle), "learning rate 0", "above 0", do, "warn")
    frozen = [name for name, p in named.items() if not p.requires_grad and id(p) in lr]
    if frozen:
        do = "Leave frozen parameters out of the optimiser: an old gradient or momentum would still move them"
        yield Finding(
            "optimizer.frozen", grouped(model, frozen), "frozen, with a learning rate", "no group", do, "warn"
        )
    yield from decays(optimizers)
    stale = [name for name, p in named.items() if not p.requires_grad and p.grad is not None]
    if stale:
        do = "Set .grad = None where you freeze"
        yield Finding("gradient.stale", grouped(model, stale), "a gradient of earlier", "none", do, "warn")
    strangers = len(lr.keys() - {id(p) for p in named.values()})
    if strangers:
        do = "Make the optimiser after the model is built, moved and wrapped"
        yield Finding(
            "optimizer.stranger", "the optimiser", f"{strangers} tensors not of this model", "none", do, "warn"
        )


def decays(optimizers: Sequence[Optimizer]) -> Iterator[Finding]:
    """Yield groups whose weight decay alone makes the weights vanish."""
    for number, group in ((i, g) for o in optimizers for i, g in enumerate(o.param_groups)):
        share = float(group.get("lr", 0) or 0) * float(group.get("weight_decay", 0) or 0)
        if share >= DECAY:
            got = f"weight decay {group['weight_decay']:g} takes {share:.1%} of the weights away in each step"
            do = "Take a smaller one: 1e-4 to 0.1 is usual"
            yield Finding("optimizer.decay", f"the optimiser's group {number}", got, f"below {DECAY:.0%}", do)


def types(model: nn.Module, named: Sequence[tuple[str, Tensor]]) -> Iterator[Finding]:
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


def loss(total: Any) -> Iterator[Finding]:
    """Yield why a loss cannot be trained on."""
    if not isinstance(total, Tensor):
        do = "Return the loss tensor itself, without .item()"
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


def gradients(model: nn.Module, called: set[str]) -> Iterator[Finding]:
    """Yield trainable parameters that no gradient reaches, or one that is not finite, or only zeros."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    for rest in split(model, [name for name, p in named if p.grad is None]):
        owner = rest[0].rpartition(".")[0]
        ran = owner in called or not called
        got = "no gradient; the module ran" if ran else "no gradient; the module was never called"
        do = "Look for detach(), argmax or an output that the loss does not use" if ran else "Call it, or remove it"
        yield Finding("gradient.missing", grouped(model, rest), got, "a gradient", do)
    for name, p in named:
        broken = None if p.grad is None else not_finite(entries(p.grad))
        if broken is not None and p.grad is not None:
            do = "Look for sqrt, log or a division at 0, or scale the loss where it is float16"
            yield Finding("gradient.finite", f"{name}{index(broken)}", value_at(entries(p.grad), broken), "finite", do)


def zeros(model: nn.Module) -> list[str]:
    """Return trainable parameters whose gradient holds only zeros; not a bias that cancels out beside its weight."""
    found = {
        name: bool(entries(p.grad).count_nonzero())
        for name, p in model.named_parameters()
        if p.requires_grad and p.grad is not None and plain(entries(p.grad))
    }
    cancels = {name for name in found if name.endswith("bias") and found.get(f"{name.removesuffix('bias')}weight")}
    return [name for name, some in found.items() if not some and name not in cancels]


def asleep(model: nn.Module, names: Sequence[str]) -> Iterator[Finding]:
    """Yield parameters whose gradient is 0, and stays so."""
    for rest in split(model, names):
        do = "Look for a ReLU that is never above 0, a mask of zeros, or a weight of 0 in the loss"
        yield Finding("gradient.zero", grouped(model, rest), "only zeros", "a gradient", do, "warn")


def written(kept: Kept) -> Iterator[Finding]:
    """Yield what the forward pass wrote into its batch."""
    for name, tensor in kept.written():
        where = f"batch.{name}" if name != "batch" else name
        view = tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size()
        got = "the forward pass wrote into it" + (": it is a view of the data, which are another's from now on" * view)
        do = "Write x = x - mean in place of x -= mean, or clone it first"
        yield Finding("batch.written", where, got, "the batch as it came", do, "fail" if view else "warn")


def unheld(model: nn.Module, optimizers: Sequence[Any]) -> Iterator[Finding]:
    """Yield modules in a plain list or dict that get gradients and are in no optimiser."""
    if not optimizers:
        return
    held = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
    hidden: dict[str, int] = {}
    for name, module in unlisted(model):
        own = [p for p in module.parameters() if p.grad is not None and p.requires_grad]
        if own and module.training and not any(id(p) in held for p in own):
            hidden[name.partition("[")[0]] = hidden.get(name.partition("[")[0], 0) + len(own)
    for name, count in hidden.items():
        got = f"{count} parameters get gradients and are in no optimiser: a plain list or dict hides them"
        do = "Use nn.ModuleList or nn.ModuleDict: parameters(), to() and state_dict() know nothing of them now"
        yield Finding("weights.unlisted", name, got, "registered modules", do)


def vanishing(model: nn.Module) -> Iterator[Finding]:
    """Yield weights whose gradient is nothing beside that of the others."""
    sizes = {
        name: float(entries(p.grad).float().square().mean().sqrt())
        for name, p in model.named_parameters()
        if p.requires_grad and p.ndim > 1 and p.grad is not None and plain(entries(p.grad))
    }
    sizes = {name: size for name, size in sizes.items() if 0 < size < float("inf")}
    most = max(sizes, key=lambda name: sizes[name], default="")
    gone = [name for name, size in sizes.items() if size < VANISHED * sizes[most]]
    if gone:
        got = f"gradients of {min(sizes[n] for n in gone):.1g} (root mean square), beside {sizes[most]:.1g} of {most}"
        do = "Use ReLU in place of sigmoid, normalisation, and connections that skip layers"
        yield Finding("gradient.vanishing", grouped(model, gone), got, f"above {VANISHED:g} of it", do, "warn")


def helped(before: float, after: float) -> Iterator[Finding]:
    """Yield that the loss of the very batch of a step is much larger after it."""
    times, more = WORSE
    if after > before + more and after > times * abs(before):
        do = "Take a smaller learning rate, a tenth at first"
        got = f"the step made the loss of its own batch larger: {before:.4g}, then {after:.4g}"
        yield Finding("step.worse", "the optimiser's step", got, "a smaller loss", do, "warn")


def norms(model: nn.Module) -> dict[str, float]:
    """Return the norm of the gradient of every trainable parameter that has one."""
    named = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None and p.requires_grad]
    return {name: float(entries(grad).float().norm()) for name, grad in named if plain(entries(grad))}


def statistics(model: nn.Module, kept: Kept) -> Iterator[Finding]:
    """Yield BatchNorm in train mode whose running mean a step did not move, or made useless."""
    for name, module in model.named_modules():
        if not isinstance(module, _BatchNorm) or not module.training or not module.track_running_stats:
            continue
        label = f"{name}.running_mean" if name else "running_mean"
        mean = module.running_mean
        if mean is None or label not in kept.tensors or not_finite(mean) is not None:
            continue  # what is not finite was found in the forward pass
        count = module.num_batches_tracked
        if count is not None and bool((mean == kept.before(label)).all()) and not bool(count > 0):
            do = "Call it in forward, and check its momentum"
            yield Finding("batchnorm.still", name, "its statistics did not move", "an update in each step", do, "warn")


def frozen(model: nn.Module, kept: Kept) -> set[str]:
    """Return the frozen parameters that the forward pass moved by itself: an average of other weights."""
    named = [(name, p) for name, p in model.named_parameters() if not p.requires_grad and plain(p)]
    return {name for name, p in named if not bool((p.detach() == kept.before(name)).all())}


def rounded(model: nn.Module) -> set[str]:
    """Return biases and the like whose gradient may be nothing but rounding."""
    sizes = {
        name: float(entries(p.grad).float().square().mean().sqrt())
        for name, p in model.named_parameters()
        if p.grad is not None and plain(entries(p.grad))
    }
    most = max(sizes.values(), default=0.0)
    return {name for name, p in model.named_parameters() if p.ndim <= 1 and sizes.get(name, most) < ROUNDING * most}


def moved(
    model: nn.Module, optimizers: Sequence[Optimizer], kept: Kept, by_itself: set[str] | None = None
) -> Iterator[Finding]:
    """Yield weights that the optimiser should have moved and did not, or moved and should not have."""
    lr, still, pulled, every = rates(optimizers), [], [], 0
    tiny = rounded(model)
    for name, p in model.named_parameters():
        if not plain(p):
            continue
        same = bool((p.detach() == kept.before(name)).all())
        if not p.requires_grad and not same and name not in (by_itself or ()):
            pulled.append(name)
        grad = None if p.grad is None else entries(p.grad)
        pushed = grad is not None and bool(grad.count_nonzero()) and not_finite(grad) is None and name not in tiny
        if p.requires_grad and pushed and lr.get(id(p), 0) > 0:
            every += 1
            still += [name] if same else []
        broken = not_finite(p)
        if broken is not None and not_finite(kept.before(name)) is None:
            do = "Look at the gradient and at the optimiser's eps and rate"
            yield Finding("weights.after", f"{name}{index(broken)}", value_at(p, broken), "finite", do)
    kinds = {name: p.dtype for name, p in model.named_parameters()}
    for dtype in sorted({kinds[name] for name in still}, key=str):
        rest = [name for name in still if kinds[name] == dtype]
        wide, kind = dtype in (torch.float32, torch.float64), str(dtype).removeprefix("torch.")
        do = "Look at the learning rate: the update may be lost in rounding"
        do = do if wide else f"Keep the weights in float32 if the update is lost in {kind}, or look at the rate"
        found, some_do = f"a gradient, but no change ({kind})", wide and len(still) < every
        yield Finding("weights.still", grouped(model, rest), found, "a change", do, "warn" if some_do else "fail")
    for rest in split(model, pulled):
        do = "Take them out of the optimiser and set their .grad to None: weight decay and momentum moved them"
        yield Finding("weights.frozen_moved", grouped(model, rest), "frozen, and moved", "as before", do)


def evaluation(model: nn.Module, kept: Kept, values: Sequence[Any]) -> Iterator[Finding]:
    """Yield what a pass in eval mode changed, and a dropout by which the loss is another the second time."""
    changed = []
    for name, (tensor, value) in kept.tensors.items():
        if plain(tensor) and not bool(((tensor == value) | (tensor != tensor)).all()):
            changed.append(name)
    for rest in split(model, changed):
        do = "Ask self.training before you write to it, unless this loss is never computed in eval mode"
        yield Finding("eval.changes", grouped(model, rest), "a pass in eval mode changed it", "as before", do, "warn")
    first, second = (float(v.detach().sum()) if isinstance(v, Tensor) else 0.0 for v in values or (0, 0))
    if abs(first - second) > SAME * max(abs(first), abs(second), 1e-12):
        do = "Look for functional.dropout without training=self.training, or a dropout_p of attention in eval mode"
        yield Finding("eval.repeats", "the loss in eval mode", f"{first:g}, then {second:g}", "the same twice", do)


def split(model: nn.Module, names: Sequence[str]) -> list[list[str]]:
    """Return parameter names in groups, one for each highest module all of whose parameters are among them."""
    left, found = list(names), []
    for module, _ in model.named_modules():
        if module and left:
            prefix = f"{module}."
            all_of_it = [name for name, _ in model.named_parameters() if name.startswith(prefix)]
            mine = [name for name in left if name.startswith(prefix)]
            if mine and len(mine) == len(all_of_it):
                found.append(mine)
                left = [name for name in left if not name.startswith(prefix)]
    return [*found, *([name] for name in left)]


def grouped(model: nn.Module, names: Sequence[str]) -> str:
    """Return parameter names in words: whole modules by their name."""
    return some([prefix(rest) for rest in split(model, names)])


def prefix(names: Sequence[str]) -> str:
    """Return what a module's parameters have in common, with their number."""
    if len(names) == 1:
        return names[0]
    words = [name.split(".") for name in names]
    same = 0
    while all(len(w) > same + 1 and w[same] == words[0][same] for w in words):
        same += 1
    return f"{'.'.join(words[0][:same])} ({len(names)} parameters)"


def some(names: Sequence[str], most: int = 6) -> str:
    """Return names in words, the first few of them."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def index(broken: Tensor) -> str:
    """Return the position of the first True of a mask, as one writes it in code."""
    at = torch.nonzero(broken)[0].tolist() if broken.ndim else []
    return f"[{', '.join(map(str, at))}]"


def last_line(error: BaseException) -> str:
    """Return the file and line at which something was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/torch/" not in frame.filename and "/trace/contract" not in frame.filename]
    if not own:
        return "in torch"
    return f"{own[-1].filename.rpartition('/')[2]}:{own[-1].lineno}"


def advice(error: BaseException, batch: Any, model: nn.Module) -> str:
    """Return what to do about an error of the forward pass."""
    text, devices = str(error), {str(t.device) for _, t in leaves(batch)}
    if "Expected more than 1 value per channel" in text:
        return "Use a larger batch or crop: BatchNorm has one value for each channel here"
    if "same device" in text:
        return f"Move the batch ({', '.join(sorted(devices))}) to the model's device"
    if "positional argument" in text or "has no attribute" in text:
        return "`loss` is called as loss(model, batch) and does the whole forward pass"
    return "Look at the line that is named; its shapes stand in the stages of the report"
