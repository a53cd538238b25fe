"""Checks of what models get and return: collapsed outputs, a constant answer, validation data of another scale.

The training monitor passes the calls of the steps that it inspects to the first two. None waits for a device: figures
are computed where the tensors are, and used when the transfer has brought them to the host.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ocrlab.debug.instruments.call_hook import CallHook
from ocrlab.debug.instruments.tensor_tree import dotted_tensors
from ocrlab.debug.laws.tensor_checks import ROWS, is_readable, rows_equal
from ocrlab.debug.recorder.figure_transfer import FigureTransfer, arrives_later
from ocrlab.debug.recorder.training_health.tensor_figures import flattened
from ocrlab.run_folder.fail_safe import guard


class Check:
    """A check of the models of a training, which an error of its own ends."""

    failed = False
    on_program_error: Callable[[Exception], Any] | None = None  # for an error of the program's kernels

    def close(self) -> None:
        """Remove every hook; most have none."""


EXACT = (torch.float32, torch.float64)  # in bfloat16 two answers of 5 and 5.01 are one
WIDE = 4  # numbers of an answer, as of an embedding
APART, TOGETHER = 1e-2, 1e-4  # spread of the answers beside their size, at first and at the end
ENOUGH = 4  # looks at the end of a training, one after the other


class OutputCollapseCheck(Check):
    """Do models still answer differently to different samples?"""

    def __init__(self, transfer: FigureTransfer | None = None) -> None:
        self.transfer = FigureTransfer() if transfer is None else transfer
        self.looks = self.blind = self.equal = 0  # calls; the last ones with equal answers, and with equal samples too
        self.rows = 0
        self.spreads: list[float] = []  # of answers of several numbers, beside their size, in each look

    @guard
    def note(self, arguments: Any, output: Any) -> None:
        """Note an inspected call of a model in training."""
        with torch.no_grad(), torch._C.DisableTorchFunction():
            inputs = [t for _, t in dotted_tensors(arguments) if t.ndim and is_readable(t)]
            rows = len(inputs[0]) if inputs else 0
            floats = (t.detach() for _, t in dotted_tensors(output) if t.is_floating_point() and is_readable(t))
            ours = [t for t in floats if t.ndim and len(t) == rows]
            if rows < ROWS or not ours or any(t.dtype not in EXACT for t in ours):
                return
            same = [rows_equal(t) for t in ours]
            there = [t for t in inputs if len(t) == rows]
            asked = any(map(arrives_later, same)) or all(map(bool, same))  # on the host only where the answer counts
            equal = [rows_equal(t) for t in there] if asked else []
            wide = [t for t in ours if t.ndim == 2 and t.shape[1] >= WIDE]
            spreads = [(t - t.mean(0)).norm() / t.norm().clamp(min=1e-30) for t in wide]
        ends = len(same), len(same) + len(equal)
        self.transfer.send(
            [*same, *equal, *spreads], lambda f: self._count(rows, f[: ends[0]], f[ends[0] : ends[1]], f[ends[1] :])
        )

    @guard
    def _count(self, rows: int, same: list[Tensor], equal: list[Tensor], spreads: list[Tensor]) -> None:
        """Count a call by its figures."""
        self.looks += 1
        self.rows = rows
        is_blind = all(map(bool, same))
        self.blind = self.blind + 1 if is_blind else 0
        self.equal = self.equal + 1 if is_blind and all(map(bool, equal)) else 0
        if spreads:
            self.spreads.append(max(map(float, spreads)))

    def sentence(self) -> str:
        """Return the finding for answers that are equal in the last inspected steps, or have become so; else ''."""
        if self.blind >= ENOUGH and 2 * self.blind >= self.looks:
            if self.equal == self.blind:
                return (
                    f"all {self.rows} samples that the model got were equal, in the last {self.equal} inspected steps."
                    " Look at how they are made: an integer type that cuts 0.9 to 0, a vocabulary without these words"
                )
            return (
                f"the model gave {self.rows} different samples the same answer, in the last {self.blind} of"
                f" {self.looks} inspected steps: it does not use its input, or has collapsed. Look for a softmax or"
                " norm over a dimension of size 1, an inverted attention mask, padding that is read, a loss that is 0"
                " for equal answers"
            )
        if len(self.spreads) >= ENOUGH and self.spreads[0] >= APART and max(self.spreads[-2:]) <= TOGETHER:
            return (
                f"the answers to different samples have become one: they differed by {self.spreads[0]:.2g} of their"
                f" size at first, by {self.spreads[-1]:.1g} now. Look for a loss that equal answers make 0 (a siamese"
                " one without negatives, two views that are only pulled together)"
            )
        return ""


STEPS = 150  # losses that are needed for a finding
WALKS = 3  # over the loader: before that much is still to be learned
TARGETS = 128  # that are needed for their frequencies
COLUMNS = 256  # numbers of a target of one sample
LAST = 50  # losses at the end
BETTER = 0.97  # of the constant's loss: above it nothing was learned but how frequent each answer is
LATEST = 64  # micro-batches after which a loss no longer comes from a device
EQUAL = 1e-3  # relative difference of the recorded loss and the one that is computed here
SENT = 1 << 18  # numbers of an answer and its targets that may travel from a device


@dataclass
class Answer:
    """What a model returned for an inspected batch, with what may be its targets, and the loss; None: not there yet."""

    later: bool = False  # it comes from a device, and so does the loss
    tensors: list[Tensor] | None = None
    value: float | None = None


class ConstantBaseline(Check):
    """Is the loss at the end below that of the best constant answer? For losses that can be computed here.

    An answer on a device is copied to the host with its targets, if it is small, and compared there.
    """

    def __init__(self, transfer: FigureTransfer | None = None) -> None:
        self.transfer = FigureTransfer() if transfer is None else transfer
        self.micro = 0  # of the inspected batch
        self.tensors: Sequence[Tensor] = ()  # of the batch: one of them is the target
        self.waiting: dict[int, Answer] = {}  # by micro-batch: its answer, until its loss is known
        self.kinds: set[str] = set()
        self.targets: list[Tensor] = []
        self.classes = 0
        self.last: deque[float] = deque(maxlen=LAST)
        self.count = 0

    def begin(self, tensors: Sequence[Tensor], micro: int = 0) -> None:
        """Store the tensors of an inspected batch; none of another batch. A loss of a device may still be to come."""
        self.tensors, self.micro = tensors, micro
        self.waiting = {
            number: answer for number, answer in self.waiting.items() if answer.later and micro - number < LATEST
        }

    @guard
    def note(self, output: Any) -> None:
        """Note what the model returned for an inspected batch."""
        floats = (t.detach() for _, t in dotted_tensors(output) if t.is_floating_point() and is_readable(t))
        first = next(floats, None)
        if first is None or not self.tensors:
            return
        candidates = [t.detach() for t in self.tensors if t.ndim and _fits(first, t)]
        answer = self.waiting[self.micro] = Answer(later=arrives_later(first))
        if answer.later and sum(t.numel() for t in (first, *candidates)) > SENT:
            candidates = []
        self.transfer.send([first, *candidates] if candidates else [], lambda tensors: self._arrived(answer, tensors))

    @guard
    def _arrived(self, answer: Answer, tensors: list[Tensor]) -> None:
        answer.tensors = tensors
        self._compare(answer)

    @guard
    def loss(self, value: float, micro: int | None = None) -> None:
        """Note a loss, by default that of the batch at hand, and of which kind it is."""
        self.count += 1
        self.last.append(value)
        answer = self.waiting.pop(self.micro if micro is None else micro, None)
        if answer is not None and math.isfinite(value):
            answer.value = value
            self._compare(answer)

    def _compare(self, answer: Answer) -> None:
        """Find out which loss of an answer and a target its value is, once all are there."""
        if answer.tensors is None or answer.value is None:
            return
        kind = ""
        with torch.no_grad(), torch._C.DisableTorchFunction():
            for target in answer.tensors[1:]:
                output = answer.tensors[0]
                kind = _kind(output.float(), target, answer.value)
                if kind == "classes":
                    self.classes = output.shape[1]
                    self.targets.append(torch.bincount(target.flatten(), minlength=self.classes).double())
                elif kind:
                    self.targets.append(target.double().reshape(len(target), -1))
                if kind:
                    break
        self.kinds.add(kind)

    def sentence(self, walks: int) -> str:
        """Return the finding for a last loss like that of a constant answer; else ''."""
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


def _fits(output: Tensor, target: Tensor) -> bool:
    """Return whether a tensor may be the targets of an output; one as large as an image is too much to keep."""
    if not target.is_floating_point():
        is_whole = target.dtype == torch.int64 and output.ndim == target.ndim + 1 and len(output) == len(target)
        return is_whole and output.shape[2:] == target.shape[1:]
    same = output.shape == target.shape or output.shape == (*target.shape, 1)
    return same and is_readable(target) and target.numel() <= COLUMNS * len(target)


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


CALLS = 32  # inspected calls of each kind
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

    def add(self, tensor: Tensor, transfer: FigureTransfer | None = None) -> None:
        """Add the values of a batch."""
        flat = flattened(tensor.detach())
        values = flat[:: (flat.numel() // VALUES) | 1].double()
        rows, count, shape = len(tensor), values.numel(), (tensor.ndim, tensor.shape[1])
        self.calls += 1

        def use(sums: list[Tensor]) -> None:
            self.rows += rows
            self.count += count
            self.total += float(sums[0])
            self.squares += float(sums[1])
            self.shapes.add(shape)

        (FigureTransfer() if transfer is None else transfer).send([values.sum(), values.square().sum()], use)

    @property
    def mean(self) -> float:
        """The mean of all values."""
        return self.total / self.count if self.count else math.nan

    @property
    def spread(self) -> float:
        """The standard deviation of all values."""
        return math.sqrt(max(0.0, self.squares / self.count - self.mean**2)) if self.count else math.nan


class InputScaleCheck(Check):
    """Do validation samples look like training samples? `looking` is set in the training steps that are compared."""

    def __init__(self, models: Sequence[nn.Module], transfer: FigureTransfer | None = None) -> None:
        self.transfer = FigureTransfer() if transfer is None else transfer
        self.looking, self.stats = False, {id(model): (InputStats(), InputStats()) for model in models}
        hook = CallHook(self._hook)
        self.handles = [model.register_forward_pre_hook(hook, with_kwargs=True) for model in models]

    def close(self) -> None:
        """Remove every hook."""
        while self.handles:
            self.handles.pop().remove()

    def _hook(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_dynamo_compiling() and (self.looking or not module.training):
            self.entered(module, args, kwargs)

    @guard
    def entered(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Note what a module is called with, where this is a call to look at."""
        training, validating = self.stats.get(id(module), (None, None))  # a copy shares the hooks of its original
        stats = training if module.training else validating
        if stats is None or stats.calls >= CALLS or module.training != torch.is_grad_enabled():
            return
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return
        first = next((t for _, t in dotted_tensors((args, kwargs))), None)
        if first is not None and first.is_floating_point() and first.ndim >= 2 and is_readable(first):
            with torch.no_grad(), torch._C.DisableTorchFunction():
                stats.add(first, self.transfer)

    def sentence(self) -> str:
        """Return the finding for validation inputs of another scale than in training; else ''."""
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
