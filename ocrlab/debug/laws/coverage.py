"""Law 2: every trainable parameter gets a gradient, is in one optimizer group, and moves; frozen ones do not move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.optim import Optimizer

from ocrlab.debug.laws.experiment import Experiment
from ocrlab.debug.laws.law import Extras
from ocrlab.debug.laws.live_objects import trained_elsewhere
from ocrlab.debug.laws.observation import Observation
from ocrlab.debug.laws.result import Result, broken, hint, holds
from ocrlab.debug.laws.state_guard import learning_rates, optimized_parameters
from ocrlab.debug.laws.tensor_checks import is_readable, listing, not_finite, value_at

FEWEST = 256  # values of a matrix, whose spread says something
SIGMAS = 5.0  # standard errors within which two spreads are one
DECAY = 0.01  # share of the weights that decay takes away in one step; what is published lies below 1e-3
VANISHED, SLOW = 1e-6, 1e-4  # shares of the largest gradient, and of the largest relative step
ROUNDING = 1e-5  # share of the largest gradient: of a bias before BatchNorm, which is 0 but for rounding, it is 5e-6
MANY, FEW = 64, 0.1  # values with a gradient, and the share of them that a step in half precision should change
NORMS = (_BatchNorm, nn.LayerNorm, nn.GroupNorm)
BOUND = 1.0001  # times the largest value of torch's own start, which float32 may round


def _other_entries(step: Observation) -> Iterator[str]:
    """Yield the entries beside one with a gradient in a ModuleDict or ParameterDict: a batch may need one key only."""
    for name, module in step.model.named_modules():
        if isinstance(module, nn.ModuleDict | nn.ParameterDict):
            entries = [f"{name}.{key}" if name else key for key in module]
            used = [e for e in entries if any(n == e or n.startswith(f"{e}.") for n in step.gradients)]
            yield from (e for e in entries if used and e not in used)


def observe(step: Observation) -> Iterator[Result]:
    """Yield parameters that the observed step left out, or should not have moved."""
    yield from untrained_part(step.model)
    yield from decay(step.optimizers)
    if not any(p.requires_grad for p in step.model.parameters()):
        do = "Set requires_grad_(True)"
        yield broken("weights.frozen", "the model", "no parameter is trainable", "one", do)
    rates, spared = learning_rates(step.optimizers), tuple(_spared_parts(step))
    trained = {n: p for n, p in step.model.named_parameters() if p.requires_grad and not n.startswith(spared)}
    if any(id(p) not in rates for p in trained.values()):  # a part that has an optimizer of its own: GAN, actor-critic
        elsewhere = trained_elsewhere(step.optimizers) if step.optimizers else set()
        trained = {n: p for n, p in trained.items() if id(p) in rates or id(p) not in elsewhere}
    without = [name for name, p in trained.items() if step.optimizers and id(p) not in rates]
    if without:
        do = "Make the optimizer from the parameters that the model has now"
        got = "in no group of the optimizer"
        yield broken("optimizer.missing", listing(step.model, without), got, "each trainable one in one", do)
    waiting = {
        id(p) for o in step.optimizers for g in o.param_groups if g.get("initial_lr", 0) > 0 for p in g["params"]
    }
    idle = [name for name, p in trained.items() if rates.get(id(p)) == 0 and id(p) not in waiting]
    if idle:
        do = "Give the group a rate, or freeze it with requires_grad_(False)"
        yield hint("optimizer.rate", listing(step.model, idle), "learning rate 0", "above 0", do)
    called = {stage.name for stage in step.stages}
    other_entries = tuple(_other_entries(step))
    for ran in (True, False) if step.complete else ():
        none = [n for n in trained if n not in step.gradients and (n.rpartition(".")[0] in called) is ran]
        none = [n for n in none if not n.startswith(other_entries)]
        if none:
            got = f"no gradient; the module {'ran' if ran else 'was never called'}"
            do = "Look for detach(), argmax or an output that the loss does not use" if ran else "Call it, or remove it"
            yield broken("gradient.missing", listing(step.model, none), got, "a gradient", do)
    for name, gradient in step.gradients.items():
        if (wrong := not_finite(gradient)) is not None:
            do = "Look for sqrt, log or a division at 0, or scale the loss where it is float16"
            yield broken("gradient.finite", name, value_at(gradient, wrong), "finite", do)
    yield from _moves(step, rates)


def _moves(step: Observation, rates: dict[int, float]) -> Iterator[Result]:
    """Yield weights that a step should have moved and did not, moved by next to nothing, or should not have moved."""
    sizes = {n: float(g.abs().float().square().mean().sqrt()) for n, g in step.gradients.items() if g.numel()}
    sizes = {name: size for name, size in sizes.items() if 0 < size < torch.inf}
    most, named = max(sizes.values(), default=0.0), dict(step.model.named_parameters())
    shares: dict[str, tuple[int, int]] = {}  # how many values have a gradient, and how many of these changed
    pulled: list[str] = []
    moves: dict[str, float] = {}  # of matrices, as a share of their size
    for name in step.moved:
        p, before = named[name], step.state.before(name)
        changed = step.moved[name] != before
        if not p.requires_grad and name not in step.moved_alone and bool(changed.any()):
            pulled.append(name)
        if rates.get(id(p), 0) > 0 and sizes.get(name, 0) > (ROUNDING * most if p.ndim <= 1 else 0):
            has = step.gradients[name] != 0 if step.gradients[name].shape == p.shape else torch.ones_like(changed)
            shares[name] = int(has.sum()), int((changed & has).sum())
            if p.ndim > 1:
                size = before.abs().float().norm().clamp(min=1e-30)
                moves[name] = float((step.moved[name] - before).abs().float().norm() / size)
    if pulled:
        do = "Take it out of the optimizer and set its .grad to None: weight decay and momentum moved it"
        yield broken("weights.frozen_moved", listing(step.model, pulled), "frozen, and moved", "as before", do)
    still = [name for name, (_, changed) in shares.items() if not changed]
    low = [name for name in shares if named[name].dtype in (torch.bfloat16, torch.float16)]
    pushed, moved = (sum(shares[name][i] for name in low) for i in (0, 1))
    if pushed >= MANY and moved < FEW * pushed:
        got = f"the step changes {moved} of {pushed} values that have a gradient: half precision rounds the others back"
        do = "Keep the weights in float32, and compute in autocast; or take a larger rate"
        yield broken("weights.still", listing(step.model, low), got, "a change of most", do)
    elif still:
        kinds = ", ".join(sorted({str(named[name].dtype).removeprefix("torch.") for name in still}))
        do = "Look at the learning rate: the update may be lost in rounding; keep the weights in float32"
        got = f"a gradient, but no change ({kinds})"
        some = len(still) < len(shares)
        yield (hint if some else broken)("weights.still", listing(step.model, still), got, "a change", do)
    fastest = max(moves.values(), default=0.0)
    gone = [name for name, move in moves.items() if sizes[name] < VANISHED * most and move < SLOW * fastest]
    if gone:
        got = f"gradients of {min(sizes[n] for n in gone):.1g} (root mean square) beside {most:.1g} of others"
        got += f", and a step moves them by {max(moves[n] for n in gone):.1g} of their size"
        do = "Use ReLU in place of sigmoid or tanh, normalisation, and connections that skip layers"
        yield hint("gradient.vanishing", listing(step.model, gone), got, f"above {VANISHED:g} of the largest", do)


def _spared_parts(step: Observation) -> Iterator[str]:
    """Yield the prefixes of parts that need no gradient: copies that assignment moves, experts that were not asked.

    Beside each of them a part of the same class and shapes has a gradient.
    """
    called = {stage.name for stage in step.stages}
    for owner, parent in step.model.named_modules():
        kinds: dict[Any, dict[str, bool]] = {}
        for name, part in parent.named_children():
            prefix = f"{owner}.{name}".removeprefix(".")
            shapes = [p.shape for p in part.parameters()]
            reached = any(n.startswith(f"{prefix}.") for n in step.gradients)
            kinds.setdefault((type(part), *shapes), {})[prefix] = reached or not shapes
        for alike in kinds.values():
            if any(alike.values()):
                yield from (f"{n}." for n, ok in alike.items() if not ok and (not owner or n not in called))


def decay(optimizers: Sequence[Optimizer]) -> Iterator[Result]:
    """Yield groups whose weight decay alone makes the weights vanish."""
    for number, group in ((i, g) for o in optimizers for i, g in enumerate(o.param_groups)):
        share = float(group.get("lr", 0) or 0) * float(group.get("weight_decay", 0) or 0)
        if share >= DECAY:
            got = f"weight decay {group['weight_decay']:g} takes {share:.1%} of the weights away in each step"
            do = "Take a smaller one: 1e-4 to 0.1 is usual"
            yield broken("optimizer.decay", f"group {number} of the optimizer", got, f"below {DECAY:.0%}", do)


def untrained_part(model: nn.Module) -> Iterator[Result]:
    """Yield a frozen part whose weights are those that torch begins with: no checkpoint has reached it.

    Its normalisations, which no training leaves at 1 and 0, tell, and linear and convolution weights within the bounds
    of torch's own start. To be asked before a step: BatchNorm counts what it sees.
    """
    frozen = [(name, m) for name, m in model.named_modules() if _is_frozen(m)]
    trained = {_kind(m) for m in model.modules() if any(p.requires_grad for p in m.parameters(recurse=False))}
    if all(_kind(m) in trained for _, m in frozen):  # a teacher or target: a copy of what is trained
        return
    norms = [m for _, m in frozen if isinstance(m, NORMS) and m.weight is not None]
    layers = [(name, m) for name, m in frozen if isinstance(m, nn.Linear | _ConvNd)]
    if norms and len(layers) >= 2 and all(map(_begins, norms)) and all(is_torch_start(m) for _, m in layers):
        got = f"frozen, and as torch made it: {len(norms)} normalisations hold 1 and 0, {len(layers)} layers lie within"
        got += " the bounds of their random start"
        do = "Look at what load_state_dict(..., strict=False) returns: keys with another prefix (module., model.) load"
        do += " nothing. If random features are meant, nothing is wrong"
        yield hint("weights.untrained", f"{layers[0][0]} and what is frozen with it", got, "a checkpoint", do)


def _kind(module: nn.Module) -> tuple[Any, ...]:
    return (type(module), *(p.shape for p in module.parameters(recurse=False)))


def _is_frozen(module: nn.Module) -> bool:
    own = list(module.parameters(recurse=False))
    return bool(own) and not any(p.requires_grad for p in own) and all(is_readable(p) for p in own)


def _begins(norm: nn.Module) -> bool:
    """Return whether a normalisation has learned nothing, and seen nothing."""
    start = {"weight": 1, "bias": 0, "running_mean": 0, "running_var": 1}
    values = {name: getattr(norm, name, None) for name in start}
    return all(t is None or bool((t == start[name]).all()) for name, t in values.items())


def is_torch_start(module: nn.Module) -> bool:
    """Return whether a layer's weights lie within 1 / sqrt(fan in), up to it: how torch begins."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    bound = float(weight[0].numel()) ** -0.5
    return 0.5 * bound < float(weight.detach().abs().max()) <= BOUND * bound


def test(step: Experiment, _extras: Extras) -> Iterator[Result]:
    """Count the groups of each parameter, and compare the weights with a fresh start."""
    results = [*_twice(step), *_drawn_again(step), *_random_head(step)]
    yield from results
    if not results:
        where = "" if step.optimizers else "; which optimizer moves them was not tested: give `optimizer`"
        yield holds(f"{len(step.trainable)} of {len(step.named)} parameters train{where}")


def _twice(step: Experiment) -> Iterator[Result]:
    counts = Counter(id(p) for o in step.optimizers for group in o.param_groups for p in group["params"])
    twice = [name for name, p in step.named.items() if counts[id(p)] > 1]
    if twice:
        got = f"{counts[id(step.named[twice[0]])]} groups hold it, so that each step moves it more than once"
        do = "Make the groups from disjoint sets of parameters"
        causes = ("two optimizers are made from overlapping parts of the model", "tied weights are listed twice")
        yield broken("coverage.twice", listing(step.model, twice), got, "one group for each parameter", do, *causes)


def _drawn_again(step: Experiment) -> Iterator[Result]:
    """Report matrices that are all fresh normal draws beside normalisations that were trained.

    An optimizer moves both by about as much: where biases of normalisations lie as far from 0 as the matrices spread,
    the matrices cannot still have the spread, and the kurtosis, of one normal distribution.
    """
    shifts = [
        b
        for m in step.model.modules()
        if isinstance(m, NORMS) and isinstance(b := getattr(m, "bias", None), Tensor) and is_readable(b)
    ]
    learned = [float(b.detach().float().square().mean().sqrt()) for b in shifts]
    matrices = {
        n: p.detach().double().flatten()
        for n, p in step.named.items()
        if p.ndim > 1 and p.numel() >= FEWEST and is_readable(p) and p.is_floating_point()
    }
    if not learned or len(matrices) < 3:
        return
    spreads = {name: float(v.std()) for name, v in matrices.items() if _is_normal(v)}
    alike = [
        name
        for name, s in spreads.items()
        if any(
            other != name and abs(s / t - 1) < SIGMAS * (0.5 / len(matrices[name]) + 0.5 / len(matrices[other])) ** 0.5
            for other, t in spreads.items()
            if t
        )
    ]
    if len(alike) < 0.75 * len(matrices) or sorted(learned)[len(learned) // 2] < 0.5 * max(spreads[n] for n in alike):
        return
    spread = sum(spreads[n] for n in alike) / len(alike)
    yield broken(
        "coverage.reinitialised",
        listing(step.model, [n for n in step.named if n in alike]),
        f"{len(alike)} of {len(matrices)} weight matrices are fresh random draws (normal, standard deviation"
        f" {spread:.3g} on average), beside {len(shifts)} normalisations that were trained (biases of"
        f" {max(learned):.2g}): the pretrained weights that were loaded are lost",
        "the loaded weights when training begins",
        "Initialise first and load the checkpoint after that; compare a weight with the file",
        "the weights were initialised again after the checkpoint was loaded (post_init, model.apply(init_weights))",
        "load_state_dict(strict=False) matched only some of the names",
    )


def _is_normal(values: Tensor) -> bool:
    n = len(values)
    centred = values - values.mean()
    variance = float(centred.square().mean())
    if variance <= 0 or abs(float(values.mean())) > SIGMAS * (variance / n) ** 0.5:
        return False
    return abs(float(centred.pow(4).mean()) / variance**2 - 3) < SIGMAS * (24 / n) ** 0.5


def _random_head(step: Experiment) -> Iterator[Result]:
    """Report a last layer that never moves and is still as torch made it, while others train."""
    last: list[tuple[str, nn.Module]] = []
    layers: dict[nn.Module, str] = {m: n for n, m in step.model.named_modules() if isinstance(m, nn.Linear | _ConvNd)}

    def note(module: nn.Module, _args: Any, output: Any) -> None:
        if getattr(output, "requires_grad", False):  # a gradient passes through it: it is not a teacher
            last.append((layers[module], module))

    step.run(training=False, gradients=True, watch=dict.fromkeys(layers, note))
    if not last or len({name for name, _ in last}) < 2:
        return
    name, head = last[-1]
    moved = optimized_parameters(step.optimizers)
    moves = lambda p: p.requires_grad and (not step.optimizers or id(p) in moved)  # noqa: E731
    own = list(head.parameters(recurse=False))
    if any(moves(p) for p in own) or not any(moves(p) for p in step.named.values()) or not is_torch_start(head):
        return
    how = "is frozen" if not any(p.requires_grad for p in own) else "is in no optimizer"
    got = (
        f"the last layer {how} and still has its random start, while {sum(map(moves, step.named.values()))} other"
        " parameters train"
    )
    do = "Freeze first and replace the head after that; make the optimizer last"
    causes = ("requires_grad_(False) was called after the head was replaced", "the optimizer was made before the head")
    yield broken("coverage.head", name, got, "a head that is trained, or was loaded", do, *causes)
