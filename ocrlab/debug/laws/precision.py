"""Law 7: autocast changes the types of matrix products, and gradients point the same way in float64."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ocrlab.debug.laws.experiment import Experiment, NotTestable, rebuilt
from ocrlab.debug.laws.law import Extras
from ocrlab.debug.laws.result import Result, broken, hint, holds
from ocrlab.debug.laws.tensor_checks import is_readable

ALONG = 0.7  # cosine between the gradients of two types: below it the step goes elsewhere
LARGE = 50_000_000  # parameters, from which on no copy is made
ROWS, MOST_ROWS, COLUMNS, MOST_COLUMNS = 64, 1 << 16, 4, 4096  # of a table of positions
RUNS = 8  # of equal rows, at least


def coarse_tables(model: nn.Module) -> Iterator[Result]:
    """Report a table of positions (T, D) in a buffer whose rows are all different at first, and equal further on.

    Rounding gives many short runs of equal rows; one block of them is a part that is not filled, or filled with zeros.
    """
    for name, buffer in model.named_buffers():
        if buffer.ndim < 2 or not buffer.is_floating_point() or not is_readable(buffer) or buffer.is_sparse:
            continue
        rows = buffer.numel() // buffer.shape[-1] if buffer.shape[-1] else 0
        if not ROWS <= rows <= MOST_ROWS or not COLUMNS <= buffer.shape[-1] <= MOST_COLUMNS:
            continue
        table = buffer.detach().reshape(rows, -1)
        same = (table[1:] == table[:-1]).all(1) & (table[1:].amax(1) != table[1:].amin(1))
        at = int(same.to(torch.uint8).argmax())
        if int(same.sum()) >= rows // 16 and at >= rows // 8 and int((~same[at:]).sum()) >= RUNS:
            yield hint(
                "precision.table",
                name,
                f"rows {at} and {at + 1} are equal, and so are {int(same.sum())} of {rows - 1} neighbours, though the"
                f" first {rows // 8} rows all differ: positions above {at} were rounded to the same number",
                "a row of its own for each position",
                "Compute positions and angles in float32, and convert the result at the end",
                "torch.arange(..., dtype=torch.bfloat16): bfloat16 holds whole numbers exactly only up to 256, float16"
                " up to 2048",
            )
            return


def test(step: Experiment, _extras: Extras) -> Iterator[Result]:
    """Look at tables and at the types inside of autocast, then compare the gradient with that of a float64 copy."""
    yield from coarse_tables(step.model)
    kinds: list[tuple[bool, str, torch.dtype]] = []
    layers: dict[nn.Module, str] = {
        m: n for n, m in step.model.named_modules() if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d)
    }

    def note(module: nn.Module, _args: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            kinds.append((torch.is_autocast_enabled(output.device.type), layers[module], output.dtype))

    first = step.run(training=False, gradients=True, watch=dict.fromkeys(layers, note))
    cast = [(name, dtype) for on, name, dtype in kinds if on]
    if cast and all(dtype == torch.float32 for _, dtype in cast):
        got = f"autocast is on and all {len(cast)} matrix products return float32"
        do = "Pass the device of the model, torch.autocast(device_type=...)"
        causes = ("autocast is for another device than the tensors", "a custom forward turns it off")
        yield broken("precision.autocast", cast[0][0], got, "products in bfloat16 or float16", do, *causes)
        return
    if sum(p.numel() for p in step.named.values()) > LARGE or not first.gradients:
        raise NotTestable("the model is too large for a float64 copy")
    step.restore()
    try:
        wide = copy.deepcopy(step.model).double()
        batch = rebuilt(step.batch, lambda _, t: t.double() if t.is_floating_point() else t)
        other = step.run(batch, training=False, gradients=True, model=wide)
    except Exception as error:
        raise NotTestable(f"the step does not run in float64 ({type(error).__name__})") from error
    exact = other.gradients
    if step.rounding("gradients") > ALONG:
        raise NotTestable("the gradient is so small that roundings decide it")
    names = [name for name in first.gradients if name in exact and not first.gradients[name].is_sparse]
    if not names or len(other.outputs) != len(first.outputs) or step.draws_numbers():
        raise NotTestable("the step draws random numbers in eval mode, or works on another model")
    a, b = (torch.cat([g[n].double().flatten() for n in names]) for g in (first.gradients, exact))
    along = float(a @ b / (a.norm() * b.norm()).clamp(min=1e-300))
    if along < ALONG and bool(a.any()):
        yield broken(
            "precision.direction",
            "the gradient",
            f"the gradient and that of a float64 copy have the cosine {along:.2f}, lengths {float(a.norm()):.3g} and"
            f" {float(b.norm()):.3g}",
            "the same direction",
            "Compute the loss and reductions in float32",
            "sums or differences that a low precision rounds away",
            "an overflow or underflow that is clipped",
        )
        return
    yield holds(f"the gradient and that of a float64 copy have the cosine {along:.4f}")
