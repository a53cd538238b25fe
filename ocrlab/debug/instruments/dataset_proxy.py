"""A stand-in for a data set, which looks like it to torch and to the user; subclasses watch what is loaded.

An instrument puts it in the place of the data set while an iterator of a DataLoader is made. The data set itself and
its class are never changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import Subset


class DatasetProxy:
    """Everything of `dataset` but what a subclass overrides: attributes are read from it and written to it."""

    def __init__(self, dataset: Any) -> None:
        object.__setattr__(self, "ocrlab_dataset", dataset)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # `isinstance(proxy, TheirDataset)` holds, also in a worker_init_fn
        return type(self.ocrlab_dataset)

    def __getattr__(self, name: str) -> Any:
        if name == "ocrlab_dataset":  # while a copy is made
            raise AttributeError(name)
        return getattr(self.ocrlab_dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.ocrlab_dataset, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.ocrlab_dataset, name)

    def __len__(self) -> int:
        return len(self.ocrlab_dataset)

    @property
    def __getitems__(self) -> Callable[[Any], Any] | None:
        """What loads a whole batch, `load_batch` of the subclass; None where samples are loaded one by one."""
        dataset = self.ocrlab_dataset
        if type(dataset) is Subset and not hasattr(dataset.dataset, "__getitems__"):
            return None  # it would load one by one, too, and could not be watched
        return self.load_batch if getattr(dataset, "__getitems__", None) else None

    def load_batch(self, indices: Any) -> Any:
        """Return the samples of a batch."""
        return self.ocrlab_dataset.__getitems__(indices)
