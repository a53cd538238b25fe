"""Law 5, places: the target of a pixel, a position or a sample acts on the output of that one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ocrlab.debug.instruments.tensor_tree import dotted_tensors
from ocrlab.debug.laws.experiment import Experiment, NotTestable, Run, rebuilt
from ocrlab.debug.laws.law import Extras
from ocrlab.debug.laws.result import Result, broken, holds

PLACES = 4  # targets that are changed, one at a time
ROWS = 4  # samples from which on a place is not chance


def test(step: Experiment, _extras: Extras) -> Iterator[Result]:
    """Change single targets, and look at which outputs the gradient of the loss changes."""
    if step.rows < ROWS:
        raise NotTestable(f"the batch has fewer than {ROWS} samples")
    if step.draws_numbers():
        raise NotTestable("the step draws random numbers in eval mode")
    first, tested = step.run(gradients=True, training=False), ""
    own = _reads_its_target(step, first)
    if own is not None:
        yield own
        return
    read = [t for call in first.inputs for t in call]
    for name, target in dotted_tensors(step.batch):
        which = _output_of(first, target) if target.ndim and len(target) == step.rows else None
        if which is None or any(t.shape == target.shape and torch.equal(t, target) for t in read):
            continue
        reached = [(place, at) for place in _places(target) if (at := _reached(step, first, which, name, place))]
        tested = name if reached else tested
        if len(reached) < 3 or any(at == place for place, at in reached):
            continue
        place, at = reached[0]
        yield broken(
            "target.place",
            f"batch.{name}",
            f"the target of {_words(place)} does not act on the output there, and acts on {_words(at)} (in"
            f" {len(reached)} of {len(reached)} changes): outputs and targets are matched in another order",
            "a target that acts on the output of its own place",
            "Move the class axis last before flattening: `out.permute(0, 2, 3, 1).reshape(-1, classes)`, or pass"
            " (N, C, H, W) to cross_entropy as it is",
            "view or reshape where permute is needed: axes are mixed, not moved",
            "outputs (time, batch, classes) are flattened beside targets (batch, time)",
            "one of the two is sorted or shuffled alone",
        )
        return
    if not tested:
        raise NotTestable("no target has the places of an output")
    yield holds(f"a target of batch.{tested} acts on the output of its own place")


def _reads_its_target(step: Experiment, first: Run) -> Result | None:
    """Report a causal model of pixels or steps (N, C, ...) whose output at a place sees the target of that place.

    Its input is the only tensor of the batch, and so the target too. With outputs that stay as they were, a changed
    value acts on the gradient where it is the target.
    """
    named = list(dotted_tensors(step.batch))
    if len(named) != 1 or len(first.outputs) != 1 or not first.pushes or first.pushes[0] is None:
        return None
    whole, output, push = named[0][1], first.outputs[0], first.pushes[0]
    read = [t for call in first.inputs for t in call]
    if len(read) != 1 or not torch.equal(read[0], whole) or not whole.is_floating_point() or whole.ndim < 3:
        return None
    if output.shape[0] != len(whole) or output.shape[2:] != whole.shape[2:]:
        return None
    if whole.ndim == 3 and output.shape[1] == whole.shape[1] > 1:
        return None  # a causal autoencoder
    places = whole[0, 0].numel()
    middle = places // 2 + (whole.shape[-1] // 2 if whole.ndim > 3 else 0)

    def change(_: str, t: Tensor) -> Tensor:
        t = t.clone()
        flat = t.flatten(2)
        flat[:, :, middle] = flat.flip(0)[:, :, middle] + 0.5
        return t

    def keep(_module: Any, _args: Any, out: Any) -> Any:
        return out + (output - out).detach() if isinstance(out, Tensor) else out

    batch = rebuilt(step.batch, change)
    free = step.run(batch, training=False).outputs[0]
    pushes = step.run(batch, gradients=True, training=False, watch={step.model: keep}).pushes
    if not pushes or pushes[-1] is None or free.shape != output.shape:
        return None
    moved = (free - output).flatten(2).abs().amax((0, 1)) > step.rounding() * float(output.abs().max())
    aimed = (pushes[-1] - push).flatten(2).abs().amax((0, 1)) > 1e-6 * float(push.abs().max())
    causal = not bool(moved[:middle].any()) and bool(moved[middle + 1 :].any())
    if not causal or not bool(moved[middle] & aimed[middle]) or bool(aimed[middle + 1 :].any()):
        return None
    return broken(
        "target.read",
        "the model",
        f"it is causal (place {middle} of {places} changes no earlier output), and its output at a place changes with"
        " the input at that place, which is its target: it sees the value that it must predict",
        "an output that depends on earlier places only",
        "Let the first masked layer leave out the current place (mask type A), or shift the input by one",
        "the first masked convolution has type B, which lets the current pixel through",
        "the input is not shifted beside its targets",
    )


def _output_of(run: Run, target: Tensor) -> int | None:
    """Return the output that has classes or a number for each place of a target, None where there is no such."""
    shape = tuple(target.shape)
    for which, (out, push) in enumerate(zip(run.outputs, run.pushes, strict=False)):
        axis = _class_axis(tuple(out.shape), shape)
        if push is not None and axis is not None and target.unique().numel() > 1:
            return which
    return None


def _class_axis(out: tuple[int, ...], target: tuple[int, ...]) -> int | None:
    """Return the axis of an output that a target lacks, -1 where both have the same shape."""
    if out == target:
        return -1
    fits = [
        axis for axis in (1, len(out) - 1) if len(out) == len(target) + 1 and out[:axis] + out[axis + 1 :] == target
    ]
    return fits[0] if len(set(fits)) == 1 else None


def _places(target: Tensor) -> Iterator[tuple[int, ...]]:
    """Yield places of a target that has an ordinary value there, each in another sample."""
    rows = torch.linspace(0, len(target) - 1, PLACES).long().unique().tolist()
    for number, row in enumerate(rows):
        values = target[row]
        ordinary = (values >= 0 if not target.is_floating_point() else values == values).nonzero()
        if len(ordinary):
            yield row, *ordinary[len(ordinary) * (2 * number + 1) // (2 * len(rows))].tolist()


def _reached(step: Experiment, first: Run, which: int, name: str, place: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the place whose output a changed target acts on: its own if it acts there too; None for no effect.

    Positions of a sequence may be shifted: of these the sample counts.
    """

    def change(key: str, t: Tensor) -> Tensor:
        if key != name:
            return t
        changed, others = t.clone(), t[t != t[place]]
        others = others[others >= 0] if not t.is_floating_point() else others
        if len(others):
            changed[place] = others[len(others) // 2]
        return changed

    push = step.run(rebuilt(step.batch, change), gradients=True, training=False).pushes[which]
    before = first.pushes[which]
    if push is None or before is None:
        return None
    moved = (push - before).abs()
    if moved.ndim > len(place):
        moved = moved.amax(_class_axis(tuple(moved.shape), tuple(dict(dotted_tensors(step.batch))[name].shape)) or 0)
    reached = moved > 1e-6 * float(before.abs().max())
    own = bool(reached[place[0]].any() if len(place) == 2 else reached[place])
    if own or not bool(reached.any()):
        return place if own else None
    return tuple(int(i) for i in torch.unravel_index(moved.argmax(), moved.shape))


def _words(place: tuple[int, ...]) -> str:
    inside = place[1:]
    where = {0: "", 1: f", position {place[-1]}", 2: f", pixel {inside}"}.get(len(inside), f", place {inside}")
    return f"sample {place[0]}{where}"
