"""Does a variational autoencoder still use its code? Mean and logarithm of the variance, and what is made of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from torch import Tensor

LAST = 3  # looks at the end
BATCHES = 64  # of which the last look is one: at first every code is that of nothing
EMPTY = 0.05  # nats of a sample in its whole code
ALIKE = 0.3  # correlation of what is made of the codes with the samples, beyond what all have in common
FELL = 0.7  # of the loss in the last look: below, a code may have been found after it


class Posterior:
    """What was seen of codes and of what was made of them, one entry for each look."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []  # nats of a code, correlation of answers and samples
        self.losses: list[float] = []

    def see(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Note one forward pass, where it gives a reconstruction and two codes of one size."""
        codes = [(a, b) for a, b in itertools.pairwise(outputs) if a.ndim == 2 and a.shape == b.shape]
        made = [
            (x, y)
            for x in inputs
            for y in outputs
            if x.is_floating_point() and x.numel() == y.numel() and len(x) == len(y)
        ]
        codes = [pair for pair in codes if all(pair[0].numel() < y.numel() for _, y in made)]
        if not codes or not made:
            return
        nats = min(float(_nats(*order)) for a, b in codes for order in ((a, b), (b, a)))
        self.seen.append((nats, _alike(*made[0])))

    def loss(self, value: float) -> None:
        """Note the loss of a look."""
        self.losses.append(value)

    def sentence(self, batches: int, last: float) -> str:
        """Return what is to be said of codes that hold nothing, after `batches` and with a loss of `last`; else ''."""
        rest, losses = self.seen[-LAST:], [value for value in self.losses if math.isfinite(value)]
        if len(rest) < LAST or batches <= BATCHES or not losses or last < FELL * losses[-1]:
            return ""
        if any(nats > EMPTY or alike > ALIKE for nats, alike in rest):
            return ""
        return (
            f"the posterior has collapsed: its codes hold {rest[-1][0]:.1g} nats of a sample, and what is made of them"
            f" has nothing of it but what all have in common (correlation {rest[-1][1]:.2f}), in the last {LAST} looks."
            " The divergence weighs too much beside the reconstruction: take both as a sum over one sample and a mean"
            " over the batch, or begin with a smaller weight"
        )


def _nats(mean: Tensor, logarithm: Tensor) -> Tensor:
    """Return the divergence of N(mean, exp(logarithm)) from N(0, 1), of a sample in the mean."""
    each = mean.square() + logarithm.clamp(max=30).exp() - 1 - logarithm
    return 0.5 * each.float().sum(1).mean()


def _alike(one: Tensor, other: Tensor) -> float:
    """Return the correlation of two sets of samples, both without their mean sample."""
    a, b = (t.detach().float().reshape(len(t), -1) for t in (one, other))
    a, b = a - a.mean(0), b - b.mean(0)
    return float((a * b).sum() / (a.norm() * b.norm()).clamp(min=1e-30))
