"""Hooks of modules that copies and pickles of the module do not take along, and what a thread has entered."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any


class CallHook:
    """A hook for `Module.register_forward_hook` and its relatives, which calls `call` with the hook's arguments."""

    def __init__(self, call: Callable[..., None]) -> None:
        self.call = call

    def __call__(self, *args: Any) -> None:
        self.call(*args)

    def __reduce__(self) -> Any:
        """Return what a copy gets: a function of the standard library that does nothing, importable without ocrlab."""
        return getattr, (contextlib.nullcontext(), "__exit__")


class ThreadStack(threading.local):
    """What each thread has entered and not left, the innermost last: replicas of a model run in threads."""

    def __init__(self) -> None:
        self.entered: list[Any] = []
