"""Does a model still answer differently to different samples? Looked at in the steps that the recorder looks at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ocrlab.debug.instruments.step_check.findings import is_readable
from ocrlab.debug.instruments.step_check.output_dependence import ROWS, all_rows_equal
from ocrlab.debug.instruments.tensor_tree import dotted_tensors
from ocrlab.run_folder.fail_safe import guard

EXACT = (torch.float32, torch.float64)  # in bfloat16 two answers of 5 and 5.01 are one
WIDE = 4  # numbers of an answer, as of an embedding
APART, TOGETHER = 1e-2, 1e-4  # spread of the answers beside their size, at first and at the end
ENOUGH = 4  # looks at the end of a training, one after the other


class OutputCollapseCheck:
    """Hooks on what is called as a model, there from `open` to `close`; `looking` tells whether to look now."""

    def __init__(self, called: Sequence[nn.Module], looking: Callable[[], bool]) -> None:
        self.called, self.looking = called, looking
        self.looks = self.blind = self.equal = 0  # calls; the last ones with equal answers, and with equal samples too
        self.rows = 0
        self.spreads: list[float] = []  # of answers of several numbers, beside their size, in each look
        self.handles: list[Any] = []
        self.failed = False

    def open(self) -> None:
        """Begin to look."""
        self.close()
        self.handles = [part.register_forward_hook(self._left, with_kwargs=True) for part in self.called]

    @guard
    def _left(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or not module.training or not self.looking():
            return
        with torch.no_grad(), torch._C.DisableTorchFunction():
            inputs = [t for _, t in dotted_tensors((args, kwargs)) if t.ndim and is_readable(t)]
            rows = len(inputs[0]) if inputs else 0
            ours = [
                t.detach() for _, t in dotted_tensors(output) if t.is_floating_point() and t.ndim and is_readable(t)
            ]
            ours = [t for t in ours if len(t) == rows]
            if rows < ROWS or not ours or any(t.dtype not in EXACT for t in ours):
                return
            self.looks += 1
            same = all_rows_equal(ours)
            self.blind = self.blind + 1 if same else 0
            equal = same and all(all_rows_equal([t.float()]) for t in inputs if len(t) == rows)
            self.equal = self.equal + 1 if equal else 0
            self.rows = rows
            wide = [t for t in ours if t.ndim == 2 and t.shape[1] >= WIDE]
            if wide:
                self.spreads.append(max(float((t - t.mean(0)).norm() / t.norm().clamp(min=1e-30)) for t in wide))

    def sentence(self) -> str:
        """Return what is to be said where the answers of the last looks were all equal; else ''."""
        if self.blind < ENOUGH or 2 * self.blind < self.looks:
            return self._collapsed()
        if self.equal == self.blind:
            return (
                f"all {self.rows} samples that the model got were equal, in the last {self.equal} looks. Look at how"
                " they are made: an integer type that cuts 0.9 to 0, a vocabulary in which no word is found"
            )
        return (
            f"the model gave {self.rows} different samples the same answer, in the last {self.blind} of {self.looks}"
            " looks: it does not use its input, or has collapsed. Look for a softmax or norm over a dimension of size"
            " 1, a mask of attention the wrong way round, padding that is read, a loss that equal answers make 0"
        )

    def _collapsed(self) -> str:
        """Return what is to be said of answers that began apart and are nearly one now; else ''."""
        if len(self.spreads) < ENOUGH or self.spreads[0] < APART or max(self.spreads[-2:]) > TOGETHER:
            return ""
        return (
            f"the answers to different samples have become one: they differed by {self.spreads[0]:.2g} of their size at"
            f" first, by {self.spreads[-1]:.1g} now. Look for a loss that equal answers make 0 (a siamese one without"
            " negatives, two views that are only pulled together)"
        )

    def close(self) -> None:
        """Take every hook out."""
        for handle in self.handles:
            handle.remove()
        self.handles = []
