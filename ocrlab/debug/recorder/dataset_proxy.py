"""A data set under observation, in whichever process it is asked: which sample it loads, and of what a batch is made.

It takes the place of the user's own in a copy of the loader (`loading.py`); the collate function that stands beside it
sends these notes along with the batch.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.utils.data import Subset, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from ocrlab.debug.flight_record.ring_format import ENCODE, States
from ocrlab.debug.flight_record.worker_status import StatusPage
from ocrlab.debug.instruments.dataset_proxy import DatasetProxy
from ocrlab.debug.recorder import rng_state, uncollatable_samples
from ocrlab.debug.recorder.sample_names import batch_names, index_namer, plain_index
from ocrlab.run_folder.fail_safe import report

BATCH_OF = "batch of "  # what begins the name of a batch that failed when its samples were put together
WORKER_STREAM = "this worker's"


@dataclass(slots=True)
class BatchOrigin:
    """One batch as it left its loader: what rebuilds it, and the random states before it was loaded."""

    base: dict[str, Any] = field(default_factory=dict)  # what its worker tells of it
    states: States = field(default_factory=dict)
    samples: list[str] = field(default_factory=list)
    walk: int = 0
    position: int = -1  # in the walk; -1: nobody has seen this batch leave its loader

    @property
    def order(self) -> dict[str, Any]:
        """What rebuilds the batch."""
        return self.base if self.position < 0 else {**self.base, "walk": self.walk, "position": self.position}


@dataclass
class StatusLocation:
    """Where the pages of workers go: folder, rank, start of the run, number of the loader."""

    folder: Path
    rank: int = 0
    start: int = 0
    loader: int = 0


@dataclass
class BatchRequest:
    """A batch to be made again, in place of its indices."""

    indices: Any
    states: Mapping[str, bytes]


class TaggedBatch:
    """A batch on its way from the worker, with what it was made of."""

    def __init__(self, data: Any, origin: BatchOrigin) -> None:
        self.data, self.origin = data, origin

    def __reduce__(self) -> Any:
        """Travel as one thing: pickle would look up and fill two objects."""
        origin = self.origin
        return restore_tagged_batch, (self.data, origin.base, origin.states, origin.samples)

    def pin_memory(self) -> TaggedBatch:
        """Return it with the batch in page-locked memory (called by DataLoader)."""
        return TaggedBatch(pin_memory(self.data), self.origin)


def restore_tagged_batch(data: Any, base: dict[str, Any], states: States, samples: list[str]) -> TaggedBatch:
    """Return a batch as it left its worker."""
    return TaggedBatch(data, BatchOrigin(base, states, samples))


class SampleRecorder:
    """A data set that notes what it is asked for, in whichever process it is asked."""

    def __init__(self, dataset: Any, place: StatusLocation, workers: int, *, replayed: bool = False) -> None:
        self.dataset, self.place, self.workers, self.replayed = dataset, place, workers, replayed
        self.origin = BatchOrigin()
        self.fresh = True  # the next sample is the first one of a batch
        self.position = 0  # of an iterable data set, in this worker
        self.names: Callable[[Any], str] = str
        self.name = ""  # of the sample, or the batch, that is being loaded
        self.page: StatusPage | None = None
        self.owner = 0  # the process that the page is of
        self.is_off = False
        self.reader = rng_state.StateReader()
        self.worker: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"page": None, "owner": 0, "names": str}

    def item(self, index: Any) -> Any:
        """Return one sample, which a loader without batches asks for."""
        if isinstance(index, BatchRequest):
            rng_state.restore(index.states)
            index = index.indices
        self.begin(index, single=True)
        return self.load_one(index, self.origin.samples[0] if self.origin.samples else str(index))

    def load(self, indices: Any) -> Any:
        """Return the samples of a batch."""
        if isinstance(indices, BatchRequest):
            rng_state.restore(indices.states)
            indices = indices.indices
        self.begin(indices, single=False)
        if self.whole is None:
            names = self.origin.samples
            if len(names) != len(indices):  # noting the batch has failed
                names = [str(index) for index in indices]
            return [self.load_one(index, names[at]) for at, index in enumerate(indices)]
        whole = self.whole
        self.note(f"{len(indices)} samples from {self.origin.samples[0] if self.origin.samples else '?'} on")
        return self.guarded(lambda: whole(indices), lambda: self.blamed(whole, indices))

    @property
    def whole(self) -> Any:
        """The data set's own way of loading a batch, None for sample by sample."""
        whole = getattr(self.dataset, "__getitems__", None)
        each = type(self.dataset) is Subset and not hasattr(self.dataset.dataset, "__getitems__")
        return None if each else whole

    def stream(self) -> Iterator[Any]:
        """Yield the samples of an iterable data set."""
        iterator = iter(self.dataset)
        while True:
            if self.fresh:
                self.begin(self.position, single=True, kind="walk")
            self.note(self.in_stream(self.position))
            try:
                sample = self.guarded(lambda: next(iterator))
            except StopIteration:
                return
            self.position += 1
            yield sample

    def load_one(self, index: Any, name: str) -> Any:
        self.note(name)
        return self.guarded(lambda: self.dataset[index])

    def guarded(self, load: Callable[[], Any], blamed: Callable[[], str] | None = None) -> Any:
        try:
            return load()
        except StopIteration:
            raise
        except BaseException:
            self.refuse(self.name if blamed is None else blamed())
            raise

    def blamed(self, make: Callable[[Any], Any], samples: Any) -> str:
        """Return the samples that keep a batch from being made, in a replay, which may try; else the whole batch."""
        first, count = self.origin.base.get("first", 0), len(samples) if isinstance(samples, list) else 1
        names = self.origin.samples or [self.in_stream(first + position) for position in range(count)]
        if self.replayed and isinstance(samples, list) and len(samples) == len(names):
            bad = [
                self.carried(make, samples[at]) or names[at]
                for at in uncollatable_samples.find_uncollatable(make, samples)
            ]
            if bad:
                return ", ".join(bad)
        if not self.origin.samples and len(names) > 1:
            names = [f"{names[0]} and the {len(names) - 1} after it"]
        return f"{BATCH_OF}{', '.join(names)}"

    def carried(self, make: Callable[[Any], Any], sample: Any) -> str:
        """Return the name that a sample of a stream has itself, '' for none: a batch of one need not be possible."""
        with contextlib.suppress(Exception):
            batch = make([sample]) if not self.origin.samples else None
            names = batch_names(getattr(batch, "data", batch))  # of a replay, which keeps the samples beside the batch
            return names[0] if len(names) == 1 else ""
        return ""

    def in_stream(self, position: int) -> str:
        """Return what a sample of a stream is called."""
        return f"sample {position} of {'the' if self.worker is None else WORKER_STREAM} stream"

    def refuse(self, name: str) -> None:
        """Note the sample, or the batch, that could not be loaded."""
        if self.page is not None:
            try:
                self.page.fail(name)
            except Exception as error:
                self.give_up(error)

    def note(self, name: str) -> None:
        self.name = name
        if self.page is not None:
            try:
                self.page.sample(name)
            except Exception as error:
                self.give_up(error)

    def begin(self, indices: Any, *, single: bool, kind: str = "map") -> None:
        """Note the batch that is to be loaded."""
        self.fresh, self.name, origin = False, "", None
        try:
            if self.owner != os.getpid():
                self.open()
            order = {"kind": kind, "single": single, "workers": self.workers, "worker": self.worker}
            samples: list[str] = []
            if kind == "map":
                order["indices"] = repr(plain_index(indices if single else list(indices)))
                samples = [self.names(indices)] if single else list(map(self.names, indices))
            else:
                order["first"] = self.position
            # A replay makes the batches of a worker again one by one, those of this process in the order of the run.
            everything = self.worker is not None or self.workers > 0
            origin = BatchOrigin(order, self.reader.take(cuda=False, everything=everything), samples)
            if self.page is not None:
                self.page.batch(ENCODE(order), origin.states)
        except Exception as error:
            origin = origin or BatchOrigin()
            self.give_up(error)
        self.origin = origin

    def give_up(self, error: Exception) -> None:
        """Write no page any more, and say why, once: batches are loaded, but a replay may not know of what."""
        self.page = None
        if not self.is_off:
            self.is_off = True
            report(error, "a loader's samples are no longer noted", self.place.folder)

    def open(self) -> None:
        """Open the page of this process, once."""
        if self.owner != os.getpid():
            self.owner, info, place = os.getpid(), get_worker_info(), self.place
            self.worker, self.names = (info.id if info else None), index_namer(self.dataset)
            self.page = StatusPage(place.folder, place.rank, place.start, place.loader, self.worker or 0)


class RecordedDataset(DatasetProxy):
    """The data set in a loader's place for it, whose samples are loaded by a `SampleRecorder`."""

    ocrlab_watched: SampleRecorder

    def __init__(self, watched: SampleRecorder) -> None:
        super().__init__(watched.dataset)
        object.__setattr__(self, "ocrlab_watched", watched)

    def __getitem__(self, index: Any) -> Any:
        return self.ocrlab_watched.item(index)

    @property
    def __getitems__(self) -> Any:
        return self.ocrlab_watched.load

    def __iter__(self) -> Iterator[Any]:
        return self.ocrlab_watched.stream()

    def __reduce__(self) -> Any:
        return RecordedDataset, (self.ocrlab_watched,)


class TaggingCollate:
    """The user's collate function, with what the batch was made of put beside its result."""

    def __init__(self, collate: Callable[[Any], Any], watched: SampleRecorder) -> None:
        self.collate, self.watched = collate, watched

    def __call__(self, samples: Any) -> TaggedBatch:
        try:
            data = self.collate(samples)
        except Exception:
            self.watched.refuse(self.watched.blamed(self.collate, samples))
            raise
        self.watched.fresh = True
        return TaggedBatch(data, self.watched.origin)


class WorkerInit:
    """The user's worker_init_fn, before which the page of the worker is opened."""

    def __init__(self, begin: Callable[[int], Any] | None, watched: SampleRecorder) -> None:
        self.begin, self.watched = begin, watched

    def __call__(self, number: int) -> None:
        try:
            self.watched.open()
        except Exception as error:
            self.watched.give_up(error)
        if self.watched.replayed:
            faulthandler.disable()  # it took its place when the program began, and torch's handler, which says no line,
            faulthandler.enable()  # has come since
        if self.begin is not None:
            self.begin(number)
