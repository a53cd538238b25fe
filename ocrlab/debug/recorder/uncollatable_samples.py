"""Which samples of a batch keep it from being put together: those that cannot be alone, or fit to no other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ocrlab.debug.recorder import rng_state

REFERENCES = 3  # samples with which each other one is put together: of a majority that fits, one is soon met


def find_uncollatable(collate: Callable[[Any], Any], samples: Sequence[Any]) -> list[int]:
    """Return the positions of the samples without which the others can be collated; empty where that does not tell."""
    states, count = rng_state.take(cuda=False), len(samples)
    takes = lambda chosen: _takes(collate, [samples[position] for position in chosen], states)  # noqa: E731
    bad = [position for position in range(count) if not takes([position])]
    if bad:
        return bad if len(bad) < count else []
    for first in range(min(REFERENCES, count)):
        odd = [position for position in range(count) if position != first and not takes([first, position])]
        if 0 < 2 * len(odd) < count and takes([position for position in range(count) if position not in odd]):
            return odd
    return []


def _takes(collate: Callable[[Any], Any], chosen: list[Any], states: Mapping[str, bytes]) -> bool:
    rng_state.restore(states)  # it may draw
    with contextlib.suppress(Exception):
        collate(chosen)
        return True
    return False
