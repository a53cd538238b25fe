"""What each batch of a loader was made of, taken down when the batch leaves the loader.

A DataLoader is observed from inside (`loader_proxy.py`): a `SampleRecorder` loads its samples, and its notes travel
with the batch. Of any other iterable, and of iterable data sets, the position of each batch is counted. A replay
makes the same batches again from these notes.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from ocrlab.debug.instruments.dataloader import loader_proxy
from ocrlab.debug.instruments.dataloader.loader_proxy import IteratorProxy
from ocrlab.debug.recorder import rng_state
from ocrlab.debug.recorder.sample_recorder import BatchOrigin, SampleRecorder, StatusLocation, TaggedBatch, install

COUNTED = {"kind": "walk"}  # what rebuilds a batch that is known by its position alone


class LoaderRecorder:
    """Observes a DataLoader; `origins` are those of the batches that were not asked for yet."""

    def __init__(
        self,
        loader: Any,
        location: StatusLocation,
        on_batch: Callable[[Any, BatchOrigin], Any] | None = None,
        on_pass: Callable[[int], Any] | None = None,
        on_wait: Callable[[], Any] | None = None,
    ) -> None:
        self.loader, self.location = weakref.ref(loader), location
        self.on_batch, self.on_pass, self.on_wait = on_batch, on_pass, on_wait
        self.origins: deque[BatchOrigin] = deque()
        self.pass_number = -1
        self.count = 0  # batches of this pass
        self.feed: Callable[[], Iterator[Any]] | None = None  # in a replay: what takes the place of loading

    def holds(self, loader: Any) -> bool:
        """Return whether this is the observed loader."""
        return self.loader() is loader

    def take_origin(self) -> BatchOrigin:
        """Return the origin of the oldest batch that was not asked for yet."""
        return self.origins.popleft() if self.origins else BatchOrigin()

    def start(self) -> None:
        """Begin to observe the loader."""
        loader_proxy.observe(self.loader(), self)

    def stop(self) -> None:
        """Stop observing. Persistent workers are started again: they send their notes along with each batch."""
        loader = self.loader()
        if loader is not None:
            loader_proxy.leave(loader, self)

    def prepare(self, loader: Any) -> None:
        """Let a copy of the loader load through a `SampleRecorder`."""
        install(loader, SampleRecorder(loader.dataset, self.location, loader.num_workers))

    def wrap(self, make: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Begin a pass over the loader."""
        self.begin_pass()
        return RecordedIterator(self, make()) if self.feed is None else self.feed()

    def begin_pass(self) -> None:
        """Note that a pass begins; batches that were fetched and never used are forgotten."""
        self.pass_number += 1
        self.count = 0
        self.origins.clear()
        loader = self.loader()
        if self.on_pass is not None and isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset):
            self.on_pass(self.pass_number)


class RecordedIterator(IteratorProxy):
    """Takes the origin off each batch before the program gets it."""

    def __next__(self) -> Any:
        recorder = self._observer
        if recorder.on_wait is not None:
            recorder.on_wait()
        data, origin = next(self._iterator), BatchOrigin()
        if type(data) is TaggedBatch:
            data, origin = data.data, data.origin
        origin.pass_number, origin.position = recorder.pass_number, recorder.count
        recorder.count += 1
        recorder.origins.append(origin)
        if recorder.on_batch is not None:
            recorder.on_batch(data, origin)
        return data

    def _reset(self, *args: Any, **kwargs: Any) -> None:
        self._observer.begin_pass()
        super()._reset(*args, **kwargs)

    def without(self, observer: Any) -> Any:
        iterator = super().without(observer)
        return None if observer is self._observer else iterator


def can_record(loader: Any) -> bool:
    """Return whether a loader makes its iterators in torch's way, over a data set that a proxy can stand for."""
    if not isinstance(loader, DataLoader) or not loader_proxy.can_proxy(loader.dataset):
        return False
    return type(loader)._get_iterator is DataLoader._get_iterator


class CountingLoader:
    """Counts the batches of a loader of any kind; everything else is asked of the loader itself.

    A replay restores the random states from before the pass, and goes through it up to the recorded position.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        on_pass: Callable[[int], None] | None = None,
        on_batch: Callable[[Any, BatchOrigin], None] | None = None,
        can_snapshot: Callable[[], bool] = lambda: True,
    ) -> None:
        self.loader, self.on_pass, self.on_batch = loader, on_pass, on_batch
        self.can_snapshot = can_snapshot  # whether a replay may begin with the next batch
        self.origin = BatchOrigin()  # of the batch at hand
        self.pass_number = -1

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]  # TypeError for one without, as of the loader itself

    def __iter__(self) -> Iterator[Any]:
        self.pass_number += 1
        origin = self.origin = BatchOrigin(COUNTED, pass_number=self.pass_number)
        if self.on_pass is not None:
            self.on_pass(self.pass_number)
        iterator = iter(self.loader)
        while True:
            # With a later batch the replay has drawn what the run has, as it goes on from its first one.
            states = rng_state.take(cuda=False) if origin.position < 0 or self.can_snapshot() else {}
            try:
                batch = next(iterator)
            except StopIteration:
                return
            origin.states = states
            origin.position += 1
            if self.on_batch is not None:
                self.on_batch(batch, origin)
            yield batch

    def holds(self, loader: Any) -> bool:
        """Return whether this is the loader whose batches are counted."""
        return self.loader is loader

    def take_origin(self) -> BatchOrigin:
        """Return what is known of the batch that came last."""
        return self.origin

    def stop(self) -> None:
        """Do nothing: nothing was put into the loader."""
