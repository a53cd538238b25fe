"""The samples of a stream's batch, in a replay: they travel beside it, so that others can be put together of them."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data._utils.pin_memory import pin_memory

from ocrlab.debug.instruments import sample_names
from ocrlab.debug.recorder import rng_state

MOST = 64 << 20  # bytes of a batch's samples


class BatchWithSamples:
    """A batch, and what it was made of, pickled: tensors by value, no shared memory."""

    def __init__(self, data: Any, samples: bytes) -> None:
        self.data, self.samples = data, samples

    def pin_memory(self) -> BatchWithSamples:
        """Return it with the batch in page-locked memory (called by DataLoader)."""
        return BatchWithSamples(pin_memory(self.data), self.samples)


class SampleKeepingCollate:
    """The user's collate function, whose samples are kept from the batch `first` of a worker on."""

    def __init__(self, collate: Callable[[Any], Any], first: int) -> None:
        self.collate, self.first, self.count = collate, first, 0

    def __call__(self, samples: Any) -> Any:
        self.count += 1
        pickled = b""
        if self.count > self.first and isinstance(samples, list):
            with contextlib.suppress(Exception):  # what cannot be pickled is not kept
                pickled = _pickled(samples)
        return BatchWithSamples(self.collate(samples), pickled)


class Pickler(pickle.Pickler):
    """Pickles tensors by value: torch's own way would share memory, or ask `torch.save`, which a replay keeps away."""

    def reducer_override(self, value: Any) -> Any:
        """Return how a tensor is made again (called by pickle)."""
        if not isinstance(value, Tensor):
            return NotImplemented
        file = io.BytesIO()
        torch.serialization.save(value, file)
        return tensor, (file.getvalue(),)


def tensor(data: bytes) -> Any:
    """Return a tensor of its bytes."""
    return torch.serialization.load(io.BytesIO(data), weights_only=True)


def _pickled(samples: list[Any]) -> bytes:
    """Return samples as bytes; none where they are too many."""
    file = io.BytesIO()
    Pickler(file, pickle.HIGHEST_PROTOCOL).dump(samples)
    return file.getvalue() if file.tell() <= MOST else b""


def keep_samples(loader: Any, first: int) -> Any:
    """Return a copy of a DataLoader over a stream that gives a `Beside` for each batch, from position `first` on."""
    copied = copy.copy(loader)
    of_worker = first // max(loader.num_workers, 1) - 1  # streams of unequal length shift it
    copied.__dict__["collate_fn"] = SampleKeepingCollate(loader.collate_fn, max(of_worker, 0))
    return copied


def parts(collate: Callable[[Any], Any], pickled: bytes) -> tuple[list[str], Callable[[Sequence[int]], Any]] | None:
    """Return the names of the samples of a batch, and what puts a batch together of some of them; None without any."""
    if not pickled:
        return None

    def make(positions: Sequence[int]) -> Any:
        before, samples = rng_state.take(cuda=False), pickle.loads(pickled)
        try:
            return collate([samples[position] for position in positions])
        finally:
            rng_state.restore(before)

    called = []
    for position in range(len(pickle.loads(pickled))):
        carried: list[str] = []
        with contextlib.suppress(Exception):  # a batch of one need not be possible
            carried = sample_names.batch_names(make([position]))
        called.append(carried[0] if len(carried) == 1 else f"sample {position} of the batch")
    return called, make
