"""The one proxy around a DataLoader, for the flight recorder and for `watch_dataloader`.

The user's loader and data set stay as they are, except for one attribute of the loader while somebody observes it:
`_get_iterator`, which torch calls for each new iterator; DataLoader has no public hook for that. The proxy makes the
iterator from a copy of the loader, in which each observer has replaced the data set, the collate function and the
worker_init_fn by its own, and lets each observer wrap it.
"""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterDataPipe, MapDataPipe, Subset, get_worker_info


class LoaderProxy:
    """Makes the iterators of a loader for its observers, whose methods raise no errors of their own.

    `prepare(loader)` replaces attributes of the copy, `wrap(make)` returns an iterator around the one that `make`
    returns, or another one in its place.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = weakref.ref(loader)
        self.observers: list[Any] = []

    def __call__(self) -> Iterator[Any]:
        loader: Any = self.loader()
        copied = copy_loader(loader)
        for observer in self.observers:
            observer.prepare(copied)
        make: Callable[[], Iterator[Any]] = functools.partial(_make_iterator, loader, copied)
        for observer in self.observers:
            make = functools.partial(observer.wrap, make)
        return make()


def _make_iterator(loader: Any, copied: Any) -> Iterator[Any]:
    """Return the iterator of a copy; with workers, which have got theirs, it holds the attributes of the loader."""
    iterator: Iterator[Any] = copied._get_iterator()
    if loader.num_workers:
        attributes = getattr(iterator, "__dict__", {})
        own = {f"_{name}": getattr(loader, name) for name in ("dataset", "collate_fn", "worker_init_fn")}
        attributes.update({name: value for name, value in own.items() if name in attributes})
    return iterator


def observe(loader: Any, observer: Any) -> None:
    """Let an observer take part in each new iterator of a loader, until `leave`."""
    proxy = vars(loader).get("_get_iterator")
    if not isinstance(proxy, LoaderProxy):
        proxy = vars(loader)["_get_iterator"] = LoaderProxy(loader)
    proxy.observers.append(observer)


def leave(loader: Any, observer: Any) -> None:
    """Take an observer out of a loader, and out of the iterator that the loader keeps with its persistent workers."""
    attributes = vars(loader)
    proxy = attributes.get("_get_iterator")
    if isinstance(proxy, LoaderProxy) and observer in proxy.observers:
        proxy.observers.remove(observer)
        if not proxy.observers:
            del attributes["_get_iterator"]
    if isinstance(attributes.get("_iterator"), IteratorProxy):
        attributes["_iterator"] = attributes["_iterator"].without(observer)


def copy_loader(loader: Any) -> Any:
    """Return a copy of a loader that nobody observes, with iterators of its own; other iterables are returned as is."""
    if not isinstance(loader, DataLoader):
        return loader
    copied = copy.copy(loader)
    vars(copied).pop("_get_iterator", None)
    vars(copied)["_iterator"] = None
    return copied


def can_proxy(dataset: Any) -> bool:
    """Return whether a proxy can stand for a data set; torch asks data pipes for their class."""
    return not isinstance(dataset, IterDataPipe | MapDataPipe)


class IteratorProxy(Iterator[Any]):
    """An observer's iterator around one of torch's; everything else is asked of that one."""

    def __init__(self, observer: Any, iterator: Any) -> None:
        self._observer, self._iterator = observer, iterator

    def __next__(self) -> Any:
        return next(self._iterator)

    def __len__(self) -> int:
        return len(self._iterator)

    def __getattr__(self, name: str) -> Any:
        if name == "_iterator":  # while a copy is made
            raise AttributeError(name)
        return getattr(self._iterator, name)

    def _reset(self, *args: Any, **kwargs: Any) -> None:
        """Begin another epoch with the workers of a persistent loader, which calls this."""
        self._iterator._reset(*args, **kwargs)

    def without(self, observer: Any) -> Any:
        """Return the iterator without the layers of an observer; None where its workers cannot go on without it."""
        if isinstance(self._iterator, IteratorProxy):
            self._iterator = self._iterator.without(observer)
        return self._iterator if self._observer is observer or self._iterator is None else self


class DatasetProxy:
    """Stands for a data set in the copy of a loader: torch loads through it, attributes are those of the data set."""

    def __init__(self, dataset: Any) -> None:
        self.ocrlab_dataset = dataset

    def __getattr__(self, name: str) -> Any:
        if name == "ocrlab_dataset":  # while a copy is made
            raise AttributeError(name)
        return getattr(self.ocrlab_dataset, name)

    def __len__(self) -> int:
        return len(self.ocrlab_dataset)

    @property
    def __getitems__(self) -> Callable[[Any], Any] | None:
        """`load_batch` where the data set loads whole batches; None where it loads sample by sample."""
        return None if batch_loader(self.ocrlab_dataset) is None else self.load_batch

    def load_batch(self, indices: Any) -> Any:
        """Return the samples of a batch."""
        return self.ocrlab_dataset.__getitems__(indices)


def batch_loader(dataset: Any) -> Any:
    """Return what loads a whole batch of a data set, None for sample by sample."""
    if type(dataset) is Subset and not hasattr(dataset.dataset, "__getitems__"):
        return None  # its own method would load sample by sample, unobserved
    return getattr(dataset, "__getitems__", None)


def show_own_dataset() -> None:
    """In a worker, let get_worker_info() return the user's data set, which a worker_init_fn or the data set changes."""
    info = get_worker_info()
    while info is not None and isinstance(info.dataset, DatasetProxy):
        object.__setattr__(info, "dataset", info.dataset.ocrlab_dataset)  # it is frozen
