"""A part of a loss that is computed from what the model gave, and through which no gradient can flow.

The loss still has a gradient, of its other parts, so that nothing is raised: a Dice of thresholded predictions beside a
cross entropy, an accuracy that is added. What was cut off on purpose, by detach() or no_grad(), is let alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ocrlab.debug.instruments.step_check.findings import Finding

CUTS = frozenset("gt ge lt le eq ne greater greater_equal less less_equal not_equal isclose".split())
CUTS |= {f"__{name}__" for name in CUTS} | frozenset("argmax argmin argsort bool int long short byte".split())
FLAT = frozenset("round round_ sign sign_ sgn floor floor_ ceil ceil_ trunc trunc_ heaviside".split())  # derivative 0
SUMS = frozenset("add add_ __add__ __radd__ __iadd__ sub __sub__ __rsub__ stack".split())
NODES = 4096  # of a loss's graph, from its end, in which a sum is looked for


class DetachedTerms:
    """What has lost its gradient in a step, and the sums that it went into."""

    def __init__(self) -> None:
        self.lost: dict[int, tuple[Tensor, str]] = {}  # by id: the tensor, and the function that cut it off
        self.sums: list[tuple[Tensor, str]] = []

    def see(self, name: str, args: Any, value: Any) -> None:
        """Note what a function was given and has returned."""
        if not isinstance(value, Tensor) or not torch.is_grad_enabled():
            return
        tensors = [tensor for tensor in _flat(args) if isinstance(tensor, Tensor)]
        cuts = [cut for tensor in tensors if (cut := self._of(tensor))]
        flowing = any(tensor.requires_grad and not self._of(tensor) for tensor in tensors)
        if flowing and (name in FLAT or (name in CUTS and not value.requires_grad)):
            cuts, flowing = [name.strip("_"), *cuts], False
        if cuts and not flowing and name != "detach":
            self.lost[id(value)] = (value, cuts[0])
        elif cuts and name in SUMS and value.numel() <= len(tensors):  # of single numbers
            self.sums += [(value, cut) for tensor in tensors if tensor.numel() == 1 and (cut := self._of(tensor))]

    def _of(self, tensor: Tensor) -> str:
        entry = self.lost.get(id(tensor))
        return entry[1] if entry is not None and entry[0] is tensor else ""

    def within(self, total: Tensor) -> Iterator[Finding]:
        """Yield that a part of the loss `total` has no gradient."""
        nodes = {total.grad_fn}
        waiting = [total.grad_fn]
        while waiting and len(nodes) < NODES:
            for node, _ in getattr(waiting.pop(0), "next_functions", ()):
                if node is not None and node not in nodes:
                    nodes.add(node)
                    waiting.append(node)
        for value, cut in self.sums:
            if value.grad_fn in nodes:
                got = f"one of its parts goes through `{cut}` of what the model gave: a number, that trains nothing"
                do = "Compute it from the probabilities themselves, as a soft Dice does, or leave it out"
                yield Finding("loss.part", "the loss", got, "a gradient in each part", do, "warn")
                return


def _flat(args: Any) -> Iterator[Any]:
    for argument in args:
        if isinstance(argument, list | tuple):
            yield from argument
        else:
            yield argument
