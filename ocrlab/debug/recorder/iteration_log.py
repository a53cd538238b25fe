"""Loaders whose batches have no indices: iterable data sets, generators, lists. A batch is known by its position.

To make it again a replay puts the random states back to those before the walk, and walks to the position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ocrlab.debug.recorder import rng_state
from ocrlab.debug.recorder.dataset_proxy import BatchOrigin
from ocrlab.errors import DataError
from ocrlab.records import from_json
from ocrlab.run_folder.atomic_files import write_json

STORED_PASSES = 32  # walks whose beginning is kept
BEGINNING, IMPORT = -1, -2  # in place of a walk's number: where the recorder began, and where it was imported
NAMES = {BEGINNING: "beginning", IMPORT: "import"}
ORDER = {"kind": "walk"}


class CountingLoader:
    """A loader of any kind whose batches are counted; everything else is asked of the loader itself."""

    def __init__(
        self,
        loader: Iterable[Any],
        on_walk: Callable[[int], None] | None = None,
        on_batch: Callable[[Any, BatchOrigin], None] | None = None,
        may_begin: Callable[[], bool] = lambda: True,
    ) -> None:
        self.loader, self.on_walk, self.on_batch = loader, on_walk, on_batch
        self.may_begin = may_begin  # tells whether a replay may begin with the next batch
        self.now = BatchOrigin()  # the batch at hand
        self.walk = -1

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]  # TypeError for one without, as of the loader itself

    def begin(self) -> BatchOrigin:
        """Begin a walk; returns what will be told of its batches."""
        self.walk += 1
        self.now = BatchOrigin(ORDER, walk=self.walk)
        if self.on_walk is not None:
            self.on_walk(self.walk)
        return self.now

    def __iter__(self) -> Iterator[Any]:
        now = self.begin()
        iterator = iter(self.loader)
        while True:
            # With a later batch the replay has drawn what the run has, as it goes on from its first one.
            states = rng_state.take(cuda=False) if now.position < 0 or self.may_begin() else {}
            try:
                batch = next(iterator)
            except StopIteration:
                return
            now.states = states
            now.position += 1
            if self.on_batch is not None:
                self.on_batch(batch, now)
            yield batch

    def holds(self, loader: Any) -> bool:
        """Tell whether this is the loader whose batches are counted."""
        return self.loader is loader

    def take_origin(self) -> BatchOrigin:
        """Return what is known of the batch that came last."""
        return self.now

    def stop(self) -> None:
        """Nothing has to be taken out of the loader."""


def save_states(folder: Path, rank: int, start: int, walk: int, states: Any = None) -> None:
    """Write down the random states before a walk, those of now where no others are given; raises OSError."""
    states = {name: state.hex() for name, state in (states or rng_state.take(cuda=False)).items()}
    content = {"schema": 1, "start": start, "walk": walk, "states": states}
    write_json(_file(folder, rank, walk), content, private=True)


def load_states(folder: Path, rank: int, start: int, walk: int) -> dict[str, bytes]:
    """Return the random states before a walk; raises DataError where they were not kept."""
    path = _file(folder, rank, walk)
    try:
        content = from_json(path.read_bytes(), source=str(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read", got=str(error)) from error
    if (content["start"], content["walk"]) != (start, walk):
        raise DataError(f"{path} is of another walk over the data", got=content["walk"], need=walk)
    return {name: bytes.fromhex(state) for name, state in content["states"].items()}


def _file(folder: Path, rank: int, walk: int) -> Path:
    return folder / f"walk-{rank}-{NAMES.get(walk, walk % STORED_PASSES)}.json"


def has_states(folder: Path, rank: int, start: int, walk: int) -> bool:
    """Tell whether the random states before a walk were kept."""
    try:
        load_states(folder, rank, start, walk)
    except DataError:
        return False
    return True
