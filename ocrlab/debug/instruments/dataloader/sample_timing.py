"""Timing each sample where it is loaded: in the loader's workers, or in the training process where it has none.

While an iterator of the loader is made, its data set is a `TimedDataset`, which loads what the user's own does and
takes the time. The user's data set and its class stay as they are.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, IterDataPipe, MapDataPipe

from ocrlab.debug.instruments.dataloader import sample_names as names
from ocrlab.debug.instruments.dataloader.worker_log import COLLATE, Journal
from ocrlab.debug.instruments.dataset_proxy import DatasetProxy
from ocrlab.run_folder.fail_safe import raised_by_signal

BYTES = 1 << 16  # of a tensor or text that are compared
MARKED = 16  # first items of a stream whose content is compared with that of the other workers
_journals: dict[Path, Journal] = {}  # of this process, by the folder of the instrument


class TimedWorkerInit:
    """The loader's `worker_init_fn`: the user's own first, then the journal of the worker."""

    def __init__(self, folder: Path, then: Callable[[int], None] | None) -> None:
        self.folder, self.then = folder, then

    def __call__(self, worker: int) -> None:
        if self.then is not None:
            self.then(worker)
        begin(self.folder, worker)


class TimedCollate:
    """The loader's `collate_fn`, timed."""

    def __init__(self, folder: Path, then: Callable[[Any], Any]) -> None:
        self.folder, self.then = folder, then

    def __call__(self, items: Any) -> Any:
        began = time.perf_counter()
        try:
            batch = self.then(items)
        except Exception:
            if journal := open_journal(self.folder):
                journal.failed("", COLLATE)
            raise
        if journal := open_journal(self.folder):
            journal.collated(time.perf_counter() - began)
        return batch


@contextlib.contextmanager
def timed_samples(loader: DataLoader[Any], folder: Path) -> Iterator[dict[str, tuple[Any, Any]]]:
    """Let the iterators that are made of a loader in this block time their samples, by attributes of the loader.

    Yields each attribute with (what stands there, the user's own).
    """
    attributes = vars(loader)
    ours: dict[str, Any] = {}
    if "dataset" in attributes and not isinstance(attributes["dataset"], IterDataPipe | MapDataPipe):
        ours["dataset"] = TimedDataset(attributes["dataset"], folder)
    if attributes.get("collate_fn") is not None:
        ours["collate_fn"] = TimedCollate(folder, attributes["collate_fn"])
    if attributes.get("num_workers") and "worker_init_fn" in attributes:
        ours["worker_init_fn"] = TimedWorkerInit(folder, attributes["worker_init_fn"])
    own = {name: attributes[name] for name in ours}
    attributes.update(ours)
    try:
        yield {name: (value, own[name]) for name, value in ours.items()}
    finally:
        attributes.update(own)


def begin(folder: Path, worker: int) -> None:
    """Begin to time the samples that this process loads; what goes wrong is said once and changes nothing."""
    end(folder)
    try:
        _journals[folder] = Journal(folder, worker)
    except Exception as error:  # an instrument must not end what it looks at
        print(f"ocrlab: loading is not timed in process {os.getpid()}: {error}", file=sys.stderr)


def end(folder: Path) -> None:
    """End it, and close the journal of this process; one that was inherited by a fork is only dropped."""
    journal = _journals.pop(folder, None)
    if journal is not None and journal.pid == os.getpid():
        journal.flush()
        journal.summed = 0.0  # once more in full
        journal.look()
        journal.close()


def open_journal(folder: Path) -> Journal | None:
    """Return the open journal of this process, None where there is none or it was inherited by a fork."""
    journal = _journals.get(folder)
    return journal if journal is not None and journal.lines is not None and journal.pid == os.getpid() else None


class TimedDataset(DatasetProxy):
    """The user's data set, timed; it loads the same samples in the same order with the same random numbers."""

    def __init__(self, dataset: Any, folder: Path) -> None:
        super().__init__(dataset)
        object.__setattr__(self, "ocrlab_folder", folder)

    def __reduce__(self) -> Any:
        return TimedDataset, (self.ocrlab_dataset, self.ocrlab_folder)

    def __getitem__(self, index: Any) -> Any:
        dataset, journal = self.ocrlab_dataset, open_journal(self.ocrlab_folder)
        if journal is None:
            return dataset[index]
        began, cpu = _started(journal, index)
        try:
            item = dataset[index]
        except Exception:
            _failed(journal, dataset, index)
            raise
        _done(journal, dataset, index, item, began, cpu)
        return item

    def load_batch(self, indices: Any) -> Any:
        dataset, journal = self.ocrlab_dataset, open_journal(self.ocrlab_folder)
        if journal is None:
            return dataset.__getitems__(indices)
        began, cpu = _started(journal, indices)
        items = dataset.__getitems__(indices)
        many = len(indices) if hasattr(indices, "__len__") else 1
        _done(journal, dataset, indices, None, began, cpu, many)
        return items

    def __iter__(self) -> Iterator[Any]:
        dataset, journal = self.ocrlab_dataset, open_journal(self.ocrlab_folder)
        if journal is None or not isinstance(dataset, IterableDataset):
            return iter(dataset)
        return _TimedSamples(iter(dataset), dataset, journal)


class _TimedSamples(Iterator[Any]):
    """An iterator that takes the time of each step; everything else is that of the one below."""

    def __init__(self, below: Iterator[Any], dataset: Any, journal: Journal) -> None:
        self._below, self._dataset, self._journal, self._number = below, dataset, journal, 0

    def __next__(self) -> Any:
        journal = self._journal
        if journal.lines is None:
            return next(self._below)
        began, cpu = _started(journal, self._number)
        try:
            item = next(self._below)
        except StopIteration:
            journal.now.beat(phase="")
            raise
        except Exception:
            _failed(journal, self._dataset, self._number)
            raise
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


def timing_seconds(folder: Path) -> float:
    """Return the seconds that timing samples took in this process so far."""
    journal = _journals.get(folder)
    return journal.own if journal is not None else 0.0


def _started(journal: Journal, index: Any) -> tuple[float, float]:
    entered = time.monotonic()
    journal.begin(index)
    began = time.monotonic()
    journal.own += began - entered
    return began, time.thread_time()


def _failed(journal: Journal, dataset: Any, index: Any) -> None:
    """Write down a sample that raised, under its name; the exception goes on to the one who loads."""
    with contextlib.suppress(Exception):
        name = names.name_of_index(*names.innermost_dataset(dataset, index)) or names.name_of_index(dataset, index)
        journal.failed(index, f"{name} (index {index})" if name else f"index {index}")


def _done(journal: Journal, dataset: Any, index: Any, item: Any, began: float, cpu: float, many: int = 1) -> None:
    """Write a sample down under its name; nothing that goes wrong here reaches the one who loads."""
    ended = time.monotonic()
    spent, busy = ended - began, time.thread_time() - cpu
    try:
        name = (
            names.name_in_item(item)
            or names.name_of_index(*names.innermost_dataset(dataset, index))
            or names.name_of_index(dataset, index)
        )
        text = f"{many} samples: {str(list(index))[:60]}" if many > 1 else f"index {index}"
        journal.end(index, name or text, began, spent, busy, many)
    except Exception as error:
        if raised_by_signal(error):
            raise
        print(f"ocrlab: loading is not timed any more: {error}", file=sys.stderr)
        journal.close()
    finally:
        journal.own += time.monotonic() - ended
