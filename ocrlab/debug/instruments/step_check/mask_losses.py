"""Losses of one's own over masks: an overlap (Dice, IoU) of logits, masks of 0 and 255, a mask the wrong way round."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ocrlab.debug.instruments.step_check.axis_checks import LAYERS
from ocrlab.debug.instruments.step_check.findings import Finding, is_readable
from ocrlab.debug.instruments.step_check.loss_checks import SQUASHED, maker

TIMES = frozenset("mul __mul__ __rmul__ multiply".split())
OVER = frozenset("div __truediv__ true_divide divide".split())
SUMS = ("Sum", "Add", "View", "ReshapeAlias", "Squeeze", "Unsqueeze", "Mean", "Sub")  # on the way to a divisor
SHAPES = ("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Select", "Slice", "Permute", "Transpose")
FEWEST = 64  # values of a mask
NODES = 64  # of a divisor's graph
MOST = 0.9  # of the places that are said to be ignored, which get a gradient where the mask is the wrong way round
NAMES = re.compile(r"(^|[._])(ignored?|dont_care|do_not_care|void)([._]|$)")


class MaskWatch:
    """The products with masks and the quotients of a loss; `inside` tells whether a module is running."""

    def __init__(self, findings: list[Finding], place: Callable[[], str], inside: Callable[[], bool]) -> None:
        self.findings, self.place, self.inside = findings, place, inside
        self.raw: dict[Any, tuple[Tensor, float]] = {}  # by node that made it: logits that a mask was multiplied with

    def see(self, name: str, args: tuple[Any, ...]) -> None:
        """Look at a function of two tensors."""
        if name not in TIMES | OVER or len(args) < 2 or self.inside():
            return
        first, second = args[:2]
        if not isinstance(first, Tensor) or not isinstance(second, Tensor):
            return
        if name in OVER:
            self._over(second)
        elif first.requires_grad != second.requires_grad:
            self._times(*((first, second) if first.requires_grad else (second, first)))

    def _times(self, values: Tensor, mask: Tensor) -> None:
        if values.shape != mask.shape or mask.numel() < FEWEST or not is_readable(values) or not is_readable(mask):
            return
        mask_values, low, high = mask.detach(), float(values.detach().min()), float(values.detach().max())
        least, most = float(mask_values.min()), float(mask_values.max())
        if least != 0 or most not in (1, 255) or not bool(((mask_values == 0) | (mask_values == most)).all()):
            return
        rules = {each.rule for each in self.findings}
        if most == 255 and maker(values) in SQUASHED and "targets.bytes" not in rules:
            got = f"a mask of 0 and 255, multiplied with probabilities ({low:.3g} to {high:.3g})"
            do = "Divide the mask by 255, or compare it: (mask > 127).float()"
            self.findings.append(Finding("targets.bytes", self.place(), got, "a mask of 0 and 1", do, "warn"))
        elif most == 1 and low < 0 and (node := _layer(values)) is not None:
            self.raw[node] = (values, low)

    def _over(self, divisor: Tensor) -> None:
        """Tell of a quotient whose divisor sums up logits that a mask was multiplied with."""
        if not self.raw or not divisor.requires_grad:
            return
        waiting, visited = [divisor.grad_fn], 0
        while waiting and visited < NODES:
            node, visited = waiting.pop(0), visited + 1
            if node is None:
                continue
            if node in self.raw:
                _, low = self.raw.pop(node)
                got = f"an overlap with a mask (Dice, IoU) of what a layer gave as it is, from {low:.3g} on: its"
                got += " divisor may be 0 or negative"
                do = "Take .sigmoid() (one class) or .softmax(1) (several) of the model's output first"
                self.findings.append(Finding("loss.overlap", self.place(), got, "probabilities", do))
                return
            if _named(node, (*SUMS, *SHAPES)):
                waiting += [before for before, _ in node.next_functions]


def check_inverted_mask(outputs: Sequence[Tensor], named: Sequence[tuple[str, Tensor]]) -> Iterator[Finding]:
    """Yield a mask of what is to be ignored, of which nothing else is learned; `given` by the model, with gradients."""
    masks = [(name, t) for name, t in named if NAMES.search(name.lower()) and is_readable(t)]
    for output in outputs:
        for name, mask in masks if output.grad is not None and output.ndim == 4 and is_readable(output.grad) else ():
            marked = mask.detach()[:, 0] if mask.ndim == 4 and mask.shape[1] == 1 else mask.detach()
            if marked.shape != (len(output), *output.shape[2:]) or not bool(((marked == 0) | (marked == 1)).all()):
                continue
            assert output.grad is not None
            pushed, marked = output.grad.detach().abs().sum(1) > 0, marked.bool().to(output.device)
            if not bool(marked.any()) or bool(marked.all()) or bool(pushed[~marked].any()):
                continue
            if float(pushed[marked].float().mean()) >= MOST:  # some call `ignore` what is 0 where it is ignored
                got = f"only what batch.{name} marks gets a gradient ({float(marked.float().mean()):.0%} of the places)"
                do = "Turn the mask round: 1 - mask, ~mask. If its 1 means that a place counts, nothing is wrong"
                yield Finding("loss.ignored", "the loss", got, "a loss of all other places", do, "warn")
                return


def _layer(tensor: Tensor) -> Any:
    """Return the node of a tensor that a layer made, past what only changes its shape; None for any other."""
    start = node = tensor.grad_fn
    for _ in range(NODES):
        if node is None:
            return None
        if node.name() in LAYERS or "Upsample" in node.name():
            return start
        if not _named(node, SHAPES):
            return None
        node = node.next_functions[0][0]
    return None


def _named(node: torch.autograd.graph.Node, names: Sequence[str]) -> bool:
    return node.name().rstrip("0123456789").removesuffix("Backward") in names
