"""Is the loss at the end below that of the best constant answer? For losses that the recorder can compute itself."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocrlab.debug.instruments.step_check.findings import is_readable
from ocrlab.debug.instruments.tensor_tree import dotted_tensors
from ocrlab.run_folder.fail_safe import guard

STEPS = 150  # losses from which on something is said
WALKS = 3  # over the loader: before that much is still to be learned
TARGETS = 128  # that were looked at, from which on their frequencies say something
COLUMNS = 256  # numbers of a target of one sample
LAST = 50  # losses at the end
BETTER = 0.97  # of the constant's loss: above it nothing was learned but how frequent each answer is
EQUAL = 1e-3  # share by which the noted loss may differ from the one that is computed here


class ConstantBaseline:
    """A hook on what is called as a model, in steps that are looked at; `looking` tells whether to look now."""

    def __init__(self, called: Sequence[nn.Module], looking: Callable[[], bool]) -> None:
        self.called, self.looking = called, looking
        self.output: Tensor | None = None
        self.tensors: Sequence[Tensor] = ()  # of the batch: one of them is the target
        self.kinds: set[str] = set()
        self.targets: list[Tensor] = []
        self.classes = 0
        self.last: deque[float] = deque(maxlen=LAST)
        self.count = 0
        self.handles: list[Any] = []
        self.failed = False

    def begin(self, tensors: Sequence[Tensor] | None) -> None:
        """Keep the tensors of a batch that is looked at; None for one that is not."""
        self.close()
        self.output, self.tensors = None, tensors or ()
        if tensors and len(self.called) == 1:
            self.handles = [self.called[0].register_forward_hook(self._left)]

    @guard
    def _left(self, module: nn.Module, _args: Any, output: Any) -> None:
        if not torch.compiler.is_compiling() and module.training and self.tensors and self.looking():
            self.output = next(
                (t.detach() for _, t in dotted_tensors(output) if t.is_floating_point() and is_readable(t)), None
            )

    def loss(self, value: float) -> None:
        """Note a loss, and of which kind it is."""
        self.count += 1
        self.last.append(value)
        output, tensors, self.output = self.output, self.tensors, None
        if output is None or not tensors or not math.isfinite(value):
            return
        with torch.no_grad(), torch._C.DisableTorchFunction():
            there = [t.detach() for t in tensors if t.device == output.device and t.ndim]
            kinds = ((_kind(output.float(), t, value), t) for t in there)
            kind, target = next((pair for pair in kinds if pair[0]), ("", there[0] if there else output))
            self.kinds.add(kind)
            if kind == "classes":
                self.classes = output.shape[1]
                self.targets.append(torch.bincount(target.flatten(), minlength=self.classes).double().cpu())
            elif kind and target.numel() > COLUMNS * len(target):
                self.kinds.add("")  # an image: too much to keep, and no constant is what it is compared with
            elif kind:
                self.targets.append(target.detach().double().reshape(len(target), -1).cpu())

    def sentence(self, walks: int) -> str:
        """Return what is to be said where the loss at the end is that of a constant answer; else ''."""
        if len(self.kinds) != 1 or "" in self.kinds or self.count < STEPS or walks < WALKS or not self.targets:
            return ""
        (kind,) = self.kinds
        constant, count = _constant(kind, self.targets)
        last = sum(self.last) / len(self.last)
        if count < TARGETS or constant <= EQUAL or not BETTER * constant < last:
            return ""
        return (
            f"after {self.count} steps the loss is {last:.3g}, and one answer for all samples would give"
            f" {constant:.3g}: nothing was learned but how frequent the targets are. Look whether the targets belong to"
            " their inputs (shuffled, sorted or filtered apart), whether the input holds what is asked, and at the rate"
        )

    def close(self) -> None:
        """Take every hook out."""
        for handle in self.handles:
            handle.remove()
        self.handles = []


def _kind(output: Tensor, target: Tensor, value: float) -> str:
    """Return which loss of an output and its targets a noted value is; '' for none that is known."""
    close = lambda loss: math.isclose(float(loss), value, rel_tol=EQUAL)  # noqa: E731
    if not target.is_floating_point():
        fits = output.ndim == target.ndim + 1 and output.shape[2:] == target.shape[1:] and len(output) == len(target)
        whole = target.dtype == torch.int64 and fits and bool(((target >= 0) & (target < output.shape[1])).all())
        return "classes" if whole and close(functional.cross_entropy(output, target)) else ""
    output = output.squeeze(-1) if output.shape == (*target.shape, 1) else output
    if output.shape != target.shape:
        return ""
    target = target.float()
    binary = bool(((target == 0) | (target == 1)).all())
    if binary and close(functional.binary_cross_entropy_with_logits(output, target)):
        return "chances"
    return "squares" if close(functional.mse_loss(output, target)) else ""


def _constant(kind: str, targets: list[Tensor]) -> tuple[float, int]:
    """Return the loss of the best constant answer, and how many targets it is made of."""
    if kind == "classes":
        count = torch.stack(targets).sum(0)
        share = count / count.sum()
        return float(-(share * share.clamp(min=1e-30).log()).sum()), int(count.sum())
    if len({t.shape[1] for t in targets}) > 1:
        return 0.0, 0
    rows = torch.cat(targets)
    mean = rows.mean(0)
    if kind == "chances":
        p = mean.clamp(1e-12, 1 - 1e-12)
        return float(-(p * p.log() + (1 - p) * (1 - p).log()).mean()), len(rows)
    return float((rows - mean).square().mean()), len(rows)
