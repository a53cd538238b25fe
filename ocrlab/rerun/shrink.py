"""The smallest part of a list that still fails alone: delta debugging (Zeller and Hildebrandt 2002, ddmin)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Fails = Callable[[list[Item]], bool]


def smallest(items: Sequence[Item], fails: Fails[Item], hint: Sequence[Item] = ()) -> list[Item]:
    """Return a part of `items`, which fail together, that fails, and does not once any one item is left out.

    `hint` are items that are tried alone first. What `fails` raises ends the search and is passed on.
    """
    left = list(items)
    near = [item for item in left if item in set(hint)]
    if 0 < len(near) < len(left) and fails(near):
        left = near
    parts = 2
    while len(left) > 1:
        chunks = _split(left, parts)
        rests = [[item for other in chunks if other is not chunk for item in other] for chunk in chunks]
        failing = next((chunk for chunk in chunks if fails(chunk)), None)
        if failing is not None:
            left, parts = failing, 2
            continue
        rest = next((rest for rest in rests if fails(rest)), None) if parts > 2 else None
        if rest is not None:
            left, parts = rest, parts - 1
        elif parts < len(left):
            parts = min(len(left), 2 * parts)
        else:
            break
    return left


def each_alone(items: Sequence[Item], fails: Fails[Item], hint: Sequence[Item] = ()) -> Iterator[list[Item]]:
    """Yield every part that `smallest` finds when what it found is taken out again and again, while the rest fails."""
    left = list(items)
    while True:
        found = smallest(left, fails, hint)
        yield found
        left = [item for item in left if item not in found]
        if not left or not fails(left):
            return


def _split(items: list[Item], parts: int) -> list[list[Item]]:
    edges = [len(items) * part // parts for part in range(parts + 1)]
    return [items[a:b] for a, b in itertools.pairwise(edges) if b > a]
