"""A run made again from its beginning on, with the batches that the program's own loader gives: nothing is fed to it.

Whatever the program keeps, and no snapshot holds, is then what it was; the record only tells if it is the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ocrlab.debug.flight_record.ring_format import Step
from ocrlab.debug.recorder.loader_recorder import LoaderRecorder, can_record
from ocrlab.debug.replay.child.batch_feed import BatchFeed


class FullRerunFeed(BatchFeed):
    """Stands where recorded batches are fed; `done` tells whether all recorded steps have been made."""

    def __init__(self, *args: Any, done: Callable[[], bool], **named: Any) -> None:
        super().__init__(*args, **named)
        self.done = done

    def watched(self, loader: Any) -> Any:
        """Have a loader say what its batches are made of, as when it was recorded."""
        self.loader = loader if can_record(loader) else None
        if self.loader is not None:
            loader._ocrlab_entry = entry = LoaderRecorder(loader, self.place)  # lives as long as the loader
            entry.start()
        return loader

    def batches(self, loader: Any) -> Iterator[Any]:
        """Yield the batches of the next walk."""
        iterator = iter(self.watched(loader))
        self.iterators = [iterator]
        try:
            while True:
                if not (self.goes_on or self.behind):
                    self.ended()
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
                yield batch
        finally:
            self.left()

    def left(self) -> None:
        """Note that the program has left its loop over the batches."""
        self.is_behind = self.behind and self.done()


def earlier_step(steps: Sequence[Step], micro: int) -> Step:
    """Return what is known of a micro-batch that the record does not reach back to."""
    first = steps[0]
    return Step(max(0, first.number - (first.micro - micro)), micro, 0, 0)
