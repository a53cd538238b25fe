"""Records, in whichever process a data set is asked, which sample is loaded and what each batch is made of.

A `SampleRecorder` loads from the user's data set in the copy of a loader. It writes the sample at hand to the status
page of the process; what the batch was made of travels to the training process as a `TaggedBatch`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.utils.data import get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from ocrlab.debug.flight_record.ring_format import ENCODE, States
from ocrlab.debug.flight_record.worker_status import StatusPage
from ocrlab.debug.instruments.dataloader import loader_proxy
from ocrlab.debug.instruments.dataloader.loader_proxy import DatasetProxy
from ocrlab.debug.instruments.sample_names import batch_names, index_namer, plain_index
from ocrlab.debug.recorder import rng_state
from ocrlab.run_folder.fail_safe import guard, report

BATCH_OF = "batch of "  # begins the name of a batch whose samples could not be put together
WORKER_STREAM = "this worker's"
REFERENCES = 3  # samples with which each other one is collated: where most fit, one of three does


@dataclass(slots=True)
class BatchOrigin:
    """What rebuilds one batch, and the random states before it was loaded."""

    base: dict[str, Any] = field(default_factory=dict)  # as its worker wrote it down
    states: States = field(default_factory=dict)
    samples: list[str] = field(default_factory=list)
    pass_number: int = 0
    position: int = -1  # in the pass; -1: not observed leaving its loader


@dataclass
class StatusLocation:
    """Where the status pages of workers are: folder, rank, start of the run, number of the loader."""

    folder: Path
    rank: int = 0
    start: int = 0
    loader: int = 0


@dataclass
class BatchRequest:
    """A recorded batch to be loaded again, in place of its indices."""

    indices: Any
    states: Mapping[str, bytes]


class TaggedBatch:
    """A batch on its way from the worker, with its origin."""

    def __init__(self, data: Any, origin: BatchOrigin) -> None:
        self.data, self.origin = data, origin

    def __reduce__(self) -> Any:
        """Pickle in one piece: pickle would look up and fill two objects."""
        origin = self.origin
        return restore_tagged_batch, (self.data, origin.base, origin.states, origin.samples)

    def pin_memory(self) -> TaggedBatch:
        """Return it with the batch in page-locked memory (called by DataLoader)."""
        return TaggedBatch(pin_memory(self.data), self.origin)


def restore_tagged_batch(data: Any, base: dict[str, Any], states: States, samples: list[str]) -> TaggedBatch:
    """Return a batch as it left its worker."""
    return TaggedBatch(data, BatchOrigin(base, states, samples))


class SampleRecorder:
    """Loads the samples of a data set and records them; `replayed` in a replay, which may load them again."""

    def __init__(self, dataset: Any, location: StatusLocation, workers: int, *, replayed: bool = False) -> None:
        self.dataset, self.location, self.workers, self.replayed = dataset, location, workers, replayed
        self.origin = BatchOrigin()  # of the batch at hand
        self.is_first = True  # the next sample is the first one of a batch
        self.position = 0  # of an iterable data set, in this worker
        self.namer: Callable[[Any], str] = str
        self.name = ""  # of the sample, or the batch, that is being loaded
        self.page: StatusPage | None = None
        self.owner = 0  # the process that the page is of
        self.is_off = False
        self.reader = rng_state.StateReader()
        self.worker: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"page": None, "owner": 0, "namer": str}

    def load_item(self, index: Any) -> Any:
        """Return one sample, which a loader without batches asks for."""
        index = self._restore(index)
        self.begin(index, single=True)
        return self._load_sample(index, self.origin.samples[0] if self.origin.samples else str(index))

    def load_batch(self, indices: Any) -> Any:
        """Return the samples of a batch."""
        indices = self._restore(indices)
        self.begin(indices, single=False)
        load, names = loader_proxy.batch_loader(self.dataset), self.origin.samples
        if load is not None:
            self.note(f"{len(indices)} samples from {names[0] if names else '?'} on")
            return self.guarded(lambda: load(indices), lambda: self.blame(load, indices))
        if len(names) != len(indices):  # noting the batch has failed
            names = [str(index) for index in indices]
        # Not strict: a data set may change the list of its indices.
        return [self._load_sample(index, name) for index, name in zip(indices, names, strict=False)]

    def stream(self) -> Iterator[Any]:
        """Yield the samples of an iterable data set."""
        iterator = iter(self.dataset)
        while True:
            if self.is_first:
                self.begin(self.position, single=True, kind="walk")
            self.note(self._stream_name(self.position))
            try:
                sample = self.guarded(lambda: next(iterator))
            except StopIteration:
                return
            self.position += 1
            yield sample

    def collate(self, function: Callable[[Any], Any], samples: Any) -> TaggedBatch:
        """Return the batch of some samples, with its origin."""
        try:
            data = function(samples)
        except Exception:
            self.note_failure(self.blame(function, samples))
            raise
        self.is_first = True
        return TaggedBatch(data, self.origin)

    def _restore(self, indices: Any) -> Any:
        if isinstance(indices, BatchRequest):
            rng_state.restore(indices.states)
            return indices.indices
        return indices

    def _load_sample(self, index: Any, name: str) -> Any:
        self.note(name)
        return self.guarded(lambda: self.dataset[index])

    def guarded(self, load: Callable[[], Any], blame: Callable[[], str] | None = None) -> Any:
        """Return what `load` returns; where it raises, note the sample that it failed at."""
        try:
            return load()
        except StopIteration:
            raise
        except BaseException:
            self.note_failure(self.name if blame is None else blame())
            raise

    def blame(self, make: Callable[[Any], Any], samples: Any) -> str:
        """Return the samples that keep a batch from being made, in a replay, which may try; else the whole batch."""
        first, count = self.origin.base.get("first", 0), len(samples) if isinstance(samples, list) else 1
        names = self.origin.samples or [self._stream_name(first + place) for place in range(count)]
        if self.replayed and isinstance(samples, list) and len(samples) == len(names):
            bad = [self._own_name(make, samples[place]) or names[place] for place in find_uncollatable(make, samples)]
            if bad:
                return ", ".join(bad)
        if not self.origin.samples and len(names) > 1:
            names = [f"{names[0]} and the {len(names) - 1} after it"]
        return f"{BATCH_OF}{', '.join(names)}"

    def _own_name(self, make: Callable[[Any], Any], sample: Any) -> str:
        """Return the name that a sample of a stream carries itself, '' for none: a batch of one may be impossible."""
        if not self.origin.samples:
            with contextlib.suppress(Exception):
                names = batch_names(make([sample]))
                return names[0] if len(names) == 1 else ""
        return ""

    def _stream_name(self, position: int) -> str:
        return f"sample {position} of {'the' if self.worker is None else WORKER_STREAM} stream"

    @guard
    def note(self, name: str) -> None:
        """Write down the sample that is being loaded."""
        self.name = name
        if self.page is not None:
            self.page.sample(name)

    @guard
    def note_failure(self, name: str) -> None:
        """Write down the sample, or the batch, that could not be loaded."""
        if self.page is not None:
            self.page.fail(name)

    @guard
    def begin(self, indices: Any, *, single: bool, kind: str = "map") -> None:
        """Write down the batch that is to be loaded."""
        self.is_first, self.name, self.origin = False, "", BatchOrigin()
        self.open()
        order = {"kind": kind, "single": single, "workers": self.workers, "worker": self.worker}
        samples: list[str] = []
        if kind == "map":
            order["indices"] = repr(plain_index(indices if single else list(indices)))
            samples = [self.namer(indices)] if single else list(map(self.namer, indices))
        else:
            order["first"] = self.position
        # A replay makes the batches of a worker again one by one, those of this process in the order of the run.
        everything = self.worker is not None or self.workers > 0
        self.origin = BatchOrigin(order, self.reader.take(cuda=False, everything=everything), samples)
        if self.page is not None:
            self.page.batch(ENCODE(order), self.origin.states)

    def open(self) -> None:
        """Open the status page of this process, once."""
        if self.owner != os.getpid():
            self.owner, info, place = os.getpid(), get_worker_info(), self.location
            self.worker, self.namer = (info.id if info else None), index_namer(self.dataset)
            self.page = StatusPage(place.folder, place.rank, place.start, place.loader, self.worker or 0)

    def init_worker(self, function: Callable[[int], Any] | None, number: int) -> None:
        """Open the status page of a worker, then call the user's worker_init_fn."""
        try:
            self.open()
            loader_proxy.show_own_dataset()
        except Exception as error:
            self.give_up(error)
        if self.replayed:
            faulthandler.disable()  # the program enabled it before torch installed its handler, which reports no line
            faulthandler.enable()
        if function is not None:
            function(number)

    def give_up(self, error: Exception) -> None:
        """Write no page any more, and report why, once. Batches are loaded, but a replay may not know their samples."""
        self.page = None
        if not self.is_off:
            self.is_off = True
            report(error, "a loader's samples are no longer noted", self.location.folder)


def install(loader: Any, recorder: SampleRecorder) -> None:
    """Let a copy of a loader load through a `SampleRecorder`."""
    attributes = vars(loader)  # DataLoader refuses to set some of them
    attributes["dataset"] = RecordedDataset(recorder.dataset, recorder)
    attributes["collate_fn"] = functools.partial(recorder.collate, loader.collate_fn)
    if loader.num_workers:
        attributes["worker_init_fn"] = functools.partial(recorder.init_worker, loader.worker_init_fn)


def copy_with_recorder(loader: Any, recorder: SampleRecorder) -> Any:
    """Return a copy of a loader that loads through a `SampleRecorder`."""
    copied = loader_proxy.copy_loader(loader)
    install(copied, recorder)
    return copied


class RecordedDataset(DatasetProxy):
    """The data set in a loader, loaded by a `SampleRecorder`."""

    def __init__(self, dataset: Any, recorder: SampleRecorder) -> None:
        super().__init__(dataset)
        self.ocrlab_recorder = recorder

    def __getitem__(self, index: Any) -> Any:
        return self.ocrlab_recorder.load_item(index)

    @property
    def __getitems__(self) -> Any:
        return self.ocrlab_recorder.load_batch

    def __iter__(self) -> Iterator[Any]:
        return self.ocrlab_recorder.stream()


def find_uncollatable(collate: Callable[[Any], Any], samples: Sequence[Any]) -> list[int]:
    """Return the positions of the samples without which the others can be collated; empty where that does not tell."""
    states, count = rng_state.take(cuda=False), len(samples)

    def fits(positions: Sequence[int]) -> bool:
        rng_state.restore(states)  # the collate function may draw
        with contextlib.suppress(Exception):
            collate([samples[position] for position in positions])
            return True
        return False

    bad = [position for position in range(count) if not fits([position])]
    if bad:
        return bad if len(bad) < count else []
    for first in range(min(REFERENCES, count)):
        odd = [position for position in range(count) if position != first and not fits([first, position])]
        if 0 < 2 * len(odd) < count and fits([position for position in range(count) if position not in odd]):
            return odd
    return []
