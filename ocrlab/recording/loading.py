"""A look at any DataLoader from inside: which sample each worker is on, and what every batch was made of.

The user's loader and data set stay as they are. Each time an iterator is made, it gets a thin proxy in place of the
data set, which notes the sample in the page of its worker, and a collate function that sends along, with the batch, its
indices and the random states before it. From these `restored.py` makes the same batch again.
"""

from __future__ import annotations

import contextlib
import copy
import faulthandler
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii as quoted
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, IterDataPipe, MapDataPipe, Subset, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from ocrlab.flight.ring_layout import ENCODE, State, States, batch_text
from ocrlab.flight.ring_worker import Page
from ocrlab.recording import blame, generators
from ocrlab.recording.names import naming, of_batch, plain

BATCH = "batch of "  # what begins the name of a batch that failed when its samples were put together
STREAM = "this worker's"


@dataclass(slots=True)
class Loaded:
    """One batch as it left its loader: what rebuilds it, and the random states before it was loaded."""

    base: dict[str, Any] = field(default_factory=dict)  # what its worker tells of it
    states: States = ({}, b"")
    samples: list[str] = field(default_factory=list)
    text: str = ""  # samples and base as a record says them, where that is known already
    walk: int = 0
    position: int = -1  # in the walk; -1: nobody has seen this batch leave its loader

    @property
    def order(self) -> dict[str, Any]:
        """What rebuilds the batch."""
        return self.base if self.position < 0 else {**self.base, "walk": self.walk, "position": self.position}


@dataclass
class Place:
    """Where the pages of workers go: folder, rank, start of the run, number of the loader."""

    folder: Path
    rank: int = 0
    start: int = 0
    loader: int = 0


@dataclass
class Order:
    """A batch to be made again, in place of its indices."""

    indices: Any
    states: Mapping[str, State]


class Tagged:
    """A batch on its way from the worker, with what it was made of."""

    def __init__(self, data: Any, told: Loaded) -> None:
        self.data, self.told = data, told

    def __reduce__(self) -> Any:
        """Travel as one thing: pickle would look up and fill two objects."""
        told = self.told
        return tagged, (self.data, told.base, told.states, told.samples, told.text)

    def pin_memory(self) -> Tagged:
        """Return it with the batch in page-locked memory (called by DataLoader)."""
        return Tagged(pin_memory(self.data), self.told)


def tagged(data: Any, base: dict[str, Any], states: States, samples: list[str], text: str) -> Tagged:
    """Return a batch as it left its worker."""
    return Tagged(data, Loaded(base, states, samples, text))


class Watched:
    """A data set that notes what it is asked for, in whichever process it is asked."""

    def __init__(self, dataset: Any, place: Place, workers: int, *, replayed: bool = False) -> None:
        self.dataset, self.place, self.workers, self.replayed = dataset, place, workers, replayed
        self.told = Loaded()
        self.fresh = True  # the next sample is the first one of a batch
        self.position = 0  # of an iterable data set, in this worker
        self.names: Callable[[Any], str] = str
        self.page: Page | None = None
        self.owner = 0
        self.worker: int | None = None
        self.texts: dict[bool, str] = {}  # how the orders of batches begin

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "page": None, "owner": 0, "names": str}

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, Order):
            generators.put(index.states)
            index = index.indices
        self.begin(index, single=True)
        return self.one(index, self.told.samples[0] if self.told.samples else str(index))

    def __getitems__(self, indices: Any) -> Any:
        if isinstance(indices, Order):
            generators.put(indices.states)
            indices = indices.indices
        self.begin(indices, single=False)
        whole = getattr(self.dataset, "__getitems__", None)
        if whole is None or (type(self.dataset) is Subset and not hasattr(self.dataset.dataset, "__getitems__")):
            names = self.told.samples
            if len(names) != len(indices):  # noting the batch has failed
                names = [str(index) for index in indices]
            return [self.one(index, name) for index, name in zip(indices, names, strict=True)]
        self.note(f"{len(indices)} samples from {self.told.samples[0] if self.told.samples else '?'} on")
        return self.guarded(lambda: whole(indices), lambda: self.blamed(whole, indices))

    def __iter__(self) -> Iterator[Any]:
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

    def one(self, index: Any, name: str) -> Any:
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
        first, count = self.told.base.get("first", 0), len(samples) if isinstance(samples, list) else 1
        names = self.told.samples or [self.in_stream(first + position) for position in range(count)]
        if self.replayed and isinstance(samples, list) and len(samples) == len(names):
            bad = [self.carried(make, samples[at]) or names[at] for at in blame.unfit(make, samples)]
            if bad:
                return ", ".join(bad)
        if not self.told.samples and len(names) > 1:
            names = [f"{names[0]} and the {len(names) - 1} after it"]
        return f"{BATCH}{', '.join(names)}"

    def carried(self, make: Callable[[Any], Any], sample: Any) -> str:
        """Return the name that a sample of a stream has itself, '' for none: a batch of one need not be possible."""
        with contextlib.suppress(Exception):
            made = make([sample]) if not self.told.samples else None
            found = of_batch(getattr(made, "data", made))  # of a replay, which keeps the samples beside the batch
            return found[0] if len(found) == 1 else ""
        return ""

    def in_stream(self, position: int) -> str:
        """Return what a sample of a stream is called."""
        return f"sample {position} of {'the' if self.worker is None else STREAM} stream"

    def refuse(self, name: str) -> None:
        """Note the sample, or the batch, that could not be loaded."""
        if self.page is not None:
            self.page.fail(name)

    def note(self, name: str) -> None:
        self.name = name
        if self.page is not None:
            self.page.sample(name)

    def begin(self, indices: Any, *, single: bool, kind: str = "map") -> None:
        """Note the batch that is to be loaded; what goes wrong here goes wrong without a word."""
        self.fresh, self.name, told = False, "", None
        try:
            if self.owner != os.getpid():
                self.open()
            order = {"kind": kind, "single": single, "workers": self.workers, "worker": self.worker}
            if kind == "map":
                order["indices"] = asked = repr(plain(indices if single else list(indices)))
                samples = [self.names(indices)] if single else list(map(self.names, indices))
                if single not in self.texts:
                    self.texts[single] = ENCODE({**order, "indices": ""})[:-3]  # all but what differs
                text = f"{self.texts[single]}{quoted(asked)}}}"
            else:
                order["first"], samples = self.position, []
                text = ENCODE(order)
            states = generators.parts(cuda=False)
            told = Loaded(order, states, samples, batch_text(samples, text))
            if self.page is not None:
                self.page.batch(text, states)
        except Exception:
            told = told or Loaded()
        self.told = told

    def open(self) -> None:
        """Open the page of this process, once."""
        if self.owner != os.getpid():
            self.owner, info, place = os.getpid(), get_worker_info(), self.place
            self.worker, self.names, self.texts = (info.id if info else None), naming(self.dataset), {}
            self.page = Page(place.folder, place.rank, place.start, place.loader, self.worker or 0)


class Collate:
    """The user's collate function, with what the batch was made of put beside its result."""

    def __init__(self, collate: Callable[[Any], Any], watched: Watched) -> None:
        self.collate, self.watched = collate, watched

    def __call__(self, samples: Any) -> Tagged:
        try:
            data = self.collate(samples)
        except Exception:
            self.watched.refuse(self.watched.blamed(self.collate, samples))
            raise
        self.watched.fresh = True
        return Tagged(data, self.watched.told)


class Begin:
    """The user's worker_init_fn; the data set that a worker is told of is the user's, not our proxy."""

    def __init__(self, begin: Callable[[int], Any] | None, watched: Watched) -> None:
        self.begin, self.watched = begin, watched

    def __call__(self, number: int) -> None:
        info = get_worker_info()
        with contextlib.suppress(Exception):
            object.__setattr__(info, "dataset", self.watched.dataset)  # it refuses a plain assignment
        with contextlib.suppress(Exception):
            self.watched.open()
        if self.watched.replayed:
            faulthandler.disable()  # it took its place when the program began, and torch's handler, which says no line,
            faulthandler.enable()  # has come since
        if self.begin is not None:
            self.begin(number)


class Loader:
    """A loader under observation: `taken` holds what was made of the batches that nobody has asked about yet."""

    def __init__(
        self,
        loader: Any,
        place: Place,
        on_batch: Callable[[Any, Loaded], Any] | None = None,
        on_walk: Callable[[int], Any] | None = None,
        on_wait: Callable[[], Any] | None = None,
    ) -> None:
        self.loader, self.place, self.on_batch, self.on_walk = weakref.ref(loader), place, on_batch, on_walk
        self.on_wait = on_wait
        self.taken: deque[Loaded] = deque()
        self.walk = -1
        self.count = 0  # of batches in this walk
        self.stills: dict[int, Mapping[str, State]] = {}  # of each worker, as its last batch brought them
        self.feed: Callable[[], Iterator[Any]] | None = None  # in a replay: what takes the place of loading

    def holds(self, loader: Any) -> bool:
        """Tell whether this is the loader under observation."""
        return self.loader() is loader

    def told(self) -> Loaded:
        """Return what is known of the oldest batch that nobody has asked about yet."""
        return self.taken.popleft() if self.taken else Loaded()

    def start(self) -> None:
        """Put ourselves into the loader; undone by `stop`."""
        loader = self.loader()
        loader._get_iterator = self.iterator  # type: ignore[union-attr]  # each __iter__ of a DataLoader asks for it

    def stop(self) -> None:
        """Take ourselves out of the loader."""
        loader = self.loader()
        if loader is not None:
            loader.__dict__.pop("_get_iterator", None)

    def iterator(self) -> Iterator[Any]:
        """Return what `DataLoader._get_iterator` would, made of a copy of the loader with a watched data set."""
        loader: Any = self.loader()
        self.begin_walk()
        if self.feed is not None:
            return self.feed()
        iterator = type(loader)._get_iterator(twin(loader, Watched(loader.dataset, self.place, loader.num_workers)))
        self.listen(iterator)
        return iterator

    def begin_walk(self) -> None:
        """Note that a new walk over the loader begins; batches that were fetched and never used are forgotten."""
        self.walk += 1
        self.count = 0
        self.taken.clear()
        loader = self.loader()
        if self.on_walk is not None and isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset):
            self.on_walk(self.walk)

    def listen(self, iterator: Any) -> None:
        """Take our notes off each batch before anybody sees it; no reference to the iterator may keep it alive."""
        weak = weakref.ref(iterator)

        def next_data() -> Any:
            this: Any = weak()
            if self.on_wait is not None:
                self.on_wait()
            return self.untag(type(this)._next_data(this))

        def reset(loader: Any, first_iter: bool = False) -> None:
            this: Any = weak()
            self.begin_walk()
            type(this)._reset(this, loader, first_iter)

        iterator._next_data, iterator._reset = next_data, reset

    def untag(self, data: Any) -> Any:
        """Return the batch itself, and keep what it was made of."""
        if type(data) is Tagged:
            data, told = data.data, data.told
            if (worker := told.base.get("worker")) is not None:
                still, moving = told.states
                self.stills[worker] = still = interned(self.stills.get(worker), still)
                told.states = still, moving
        else:
            told = Loaded()
        told.walk, told.position = self.walk, self.count
        self.count += 1
        self.taken.append(told)
        if self.on_batch is not None:
            self.on_batch(data, told)
        return data


def interned(known: Mapping[str, State] | None, still: Mapping[str, State]) -> Mapping[str, State]:
    """Return states that came from a worker as the objects that came before, in all that is equal."""
    if not known or known == still:
        return known or still
    made: dict[str, State] = {}
    for name, state in still.items():
        old = known.get(name)
        same = isinstance(old, tuple) and isinstance(state, tuple) and old[0] == state[0]
        made[name] = (old[0], state[1]) if same else state  # type: ignore[index, assignment]
    return made


def twin(loader: Any, watched: Watched) -> Any:
    """Return a copy of a loader that reads `watched` in place of its data set."""
    copied = apart(loader)
    copied.__dict__.update(dataset=watched, collate_fn=Collate(loader.collate_fn, watched))
    if loader.num_workers:
        copied.worker_init_fn = Begin(loader.worker_init_fn, watched)
    return copied


def apart(loader: Any) -> Any:
    """Return a copy of a loader that nobody looks at, with iterators of its own; what is no DataLoader is itself."""
    if not isinstance(loader, DataLoader):
        return loader
    copied = copy.copy(loader)
    copied.__dict__.pop("_get_iterator", None)
    copied.__dict__["_iterator"] = None
    return copied


def can_be_watched(loader: Any) -> bool:
    """Tell whether a loader makes its iterators in torch's way, over a data set that a proxy can stand for."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterDataPipe | MapDataPipe):
        return False
    return type(loader)._get_iterator is DataLoader._get_iterator


def worker_ended(error: BaseException) -> bool:
    """Tell whether torch raised because a loader's worker ended: its signal handler does, wherever the process is."""
    return isinstance(error, RuntimeError) and "DataLoader worker (pid" in str(error)
