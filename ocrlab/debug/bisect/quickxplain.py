"""The smallest part of a list that still fails alone: halves first, then what fails only together (Junker 2004)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Fails = Callable[[list[Item]], bool]
Sure = Callable[[list[Item]], bool]


def smallest(
    items: Sequence[Item], fails: Fails[Item], hint: Sequence[Item] = (), sure: Sure[Item] | None = None
) -> list[Item]:
    """Return a part of `items`, which fail together, that fails, and does not once any one item is left out.

    One of n takes 1.5 log2(n) runs, k that fail only together k log2(n) more. `hint` are items that are tried alone
    first. `sure` is asked about a list of which no half fails: where it is not, the halves are tried anew. What `fails`
    raises ends the search and is passed on.
    """
    left = list(items)
    near = [item for item in left if item in set(hint)]
    if 0 < len(near) < len(left) and fails(near):
        left = near
    while len(left) > 1:
        halves = [left[: len(left) // 2], left[len(left) // 2 :]]
        failing = next((half for half in halves if fails(half)), None)
        if failing is not None:
            left = failing
        elif sure is None or sure(left):
            found = _together(left, fails)
            return [item for item in left if item in found]
    return left


def _together(items: list[Item], fails: Fails[Item]) -> list[Item]:
    """Return what fails only together: the last item of the shortest failing beginning is needed, and so on with it."""
    needed: list[Item] = []
    rest = items
    while rest and not (needed and fails(needed)):
        passing, failing = 0, len(rest)
        while failing - passing > 1:
            middle = (passing + failing) // 2
            if fails([*rest[:middle], *needed]):
                failing = middle
            else:
                passing = middle
        needed, rest = [rest[failing - 1], *needed], rest[: failing - 1]
    return needed
