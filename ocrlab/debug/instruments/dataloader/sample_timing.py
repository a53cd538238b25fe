"""Times each sample where it is loaded: in the loader's workers, or in the training process where it has none.

In the copy of a loader (`loader_proxy.py`) the data set is a `TimedDataset`, which loads what the user's own does.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset

from ocrlab.debug.instruments import sample_names
from ocrlab.debug.instruments.dataloader import loader_proxy
from ocrlab.debug.instruments.dataloader.loader_proxy import DatasetProxy
from ocrlab.debug.instruments.dataloader.worker_log import COLLATE, WorkerLog
from ocrlab.run_folder.fail_safe import raised_by_signal

BYTES = 1 << 16  # of a tensor or text that are compared
MARKED = 16  # first items of a stream whose content is compared with that of the other workers
_logs: dict[Path, WorkerLog] = {}  # of this process, by the folder of the instrument


def install(loader: Any, folder: Path) -> None:
    """Let a copy of a loader time its samples."""
    timed: dict[str, Any] = {}
    if loader_proxy.can_proxy(loader.dataset):
        timed["dataset"] = TimedDataset(loader.dataset, folder)
    if loader.collate_fn is not None:
        timed["collate_fn"] = partial(timed_collate, folder, loader.collate_fn)
    if loader.num_workers:
        timed["worker_init_fn"] = partial(begin_worker, folder, loader.worker_init_fn)
    vars(loader).update(timed)  # all of it or nothing


def timed_collate(folder: Path, collate: Callable[[Any], Any], items: Any) -> Any:
    """Return the batch that the loader's own `collate_fn` makes, timed."""
    began = time.perf_counter()
    line: list[Any] = ["failed", COLLATE]
    try:
        batch = collate(items)
        line = ["collate", round(time.perf_counter() - began, 7)]
        return batch
    finally:
        if log := open_log(folder):
            log.write(line)


def begin_worker(folder: Path, own_init: Callable[[int], None] | None, worker: int) -> None:
    """Begin a worker of the loader: its own `worker_init_fn`, then the log."""
    loader_proxy.show_own_dataset()
    if own_init is not None:
        own_init(worker)
    begin(folder, worker)


def begin(folder: Path, worker: int) -> None:
    """Begin to time the samples that this process loads; an error is printed once and changes nothing."""
    end(folder)
    try:
        _logs[folder] = WorkerLog(folder, worker)
    except Exception as error:
        print(f"ocrlab: loading is not timed in process {os.getpid()}: {error}", file=sys.stderr)


def end(folder: Path) -> None:
    """End it, and close the log of this process; one that was inherited by a fork is only dropped."""
    log = _logs.pop(folder, None)
    if log is not None and log.pid == os.getpid():
        with contextlib.suppress(Exception):
            log.flush()
            log.next_full = 0.0  # shared memory, too
            log.look()
        log.close()


def open_log(folder: Path) -> WorkerLog | None:
    """Return the open log of this process, None where there is none or it was inherited by a fork."""
    log = _logs.get(folder)
    return log if log is not None and log.lines is not None and log.pid == os.getpid() else None


def timing_seconds(folder: Path) -> float:
    """Return the seconds that timing samples took in this process so far."""
    return _logs[folder].own_seconds if folder in _logs else 0.0


class TimedDataset(DatasetProxy):
    """The user's data set, timed; it loads the same samples in the same order with the same random numbers."""

    def __init__(self, dataset: Any, folder: Path) -> None:
        super().__init__(dataset)
        self.ocrlab_folder = folder

    def __getitem__(self, index: Any) -> Any:
        return self._timed(index, lambda: self.ocrlab_dataset[index])

    def load_batch(self, indices: Any) -> Any:
        count = len(indices) if hasattr(indices, "__len__") else 1
        return self._timed(indices, lambda: self.ocrlab_dataset.__getitems__(indices), count)

    def __iter__(self) -> Iterator[Any]:
        iterator = iter(self.ocrlab_dataset)
        return _TimedSamples(iterator, self) if isinstance(self.ocrlab_dataset, IterableDataset) else iterator

    def _timed(self, index: Any, load: Callable[[], Any], count: int = 1) -> Any:
        """Return what `load` returns and write down how long it took: one sample, or `count` of them.

        An error of the log ends the timing, not the loading.
        """
        log, dataset = open_log(self.ocrlab_folder), self.ocrlab_dataset
        if log is None:
            return load()
        entered = time.monotonic()
        log.begin(index)
        began, cpu = time.monotonic(), time.thread_time()
        log.own_seconds += began - entered
        try:
            items = load()
        except StopIteration:
            log.now.beat(phase="")
            raise
        except Exception:
            with contextlib.suppress(Exception):
                name = sample_names.sample_name(dataset, index)
                log.write(["failed", f"{name} (index {index})" if name else f"index {index}"])
            raise
        ended, cpu = time.monotonic(), time.thread_time() - cpu
        try:
            name = sample_names.sample_name(dataset, index, None if count > 1 else items)
            text = f"{count} samples: {str(list(index))[:60]}" if count > 1 else f"index {index}"
            log.end(index, name or text, began, ended - began, cpu, count)
        except Exception as error:
            if raised_by_signal(error):
                raise
            print(f"ocrlab: loading is not timed any more: {error}", file=sys.stderr)
            log.close()
        finally:
            log.own_seconds += time.monotonic() - ended
        return items


class _TimedSamples(Iterator[Any]):
    """An iterator that times each sample; everything else is asked of the one inside."""

    def __init__(self, iterator: Iterator[Any], dataset: TimedDataset) -> None:
        self._iterator, self._dataset, self._number = iterator, dataset, 0

    def __next__(self) -> Any:
        item = self._dataset._timed(self._number, self._iterator.__next__)
        log = open_log(self._dataset.ocrlab_folder) if self._number < MARKED else None
        if log is not None and log.worker >= 0:
            _mark(log, item)
        self._number += 1
        return item

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)


def _mark(log: WorkerLog, item: Any) -> None:
    """Write down what an item of a stream holds: workers that do not share the stream all yield the same."""
    entered = time.monotonic()
    with contextlib.suppress(Exception):  # an item of an unknown type
        digest = hashlib.blake2b(digest_size=8)
        if _digest(item, digest.update):
            log.write(["mark", digest.hexdigest()])
    log.own_seconds += time.monotonic() - entered


def _digest(item: Any, take: Callable[[bytes], object], depth: int = 4) -> bool:
    """Feed what an item holds; tell whether there was something to compare."""
    if depth and isinstance(item, dict | list | tuple):
        parts = item.values() if isinstance(item, dict) else item
        return sum(_digest(part, take, depth - 1) for part in parts) > 0  # all of them, not the first
    if isinstance(item, str | bytes | int | float | bool):
        take(repr(item).encode()[:BYTES])
    elif hasattr(item, "tobytes") or hasattr(item, "untyped_storage"):
        array = item.detach().contiguous().reshape(-1)[:BYTES].numpy() if hasattr(item, "detach") else item
        take(repr(getattr(item, "shape", "")).encode() + bytes(array.tobytes()[:BYTES]))
    else:
        return False
    return True
