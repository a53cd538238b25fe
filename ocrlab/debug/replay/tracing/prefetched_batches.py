"""Programs that fetch batches ahead of the step that uses them: `rec.batches` inside of a prefetcher.

The batch of a step is then another one than the newest; it is known by its tensors, which operators are given.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from ocrlab.debug.instruments import tensor_tree
from ocrlab.debug.replay.tracing.nonfinite_tracker import pointer

MOST = 4  # batches that are fetched ahead and still known

Fetched = tuple[Any, Sequence[str], Any]  # a batch, the names of its samples, what puts it together anew


class PrefetchedBatches:
    """The newest batches, and `by` how many the program is ahead, as the step before has shown."""

    def __init__(self) -> None:
        self.fetched: list[Fetched] = []  # the newest first; held, so that their storages are no others' meanwhile
        self.lead = 0
        self.thread = 0  # that has fetched

    def add(self, batch: Any, names: Sequence[str], anew: Any) -> Fetched:
        """Take in a batch that was fetched; returns the one that its step uses. One that the program has already got
        cannot be made anew.
        """
        self.thread = threading.get_ident()
        self.fetched = [(batch, names, anew), *self.fetched[:MOST]]
        if not 0 < self.lead < len(self.fetched):
            return batch, names, anew
        batch, names, _ = self.fetched[self.lead]
        return batch, names, None

    def update(self, storages: set[int]) -> None:
        """Take in which storages operators were given in the step at hand."""
        self.lead = self._find_lead(storages)

    def is_unknown(self, storages: set[int]) -> bool:
        """Tell whether the step has used another batch than was thought, or may have, as another thread fetches."""
        return self.thread != threading.get_ident() or self._find_lead(storages) != self.lead

    def _find_lead(self, storages: set[int]) -> int:
        if self.fetched and not _storages(self.fetched[0][0]):
            return self.lead  # no tensors in it
        touched = [by for by, (batch, _, _) in enumerate(self.fetched) if _storages(batch) & storages]
        return self.lead if not touched or self.lead in touched else touched[0]


def _storages(batch: Any) -> set[int]:
    return {pointer(tensor) for _, tensor in tensor_tree.tensors(batch)} - {0}
