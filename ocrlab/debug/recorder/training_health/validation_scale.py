"""Do the samples of validation look like those of training? The size of the numbers that a model gets, in both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ocrlab.debug.instruments.call_hook import CallHook
from ocrlab.debug.instruments.step_check.findings import is_readable
from ocrlab.debug.instruments.tensor_tree import dotted_tensors
from ocrlab.run_folder.fail_safe import guard

CALLS = 32  # calls of each kind that are looked at
VALUES = 1 << 16  # of a batch, evenly spread
SAMPLES = 16  # from which on a mean says something
WIDER = 3.0  # times the spread of the other: training augments, but no augmentation does this
BEYOND = 3.0  # spreads between the two means


@dataclass
class InputStats:
    """The numbers of some inputs: how many samples and values, their sum and their sum of squares."""

    calls: int = 0
    rows: int = 0
    count: float = 0.0
    total: float = 0.0
    squares: float = 0.0
    shapes: set[tuple[int, ...]] = field(default_factory=set)  # channels, or columns

    def add(self, tensor: torch.Tensor) -> None:
        """Add the values of a batch."""
        flat = tensor.detach().flatten()
        values = flat[:: (flat.numel() // VALUES) | 1].double()
        self.calls += 1
        self.rows += len(tensor)
        self.count += values.numel()
        self.total += float(values.sum())
        self.squares += float(values.square().sum())
        self.shapes.add((tensor.ndim, tensor.shape[1]))

    @property
    def mean(self) -> float:
        """The mean of all values."""
        return self.total / self.count if self.count else math.nan

    @property
    def spread(self) -> float:
        """The standard deviation of all values."""
        return math.sqrt(max(0.0, self.squares / self.count - self.mean**2)) if self.count else math.nan


class InputScaleCheck:
    """Forward pre-hooks on the models of a training; `looking` is set in the training steps that are compared."""

    def __init__(self, called: Sequence[nn.Module]) -> None:
        self.failed = False
        self.looking, self.stats = False, {id(part): (InputStats(), InputStats()) for part in called}
        hook = CallHook(self._hook)
        self.handles = [part.register_forward_pre_hook(hook, with_kwargs=True) for part in called]

    def _hook(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_dynamo_compiling() and (self.looking or not module.training):
            self.entered(module, args, kwargs)

    @guard
    def entered(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Note what a module is called with, where this is a call to look at."""
        training, validating = self.stats.get(id(module), (None, None))  # a copy shares the hooks of its original
        graded = torch.is_grad_enabled()
        stats = training if module.training and graded else None
        stats = validating if not module.training and not graded else stats
        if (
            stats is None
            or stats.calls >= CALLS
            or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())
        ):
            return
        first = next((t for _, t in dotted_tensors((args, kwargs))), None)
        if first is not None and first.is_floating_point() and first.ndim >= 2 and is_readable(first):
            with torch.no_grad(), torch._C.DisableTorchFunction():
                stats.add(first)

    def sentence(self) -> str:
        """Return what is to be said where validation gets numbers of another size than training; else ''."""
        for training, validating in self.stats.values():
            if min(training.rows, validating.rows) < SAMPLES or training.shapes != validating.shapes:
                continue
            sizes = (training.spread, validating.spread)
            least, most = min(sizes), max(sizes)
            if not all(map(math.isfinite, sizes)) or least <= 0:
                continue
            if most > WIDER * least or abs(training.mean - validating.mean) > BEYOND * most:
                return (
                    f"validation gives the model other numbers than training: {validating.mean:.3g} in the mean with a"
                    f" spread of {validating.spread:.3g}, in training {training.mean:.3g} and {training.spread:.3g}."
                    " Normalise both in the same way: look at the transforms of the two data sets"
                )
        return ""

    def close(self) -> None:
        """Take every hook out."""
        while self.handles:
            self.handles.pop().remove()
