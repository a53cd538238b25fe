"""What all ranks know at the end of each optimiser step, so that they stop and save at the same one."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as group
from torch import Tensor

from ocrlab.errors import DataError, OcrlabError, RunError
from ocrlab.run_folder.launcher import Ranks
from ocrlab.training.distributed.collectives import about


class Agreement:
    """What all ranks know at the end of a step: whether one was told to stop, whether to save, what each was given.

    Words travel while the next step is computed: `reached` returns those of the step before, the same on every rank, so
    that all act at the same step and none waits for the words.
    """

    WORDS = ("stop", "save", "micro", "batches", "crops", "channels", "height", "width")

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.shapes: list[tuple[int, ...]] = []  # of the batches of this step
        self.work: Any = None
        self.all: list[Tensor] = []

    def note_batch(self, images: Tensor) -> None:
        """Note the shape of a batch (B, C, H, W)."""
        self.shapes.append(tuple(images.shape))

    def reached(self, micro: int, stop: int, save: bool) -> tuple[int, bool]:
        """Send the words of this step, and return (signal to stop for, save) of the last; raises DataError."""
        decided = self.settle()
        odd = next((shape for shape in self.shapes if shape != self.shapes[0]), self.shapes[0])
        words = torch.tensor([stop, int(save), micro, len(self.shapes), *odd])
        self.shapes = []
        self.all = [torch.zeros_like(words) for _ in range(self.ranks.world)]
        self.work = group.all_gather(self.all, words, async_op=True)
        return decided

    def settle(self) -> tuple[int, bool]:
        """Return what the words of the last step have decided; raises DataError where a rank's batch is another."""
        if self.work is None:
            return 0, False
        self.work.wait()
        self.work = None
        rows = [tuple(int(number) for number in words) for words in self.all]
        batches = [row[2:] for row in rows]
        majority = max(batches, key=batches.count)
        for rank, batch in enumerate(batches):
            if batch != majority:
                raise _odd(rank, batch, majority)
        return max(row[0] for row in rows), any(row[1] for row in rows)


def _odd(rank: int, batch: tuple[int, ...], majority: tuple[int, ...]) -> OcrlabError:
    """Return the error that every rank raises about the one whose words differ."""
    error: OcrlabError
    if batch[2:] != majority[2:]:
        error = DataError(
            f"Rank {rank} was given a batch of another shape",
            got=f"{batch[2:]} up to its micro-batch {batch[0]}",
            need=f"{majority[2:]}, as on the others",
            do="All ranks need the same config, data and version of ocrlab",
        )
    else:
        what = f"Rank {rank} has done another number of micro-batches"
        error = RunError(what, got=batch[0], need=f"{majority[0]}, as the others have")
    return about(rank, error)
