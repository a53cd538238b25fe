"""A look at any DataLoader from inside: which sample each worker is on, and what every batch was made of.

The user's loader and data set stay as they are, but for one attribute of the loader while it is recorded:
`_get_iterator`, which torch calls for each new iterator. The iterator that we make there is torch's own, of a copy of
the loader, with a thin proxy in place of the data set, which notes the sample in the page of its worker, and a collate
function that sends along, with the batch, its indices and the random states before it (`dataset_proxy.py`). From these
`restored.py` makes the same batch again.
"""

from __future__ import annotations

import copy
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, IterDataPipe, MapDataPipe
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

from ocrlab.debug.recorder.dataset_proxy import (
    BatchOrigin,
    RecordedDataset,
    SampleRecorder,
    StatusLocation,
    TaggedBatch,
    TaggingCollate,
    WorkerInit,
)


class LoaderRecorder:
    """A loader under observation: `taken` holds what was made of the batches that nobody has asked about yet."""

    def __init__(
        self,
        loader: Any,
        place: StatusLocation,
        on_batch: Callable[[Any, BatchOrigin], Any] | None = None,
        on_walk: Callable[[int], Any] | None = None,
        on_wait: Callable[[], Any] | None = None,
    ) -> None:
        self.loader, self.place, self.on_batch, self.on_walk = weakref.ref(loader), place, on_batch, on_walk
        self.on_wait = on_wait
        self.taken: deque[BatchOrigin] = deque()
        self.walk = -1
        self.count = 0  # of batches in this walk
        self.feed: Callable[[], Iterator[Any]] | None = None  # in a replay: what takes the place of loading

    def holds(self, loader: Any) -> bool:
        """Tell whether this is the loader under observation."""
        return self.loader() is loader

    def take_origin(self) -> BatchOrigin:
        """Return what is known of the oldest batch that nobody has asked about yet."""
        return self.taken.popleft() if self.taken else BatchOrigin()

    def start(self) -> None:
        """Put ourselves into the loader; undone by `stop`."""
        loader: Any = self.loader()
        loader._get_iterator = self.iterator  # each __iter__ of a DataLoader asks for it

    def stop(self) -> None:
        """Take ourselves out of the loader; an iterator that it keeps with its workers is not used again."""
        loader = self.loader()
        if loader is not None:
            loader.__dict__.pop("_get_iterator", None)
            if isinstance(loader.__dict__.get("_iterator"), RecordedIterator):
                loader.__dict__["_iterator"] = None

    def iterator(self) -> Iterator[Any]:
        """Return what `DataLoader._get_iterator` would, made of a copy of the loader with a watched data set."""
        loader: Any = self.loader()
        self.begin_walk()
        if self.feed is not None:
            return self.feed()
        kind = RecordedWorkers if loader.num_workers else RecordedProcess
        iterator = kind(copy_with_proxy(loader, SampleRecorder(loader.dataset, self.place, loader.num_workers)))
        iterator.entry = self
        return iterator

    def begin_walk(self) -> None:
        """Note that a new walk over the loader begins; batches that were fetched and never used are forgotten."""
        self.walk += 1
        self.count = 0
        self.taken.clear()
        loader = self.loader()
        if self.on_walk is not None and isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset):
            self.on_walk(self.walk)

    def untag(self, data: Any) -> Any:
        """Return the batch itself, and keep what it was made of."""
        if type(data) is TaggedBatch:
            data, origin = data.data, data.origin
        else:
            origin = BatchOrigin()
        origin.walk, origin.position = self.walk, self.count
        self.count += 1
        self.taken.append(origin)
        if self.on_batch is not None:
            self.on_batch(data, origin)
        return data


class RecordedIterator:
    """What a recorded iterator does besides torch's: it takes our notes off each batch before anybody sees it."""

    entry: LoaderRecorder | None = None

    def __next__(self) -> Any:
        entry = self.entry
        if entry is None:
            return super().__next__()  # type: ignore[misc]
        if entry.on_wait is not None:
            entry.on_wait()
        return entry.untag(super().__next__())  # type: ignore[misc]

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if not first_iter and self.entry is not None:  # the workers of the last walk begin another one
            self.entry.begin_walk()
        super()._reset(loader, first_iter)  # type: ignore[misc]


class RecordedProcess(RecordedIterator, _SingleProcessDataLoaderIter):
    """An iterator that loads in this process."""


class RecordedWorkers(RecordedIterator, _MultiProcessingDataLoaderIter):
    """An iterator that loads in workers."""


def copy_with_proxy(loader: Any, watched: SampleRecorder) -> Any:
    """Return a copy of a loader that reads `watched` in place of its data set."""
    copied = copy_loader(loader)
    copied.__dict__.update(dataset=RecordedDataset(watched), collate_fn=TaggingCollate(loader.collate_fn, watched))
    if loader.num_workers:
        copied.worker_init_fn = WorkerInit(loader.worker_init_fn, watched)
    return copied


def copy_loader(loader: Any) -> Any:
    """Return a copy of a loader that nobody looks at, with iterators of its own; what is no DataLoader is itself."""
    if not isinstance(loader, DataLoader):
        return loader
    copied = copy.copy(loader)
    copied.__dict__.pop("_get_iterator", None)
    copied.__dict__["_iterator"] = None
    return copied


def can_record(loader: Any) -> bool:
    """Tell whether a loader makes its iterators in torch's way, over a data set that a proxy can stand for."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterDataPipe | MapDataPipe):
        return False
    return type(loader)._get_iterator is DataLoader._get_iterator
