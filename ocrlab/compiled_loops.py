"""Loops that numba compiles: imported when they are first needed, since numba alone takes longer to import than ocrlab.

A module of loops is one file each, because numba's cache on disk notices a change of no other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., object])


def entry(signature: Any, **options: Any) -> Callable[[F], F]:
    """Return a decorator that compiles at once, with a cache on disk, or without one where that fails."""
    from numba import njit

    def compile_now(function: F) -> F:
        try:
            return cast(F, njit(signature, cache=True, nogil=True, **options)(function))
        except Exception:  # the cache has no writable folder, the disk is full, or what lies there is broken
            return cast(F, njit(signature, nogil=True, **options)(function))

    return compile_now


def part(**options: Any) -> Callable[[F], F]:
    """Return a decorator for a function that is compiled into the entries which call it."""
    from numba import njit

    return cast(Callable[[F], F], njit(nogil=True, **options))
