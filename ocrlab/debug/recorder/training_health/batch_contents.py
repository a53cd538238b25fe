"""What is in the batches that are looked at: equal batches or samples, constant targets, values that are not finite.

Of a large batch on the host only some bytes are read. If those are equal or constant all of it is read, so that a
report is exact to the last bit. Values that are not finite are looked for in `SEARCHED` bytes of each tensor, in
another part at each look. On a device all is read, and what was computed is used when it has arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ocrlab.debug.laws.tensor_checks import not_finite, position_text, value_at
from ocrlab.debug.recorder.figure_transfer import FigureTransfer, arrives_later
from ocrlab.debug.recorder.training_health.rules import ENOUGH, TrainingStats
from ocrlab.debug.recorder.training_health.tensor_figures import bit_sum, bits, flattened, whole_numbers

SAMPLED = 1 << 14  # values of a tensor that are compared first
RUN = 16  # of them that lie together: a cache line
SEARCHED = 4 << 20  # bytes in which a look searches for values that are not finite
HALVES = (torch.float16, torch.bfloat16)
TARGETS = ("target", "label", "gt", "mask_gt", "y")


def in_batch(name: str) -> str:
    """Return the dotted name of a tensor of a batch as a reader writes it: `batch[0]` for `0`."""
    return f"batch[{name}]" if name[:1].isdigit() else name


@dataclass
class BatchContents:
    """The looks at batches of one training, counted in its statistics."""

    stats: TrainingStats
    transfer: FigureTransfer = field(default_factory=FigureTransfer)
    looks: int = 0
    first: tuple[int, ...] = ()  # sums of some bits of the first batch

    def look(self, tensors: Sequence[tuple[str, Tensor]]) -> None:
        """Look at the named tensors of a batch, all of them readable."""
        self._note_contents([t for _, t in tensors])
        if tensors:
            self._compare_samples(tensors[0][1])
        for name, tensor in tensors if not self.stats.broken else ():
            self._search(name, tensor)
        named = [t for name, t in tensors if name.rpartition(".")[2].lower().rstrip("s") in TARGETS]
        if [name for name, _ in tensors] == ["0", "1"]:  # a pair without names: the second one is the target
            named = [tensors[1][1]]
        if named and named[0].ndim:
            self._compare_targets(named[0])
        self.looks += 1

    def _note_contents(self, tensors: Sequence[Tensor]) -> None:
        """Note what identifies a batch: the sums of all its bits, or of some where those tell it from the first."""
        contents = self.stats.contents
        if any(map(arrives_later, tensors)):
            self.transfer.send(map(bit_sum, tensors), lambda sums: contents.append(tuple(map(int, sums))))
            return
        some = tuple(int(_some(t).sum(dtype=torch.int64)) for t in tensors)
        is_first = not self.looks
        self.first = some if is_first else self.first
        contents.append((*some, *(_whole_sum(t) for t in tensors)) if is_first or some == self.first else some)

    def _compare_samples(self, first: Tensor) -> None:
        """Count a batch whose samples are all the same, and not of one value."""
        if first.ndim < 2 or first.shape[0] < ENOUGH or first[0].numel() < ENOUGH:
            return
        stats = self.stats
        stats.rows = first.shape[0]
        if not arrives_later(first):
            row = first[0]
            is_same = all(torch.equal(row, other) for other in first[1:])  # stops at the first one that differs
            stats.alike += is_same and not bool((row == row.flatten()[0]).all())
            return
        if not first.is_complex():
            same, constant = (first == first[:1]).all(), (first[0] == first[0].flatten()[0]).all()

            def use(figures: list[Tensor]) -> None:
                stats.alike += bool(figures[0]) and not bool(figures[1])

            self.transfer.send([same, constant], use)

    def search(self, tensors: Sequence[tuple[str, Tensor]]) -> None:
        """Search all of a batch on the host for a value that is not finite."""
        for name, tensor in tensors:
            if (tensor.is_floating_point() or tensor.is_complex()) and not arrives_later(tensor):
                self._note(name, tensor)

    def _note(self, name: str, tensor: Tensor) -> None:
        wrong = not_finite(tensor)
        if wrong is not None and not self.stats.broken:
            where = f"{value_at(tensor, wrong)} in {in_batch(name)}, {position_text(wrong)}"
            self.stats.broken = f"batch {self.stats.batches} contains {where}"

    def _search(self, name: str, tensor: Tensor) -> None:
        """Note the first value that is not finite."""
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return
        stats, batch = self.stats, self.stats.batches
        if arrives_later(tensor):
            wrong = ~tensor.isfinite().flatten()
            place = wrong.to(torch.uint8).argmax()
            value = tensor.flatten().index_select(0, place.reshape(1))

            def use(figures: list[Tensor]) -> None:
                count, position, wrong_value = int(figures[0]), int(figures[1]), figures[2].item()
                if count and not stats.broken:
                    mask = torch.zeros(tensor_shape, dtype=torch.bool)
                    mask.view(-1)[position] = True
                    shown = f"{wrong_value:g}" if isinstance(wrong_value, float) else str(wrong_value)
                    where = f"{shown} ({count} of {mask.numel()} values) in {in_batch(name)}, {position_text(mask)}"
                    stats.broken = f"batch {batch} contains {where}"

            tensor_shape = tensor.shape
            self.transfer.send([wrong.sum(), place, value], use)
            return
        flat, size = flattened(tensor), max(1, SEARCHED // tensor.element_size())
        begin = self.looks * size % len(flat) if len(flat) > size else 0
        part = flat[begin : begin + size]
        sums = part.sum(dtype=torch.float32 if part.dtype in HALVES else part.dtype)  # faster than isfinite
        if not bool(sums.isfinite()):
            self._note(name, tensor)  # the sum of large values may be infinite

    def _compare_targets(self, targets: Tensor) -> None:
        """Note the one value of all targets, None where they differ."""
        stats, count = self.stats, len(targets)
        value = targets.flatten()[0]
        if not arrives_later(targets):
            parts = targets.split(max(1, SAMPLED // max(1, targets[0].numel())))
            is_constant = all(bool((part == value).all()) for part in parts)  # stops at the first one that differs
            stats.compared += count
            stats.constant.append(float(value) if is_constant else None)
            return

        def use(figures: list[Tensor]) -> None:
            stats.compared += count
            stats.constant.append(float(figures[0]) if bool(figures[1]) else None)

        self.transfer.send([value, (targets == value).all()], use)


def _some(tensor: Tensor) -> Tensor:
    """Return values of a tensor as whole numbers: all of a small one, else runs of them that are evenly spread."""
    numbers: Any = whole_numbers(tensor).reshape(-1)
    count = len(numbers)
    if count <= SAMPLED:
        return numbers
    step = count // (SAMPLED // RUN)
    return numbers.as_strided((SAMPLED // RUN, RUN), (step, 1), numbers.storage_offset())


def _whole_sum(tensor: Tensor) -> int:
    """Return a sum of all bits of a tensor, eight bytes at a time where they lie together."""
    if tensor.numel() <= SAMPLED:
        return 0  # they were all read
    numbers = whole_numbers(tensor).reshape(-1)
    wide = 8 // numbers.element_size()
    if wide == 1 or len(numbers) % wide or numbers.storage_offset() % wide:
        return bits(tensor)
    return int(numbers.view(torch.int64).sum())
