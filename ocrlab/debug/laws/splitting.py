"""Law 4: the gradient of a batch is a weighted sum of the gradients of its parts, so that accumulation is exact."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from ocrlab.debug.laws.experiment import Experiment, NotTestable, distance, selected
from ocrlab.debug.laws.law import Extras
from ocrlab.debug.laws.result import Result, broken, holds
from ocrlab.debug.laws.state_guard import loss_value
from ocrlab.debug.laws.tensor_checks import listing

MOST_NODES = 20_000  # of a graph that is searched for functions of the program
MEAN = "splitting.mean"  # the rule of a loss that is a mean over samples


def test(step: Experiment, _extras: Extras) -> Iterator[Result]:
    """Split the batch in two parts of different size, and find the weights with which their gradients add up."""
    factor_lost = _factor(step)
    if factor_lost is not None:
        yield factor_lost
        return
    n = step.rows
    if n < 2:
        raise NotTestable("the batch has no two samples along a common first dimension")
    if step.draws_numbers():
        raise NotTestable("the step draws random numbers in eval mode")
    cut = max(1, n // 3)
    parts = [selected(step.batch, rows, n) for rows in (range(cut), range(cut, n))]
    whole = step.run(training=False, gradients=True).gradients
    halves = [step.run(part, training=False, gradients=True).gradients for part in parts]
    names = [name for name in whole if all(name in half for half in halves) and not whole[name].is_sparse]
    columns = torch.stack([torch.cat([half[name].double().flatten() for name in names]) for half in halves])
    target = torch.cat([whole[name].double().flatten() for name in names])
    a, b = torch.linalg.lstsq(columns @ columns.T, columns @ target[:, None]).solution.flatten().tolist()
    rest = distance([target], [a * columns[0] + b * columns[1]])
    share, limit = cut / n, max(step.rounding("gradients"), 1e-5)
    equal = distance([target], [share * columns[0] + (1 - share) * columns[1]])
    summed = distance([target], [columns[0] + columns[1]])
    if summed <= limit:
        yield holds("the loss is a sum over samples: add the parts as they are")
    elif equal <= limit:
        text = f"the loss is a mean over samples: parts of {cut} and {n - cut} add up when weighted by their samples"
        yield replace(holds(text), rule=MEAN)
    elif rest <= limit:
        yield holds(
            f"the loss is a mean over counted labels, {a:.0%} of them in the first {cut} of {n} samples: when you"
            " accumulate, divide each part's sum by the labels of all parts; the mean of their means would be off by"
            f" {equal:.0%}"
        )
    else:
        yield holds(
            f"samples are compared with each other in the loss ({rest:.0%} of the gradient is of no part alone)"
        )


def _factor(step: Experiment) -> Result | None:
    """Double the loss: a gradient that stays as it was ignores what the loss is multiplied with."""
    loss, functions = step.loss, set[str]()

    def doubled(model: Any, batch: Any) -> Any:
        total = loss_value(loss(model, batch))
        functions.update(own_functions(total))
        return 2 * total

    whole = step.run(training=False, gradients=True).gradients
    step.loss = doubled
    try:
        double = step.run(training=False, gradients=True).gradients
    finally:
        step.loss = loss
    same = [n for n, g in whole.items() if n in double and bool(g.any()) and distance([g], [double[n]]) < 1e-3]
    if not same:
        return None
    names = ", ".join(sorted(functions))
    return broken(
        "gradient.factor",
        names or listing(step.model, same),
        f"twice the loss gives the same gradient, not twice as much, in {len(same)} of {len(whole)} parameters: weights"
        " of samples, loss weights, loss scaling and a division by accumulated steps have no effect there",
        "a gradient that is proportional to the loss",
        "Multiply by the incoming gradient in backward (`return grad_output * ...`), and compare with"
        " torch.autograd.gradcheck",
        "the backward of a custom autograd.Function ignores grad_output",
        "a hook replaces or normalises the gradient",
    )


def own_functions(total: Any) -> set[str]:
    """Return the names of the program's own autograd functions in the graph of a loss."""
    visited, todo, names = set[Any](), [getattr(total, "grad_fn", None)], set[str]()
    while todo and len(visited) < MOST_NODES:
        node = todo.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        owner = getattr(type(node), "_forward_cls", None)
        if isinstance(node, BackwardCFunction) and not getattr(owner, "__module__", "torch").startswith("torch."):
            names.add(type(node).__name__.removesuffix("Backward"))
        todo += [following for following, _ in node.next_functions]
    return names
