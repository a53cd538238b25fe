"""Law 4: the gradient of a batch is a weighted sum of the gradients of its parts, so that accumulation is exact."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ocrlab.debug.laws.experiment import Experiment, NotTestable, distance, selected
from ocrlab.debug.laws.law import Extras
from ocrlab.debug.laws.result import Result, holds


def test(step: Experiment, _extras: Extras) -> Iterator[Result]:
    """Split the batch in two parts of different size, and find the weights with which their gradients add up."""
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
        yield holds(
            f"the loss is a mean over samples: parts of {cut} and {n - cut} add up when weighted by their samples"
        )
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
