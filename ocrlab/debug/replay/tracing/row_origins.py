"""Whose sample a row of a batch is, where a collate function leaves samples out or makes several rows of one.

The first samples are put together once more, some of them: a row belongs to the one with which it appears. What is put
together so must be the beginning of the batch. Shapes: B rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ocrlab.debug.instruments import batch_tree as traced_batch

Make = Callable[[Sequence[int]], Any]
Length = Callable[[int], int | None]


def name_rows(rows: Sequence[int], batch: Any, count: int, names: Sequence[str], make: Make) -> list[str] | None:
    """Return the names of the samples of which `rows` of a batch are made; None where that cannot be told.

    `make` puts together some of the samples that have `names`. Where a part of the batch is not its beginning (mixtures
    are drawn), one with a row for each sample is taken to have them in their order.
    """
    number = len(names)
    plain = [names[row] for row in rows] if count == number else None
    if number == 1:
        return list(names)

    @functools.cache
    def length(first: int) -> int | None:
        return count if first == number else _length(make, first, batch, count)

    origins: list[int] = []
    for row in rows:
        origin = _origin(row, number, length, [row, row + 1] if plain else [])
        if origin is None:
            return plain
        origins += [origin] if origin not in origins else []
    if any(not _is_missed(make, sample, number, count, length) for sample in origins):
        return plain
    return [names[sample] for sample in origins]


def _origin(row: int, number: int, length: Length, guesses: Sequence[int]) -> int | None:
    """Return the sample with which a row appears; `guesses` are how many of the first are tried before halves."""
    first, last = 0, number
    while last - first > 1:
        middle = next((guess for guess in guesses if first < guess < last), (first + last) // 2)
        rows = length(middle)
        if rows is None:
            return None
        first, last = (first, middle) if rows > row else (middle, last)
    return first


def _length(make: Make, first: int, batch: Any, count: int) -> int | None:
    """Return how many rows the first samples make, None where those are not the first of the batch."""
    if not first:
        return 0
    try:
        part = make(range(first))
    except Exception:  # it refuses an empty list, as all of them are left out
        return 0
    rows = traced_batch.batch_size(part) or 0
    return rows if not rows or traced_batch.is_start_of(part, rows, batch, count) else None


def _is_missed(make: Make, sample: int, number: int, count: int, length: Length) -> bool:
    """Tell whether a batch without a sample has as many rows less as it is thought to make."""
    try:
        without = traced_batch.batch_size(make([other for other in range(number) if other != sample]))
    except Exception:
        return False
    return (without or 0) == count - (length(sample + 1) or 0) + (length(sample) or 0)
