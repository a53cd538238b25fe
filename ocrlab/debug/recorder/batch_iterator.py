"""What a loop gets in place of its loader: each `for` over it is another walk, and an iterator it is too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any


class BatchIterator:
    """The batches of a loader; `begin` returns the iterator of one walk over it."""

    def __init__(self, begin: Callable[[Iterable[Any]], Iterator[Any]], loader: Iterable[Any]) -> None:
        self.begin, self.loader = begin, loader
        self.walk: Iterator[Any] | None = None  # of those that ask by `next`

    def __iter__(self) -> Iterator[Any]:
        walk, self.walk = self.walk, None  # it goes on where `next` has come to, once
        return self.begin(self.loader) if walk is None else walk

    def __next__(self) -> Any:
        if self.walk is None:
            self.walk = self.begin(self.loader)
        return next(self.walk)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]  # TypeError for one without, as of the loader itself

    def close(self) -> None:
        """End the walk of those that ask by `next`."""
        if self.walk is not None:
            self.walk.close()  # type: ignore[attr-defined]  # a generator
