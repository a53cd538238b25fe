"""Targets in an integer type that cannot name all classes: those above wrap around without a word (300 becomes 44)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ocrlab.debug.instruments.step_check.findings import Finding, is_readable

HOLDS = {torch.uint8: 256, torch.int8: 128}  # classes that a type can name
SPARE = 1.5  # times as many outputs may be a vocabulary of bytes with its special words, filled up


def check_narrow_targets(
    pairs: Sequence[tuple[str, Tensor, Tensor]], named: Sequence[tuple[str, Tensor]]
) -> Iterator[Finding]:
    """Yield targets that are a tensor of the batch in such a type; pairs of (place, logits, targets)."""
    for where, logits, targets in pairs:
        classes = logits.shape[1] if logits.ndim > 1 else 0
        for name, tensor in named:
            holds = HOLDS.get(tensor.dtype, 0)
            if not holds or classes <= SPARE * holds or tensor.numel() != targets.numel() or not is_readable(tensor):
                continue
            if targets.is_floating_point() or not bool((tensor.flatten().to(targets) == targets.flatten()).all()):
                continue
            kind = str(tensor.dtype).removeprefix("torch.")
            got = f"batch.{name} is {kind}, which ends at {holds - 1}, and there are {classes} classes"
            do = "Make the targets int64 where they are read: a class above that has wrapped around to another one"
            yield Finding("targets.narrow", where, got, "a type that can name every class", do)
