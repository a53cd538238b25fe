"""Law 2: every trainable parameter is in one optimizer group, and training begins with the loaded weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from ocrlab.debug.instruments.step_check.findings import is_readable, listing
from ocrlab.debug.instruments.step_check.static_rules import NORMS, is_torch_start
from ocrlab.debug.laws.experiment import Experiment
from ocrlab.debug.laws.law import Extras, Result, holds

FEWEST = 256  # values of a matrix, whose spread says something
SIGMAS = 5.0  # standard errors within which two spreads are one


def test(step: Experiment, _extras: Extras) -> Iterator[Result]:
    """Count the groups of each parameter, and compare the weights with a fresh start."""
    broken = [*_twice(step), *_drawn_again(step), *_random_head(step)]
    yield from broken
    if not broken:
        where = "" if step.optimizers else "; which optimizer moves them was not tested: give `optimizer`"
        yield holds(f"{len(step.trainable)} of {len(step.named)} parameters train{where}")


def _twice(step: Experiment) -> Iterator[Result]:
    counts = Counter(id(p) for o in step.optimizers for group in o.param_groups for p in group["params"])
    twice = [name for name, p in step.named.items() if counts[id(p)] > 1]
    if twice:
        yield Result(
            "broken",
            f"{counts[id(step.named[twice[0]])]} groups hold it, so that each step moves it more than once",
            listing(step.model, twice),
            "one group for each parameter",
            ("two optimizers are made from overlapping parts of the model", "tied weights are listed twice"),
            "Make the groups from disjoint sets of parameters",
            rule="coverage.twice",
        )


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
    yield Result(
        "broken",
        f"{len(alike)} of {len(matrices)} weight matrices are fresh random draws (normal, standard deviation"
        f" {spread:.3g} on average), beside {len(shifts)} normalisations that were trained (biases of"
        f" {max(learned):.2g}): the pretrained weights that were loaded are lost",
        listing(step.model, [n for n in step.named if n in alike]),
        "the loaded weights when training begins",
        (
            "the weights were initialised again after the checkpoint was loaded (post_init, model.apply(init_weights))",
            "load_state_dict(strict=False) matched only some of the names",
        ),
        "Initialise first and load the checkpoint after that; compare a weight with the file",
        rule="coverage.reinitialised",
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
    moved = {id(p) for o in step.optimizers for group in o.param_groups for p in group["params"]}
    moves = lambda p: p.requires_grad and (not step.optimizers or id(p) in moved)  # noqa: E731
    own = list(head.parameters(recurse=False))
    if any(moves(p) for p in own) or not any(moves(p) for p in step.named.values()) or not is_torch_start(head):
        return
    how = "is frozen" if not any(p.requires_grad for p in own) else "is in no optimizer"
    yield Result(
        "broken",
        f"the last layer {how} and still has its random start, while {sum(map(moves, step.named.values()))} other"
        " parameters train",
        name,
        "a head that is trained, or was loaded",
        ("requires_grad_(False) was called after the head was replaced", "the optimizer was made before the head"),
        "Freeze first and replace the head after that; make the optimizer last",
        rule="coverage.head",
    )
