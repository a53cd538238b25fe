"""Timing each sample where it is loaded: in the loader's workers, or in the training process where it has none.

The data set keeps its identity, order and random numbers: its class is replaced, for the while, by a subclass that
takes the time. A list, or whatever else allows no such thing, is timed by the batch.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset, IterableDataset, get_worker_info

from ocrlab.debug.instruments.dataloader import sample_names as names
from ocrlab.debug.instruments.dataloader.worker_log import COLLATE, Journal
from ocrlab.debug.instruments.signal_errors import by_a_signal

BYTES = 1 << 16  # of a tensor or text that are compared
MARKED = 16  # first items of a stream whose content is compared with that of the other workers
DEPTH = 4  # data sets inside data sets (Subset, ConcatDataset) that are looked into
_here: list[Watching] = []  # the journal of this process; none in a process that loads nothing


class Watching:
    """A journal with the data sets that write into it, until `stop`."""

    def __init__(self, folder: Path, dataset: Any, worker: int) -> None:
        self.journal = Journal(folder, worker)
        self.undo = [undo for each in nested(dataset) if (undo := observe(each, self.journal))]

    @property
    def ended(self) -> bool:
        """Tell whether this is another process's, inherited by a fork, or the journal is closed."""
        return self.journal.pid != os.getpid() or self.journal.lines is None

    def stop(self) -> None:
        """Give every data set its class back and close the journal."""
        for undo in self.undo:
            undo()
        self.undo = []
        self.journal.flush()
        self.journal.summed = 0.0  # once more in full
        self.journal.look()
        self.journal.close()


class Start:
    """The loader's `worker_init_fn`: the one of the user first, then the journal of the worker."""

    def __init__(self, folder: Path, then: Callable[[int], None] | None) -> None:
        self.folder, self.then = folder, then

    def __call__(self, worker: int) -> None:
        if self.then is not None:
            self.then(worker)
        info = get_worker_info()
        if info is not None:
            begin(self.folder, info.dataset, worker)


class Collate:
    """The loader's `collate_fn`, timed."""

    def __init__(self, then: Callable[[Any], Any]) -> None:
        self.then = then

    def __call__(self, items: Any) -> Any:
        began = time.perf_counter()
        try:
            batch = self.then(items)
        except Exception:
            if _here and not _here[0].ended:
                _here[0].journal.failed("", COLLATE)
            raise
        if _here:
            if _here[0].ended:
                end()
            else:
                _here[0].journal.collated(time.perf_counter() - began)
        return batch


def begin(folder: Path, dataset: Any, worker: int) -> None:
    """Begin to time the samples that this process loads; what goes wrong is said once and changes nothing."""
    end()
    try:
        _here[:] = [Watching(folder, dataset, worker)]
    except Exception as error:  # an instrument must not end what it looks at
        print(f"ocrlab: loading is not timed in process {os.getpid()}: {error}", file=sys.stderr)


def end() -> None:
    """End it; a data set that a forked process inherited in its timed class gets its own back as well."""
    while _here:
        watching = _here.pop()
        if watching.journal.pid == os.getpid():
            watching.stop()
        else:
            for undo in watching.undo:
                undo()


def nested(dataset: Any, depth: int = DEPTH) -> list[Any]:
    """Return a data set and those inside it (`dataset`, `datasets`), each once."""
    found: list[Any] = []
    line: list[tuple[Any, int]] = [(dataset, 0)]
    while line:
        each, level = line.pop(0)
        if any(each is other for other in found):
            continue
        found.append(each)
        kept = getattr(each, "__dict__", None)
        if level < depth and isinstance(kept, dict):
            inner = [kept.get("dataset"), *(kept["datasets"] if isinstance(kept.get("datasets"), list | tuple) else ())]
            line += [(one, level + 1) for one in inner if isinstance(one, Dataset)]
    return found


def observe(dataset: Any, journal: Journal) -> Callable[[], None] | None:
    """Let a data set time its samples and return what undoes it; None where its class cannot be replaced."""
    kind: Any = type(dataset)
    maker: Any = type(kind)
    if not isinstance(dataset, Dataset) and not hasattr(kind, "__getitem__"):
        return None
    if any(base.__name__ == "IterDataPipe" for base in kind.__mro__):
        return None  # its class keeps count of every instance
    members: dict[str, Any] = {"__slots__": (), "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    if isinstance(dataset, IterableDataset):
        members["__iter__"] = _iterating(kind, journal)
    else:
        members["__getitem__"] = _getting(kind, journal)
        if callable(getattr(kind, "__getitems__", None)) and len(nested(dataset, 1)) == 1:
            members["__getitems__"] = _getting_many(kind, journal)
    try:
        timed = maker(kind.__name__, (kind,), members)
        timed.__reduce_ex__ = _reducing(kind, timed)
        dataset.__class__ = timed
    except Exception:  # a list, a final class, slots, a metaclass with rules of its own
        return None

    def undo() -> None:
        with contextlib.suppress(Exception):
            dataset.__class__ = kind

    return undo


def _getting(kind: Any, journal: Journal) -> Callable[[Any, Any], Any]:
    def __getitem__(self: Any, index: Any) -> Any:
        local = journal.local
        if getattr(local, "inside", False) or _elsewhere(journal):
            local.leaf = (self, index)  # the innermost data set knows best what a sample is called
            return kind.__getitem__(self, index)
        local.inside, local.leaf = True, (self, index)
        began, cpu = _started(journal, index)
        try:
            item = kind.__getitem__(self, index)
        except Exception:
            _failed(journal, self, index)
            raise
        finally:
            local.inside = False
        _done(journal, self, index, item, began, cpu)
        return item

    return __getitem__


def _getting_many(kind: Any, journal: Journal) -> Callable[[Any, Any], Any]:
    def __getitems__(self: Any, indices: Any) -> Any:
        local = journal.local
        if getattr(local, "inside", False) or _elsewhere(journal):
            return kind.__getitems__(self, indices)
        local.inside, local.leaf = True, (self, None)
        began, cpu = _started(journal, indices)
        try:
            items = kind.__getitems__(self, indices)
        finally:
            local.inside = False
        many = len(indices) if hasattr(indices, "__len__") else 1
        _done(journal, self, indices, None, began, cpu, many)
        return items

    return __getitems__


def _iterating(kind: Any, journal: Journal) -> Callable[[Any], Any]:
    def __iter__(self: Any) -> Any:
        iterator = iter(kind.__iter__(self))
        if getattr(journal.local, "inside", False) or _elsewhere(journal):
            return iterator
        return _Timed(iterator, self, journal)

    return __iter__


class _Timed(Iterator[Any]):
    """An iterator that takes the time of each step; everything else is that of the one below."""

    def __init__(self, below: Iterator[Any], dataset: Any, journal: Journal) -> None:
        self._below, self._dataset, self._journal, self._number = below, dataset, journal, 0

    def __next__(self) -> Any:
        journal = self._journal
        if journal.lines is None:
            return next(self._below)
        began, cpu = _started(journal, self._number)
        journal.local.inside, journal.local.leaf = True, (self._dataset, None)
        try:
            item = next(self._below)
        except StopIteration:
            journal.now.beat(phase="")
            raise
        except Exception:
            _failed(journal, self._dataset, self._number)
            raise
        finally:
            journal.local.inside = False
        _done(journal, self._dataset, self._number, item, began, cpu)
        if self._number < MARKED and journal.worker >= 0 and journal.lines is not None:
            _mark(journal, item)
        self._number += 1
        return item

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)


def _mark(journal: Journal, item: Any) -> None:
    """Write down what an item of a stream holds: workers that do not share it out all yield the same."""
    entered = time.monotonic()
    with contextlib.suppress(Exception):  # an item of a stranger's kind
        digest = hashlib.blake2b(digest_size=8)
        if _digest(item, digest.update):
            journal.mark(digest.hexdigest())
    journal.own += time.monotonic() - entered


def _digest(item: Any, take: Callable[[bytes], object], depth: int = 4) -> bool:
    """Feed what an item holds; tell whether there was something to compare."""
    if isinstance(item, str | bytes | int | float | bool):
        take(repr(item).encode()[:BYTES])
        return True
    if hasattr(item, "tobytes") or hasattr(item, "untyped_storage"):
        array = item.detach().contiguous().reshape(-1)[:BYTES].numpy() if hasattr(item, "detach") else item
        take(repr(getattr(item, "shape", "")).encode() + bytes(array.tobytes()[:BYTES]))
        return True
    if depth and isinstance(item, dict | list | tuple):
        parts = item.values() if isinstance(item, dict) else item
        return sum(_digest(part, take, depth - 1) for part in parts) > 0  # all of them, not the first
    return False


def _elsewhere(journal: Journal) -> bool:
    """Tell whether the journal is closed, or was inherited by a fork and is not this process's."""
    return journal.lines is None or journal.pid != os.getpid()


def own() -> float:
    """Return the seconds that timing samples took in this process so far."""
    return _here[0].journal.own if _here else 0.0


def _started(journal: Journal, index: Any) -> tuple[float, float]:
    entered = time.monotonic()
    journal.begin(index)
    began = time.monotonic()
    journal.own += began - entered
    return began, time.thread_time()


def _failed(journal: Journal, dataset: Any, index: Any) -> None:
    """Write down a sample that raised, under its name; the exception goes on to the one who loads."""
    with contextlib.suppress(Exception):
        leaf, at = journal.local.leaf
        name = names.of_index(leaf, at) or names.of_index(dataset, index)
        journal.failed(index, f"{name} (index {index})" if name else f"index {index}")


def _done(journal: Journal, dataset: Any, index: Any, item: Any, began: float, cpu: float, many: int = 1) -> None:
    """Write a sample down under its name; nothing that goes wrong here reaches the one who loads."""
    ended = time.monotonic()
    spent, busy = ended - began, time.thread_time() - cpu
    try:
        leaf, at = journal.local.leaf
        name = names.of_item(item) or names.of_index(leaf, at) or names.of_index(dataset, index)
        text = f"{many} samples: {str(list(index))[:60]}" if many > 1 else f"index {index}"
        journal.end(index, name or text, began, spent, busy, many)
    except Exception as error:
        if by_a_signal(error):
            raise
        print(f"ocrlab: loading is not timed any more: {error}", file=sys.stderr)
        journal.close()
    finally:
        journal.local.leaf = (None, None)
        journal.own += time.monotonic() - ended


def _reducing(kind: Any, timed: Any) -> Callable[[Any, Any], Any]:
    """Let a copy, or a pickle for a spawned worker, be of the data set's own class."""

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        reduced = kind.__reduce_ex__(self, protocol)
        if not isinstance(reduced, tuple) or len(reduced) < 2:
            return reduced
        first, arguments, *rest = reduced
        arguments = tuple(kind if part is timed else part for part in arguments)
        if first is copyreg.__newobj__:  # type: ignore[attr-defined]  # pickle would insist on the timed class
            return (kind.__new__, arguments, *rest)
        if first is copyreg.__newobj_ex__:  # type: ignore[attr-defined]
            return (functools.partial(kind.__new__, kind, *arguments[1], **arguments[2]), (), *rest)
        return (kind if first is timed else first, arguments, *rest)

    return __reduce_ex__
