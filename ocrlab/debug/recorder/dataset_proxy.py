"""A data set under observation, in whichever process it is asked: which sample it loads, and of what a batch is made.

It takes the place of the user's own in a copy of the loader (`loading.py`); the collate function that stands beside it
sends these notes along with the batch. Of a usual batch they are made in C (`notes.c`).
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii as quoted
from pathlib import Path
from typing import Any

from torch.utils.data import Subset, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from ocrlab.debug.flight_record.ring_format import ENCODE, State, States, batch_text
from ocrlab.debug.flight_record.worker_status import PLACES, Page
from ocrlab.debug.recorder import rng_state, uncollatable_samples
from ocrlab.debug.recorder.sample_names import by_index, naming, of_batch, plain, source

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
        self.say: Callable[[str], Any] = str  # notes the sample that is being loaded
        self.owner = 0
        self.worker: int | None = None
        self.texts: dict[bool, str] = {}  # how the orders of batches begin
        self.notes: Any = None  # does in C what is usual

    def __getstate__(self) -> dict[str, Any]:
        ours = {"page": None, "notes": None, "say": str, "owner": 0, "names": str}
        return {name: held for name, held in self.__dict__.items() if name != "__getitems__"} | ours

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, Order):
            rng_state.put(index.states)
            index = index.indices
        self.begin(index, single=True)
        return self.one(index, self.told.samples[0] if self.told.samples else str(index))

    def __getitems__(self, indices: Any) -> Any:
        return self.load(indices)

    def load(self, indices: Any) -> Any:
        """Return the samples of a batch; where nothing is unusual the same is done in C (`Notes.fetch`)."""
        if isinstance(indices, Order):
            rng_state.put(indices.states)
            indices = indices.indices
        self.begin(indices, single=False)
        if self.whole is None:
            names = self.told.samples
            if len(names) != len(indices):  # noting the batch has failed
                names = [str(index) for index in indices]
            return [self.one(index, name) for index, name in zip(indices, names, strict=True)]
        whole = self.whole
        self.note(f"{len(indices)} samples from {self.told.samples[0] if self.told.samples else '?'} on")
        return self.guarded(lambda: whole(indices), lambda: self.blamed(whole, indices))

    @property
    def whole(self) -> Any:
        """The data set's own way of loading a batch, None for sample by sample."""
        whole = getattr(self.dataset, "__getitems__", None)
        each = type(self.dataset) is Subset and not hasattr(self.dataset.dataset, "__getitems__")
        return None if each else whole

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
            bad = [self.carried(make, samples[at]) or names[at] for at in uncollatable_samples.unfit(make, samples)]
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
            self.say(name)

    def begin(self, indices: Any, *, single: bool, kind: str = "map") -> None:
        """Note the batch that is to be loaded; what goes wrong here goes wrong without a word."""
        self.fresh, self.name, told = False, "", None
        if self.notes is not None and type(indices) is (int if kind == "walk" else list) and single is (kind == "walk"):
            usual = self.notes.begin(indices)
            if usual is not None:
                self.told = usual
                return
        try:
            if self.owner != os.getpid():
                self.open()
            order = self.order(kind, single)
            if kind == "map":
                order["indices"] = asked = repr(plain(indices if single else list(indices)))
                samples = [self.names(indices)] if single else list(map(self.names, indices))
                if single not in self.texts:
                    self.texts[single] = ENCODE({**order, "indices": ""})[:-3]  # all but what differs
                text = f"{self.texts[single]}{quoted(asked)}}}"
            else:
                order["first"], samples = self.position, []
                text = ENCODE(order)
            states = rng_state.parts(cuda=False)
            told = Loaded(order, states, samples, batch_text(samples, text))
            if self.page is not None:
                self.page.batch(text, states)
        except Exception:
            told = told or Loaded()
        self.told = told

    def order(self, kind: str, single: bool) -> dict[str, Any]:
        """Return what all batches of this process have in common."""
        return {"kind": kind, "single": single, "workers": self.workers, "worker": self.worker}

    def open(self) -> None:
        """Open the page of this process, once."""
        if self.owner != os.getpid():
            self.owner, info, place = os.getpid(), get_worker_info(), self.place
            self.worker, self.names, self.texts = (info.id if info else None), naming(self.dataset), {}
            self.notes = None
            self.page = Page(place.folder, place.rank, place.start, place.loader, self.worker or 0)
            self.say = self.page.sample
            self.__dict__.pop("__getitems__", None)
            if rng_state.quick is not None and not self.replayed:  # whose guard looks for us on the stack
                self.hasten(self.page)

    def hasten(self, page: Page) -> None:
        """Have what is usual noted in C."""
        marks, name = rng_state.MARKS, None if self.names is by_index else self.names
        known = type(marks), marks, Loaded, quoted, name, source(self.names), weakref.ref(self), self.dataset
        self.notes = page.notes = notes = rng_state.quick.Notes(page.page, PLACES, *known)
        for number, kind, differs in ((0, "map", "indices"), (1, "walk", "first")):
            order = self.order(kind, single=kind != "map")
            notes.know(number, order, ENCODE({**order, differs: 0})[:-2])  # all but what differs
        self.say = notes.sample
        if self.whole is None:
            self.__dict__["__getitems__"] = notes.fetch  # which torch calls


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
