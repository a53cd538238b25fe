"""What is said of a loss that is no finite number: since when, and what cannot be to blame."""

from __future__ import annotations

import math
from collections.abc import Sequence


def sentence(last: float, batch: int, batches: int, losses: Sequence[float]) -> str:
    """Return what is said of `last`, not finite as that of `batch` of `batches` was first; `losses` are the earliest.

    Before the very first loss no step was made, so that no learning rate can be to blame.
    """
    if losses and not math.isfinite(losses[0]):
        first = (
            "the first one of all: no optimiser step came before it, so the learning rate is not to blame. Look at the"
            " values of the batch and of the initial weights, and for a logarithm, root or division at 0"
        )
        return f"the loss is {last:g}, and was not finite in {first}. {REPLAY}"
    since = f"from batch {batch} of {batches} on: it learns nothing since"
    return f"the loss is {last:g}, and was not finite {since}. {REPLAY}; try a smaller rate first"


REPLAY = "`ocrlab replay` on this folder names the operator"
