"""A module hook that copies and pickles of the module do not take along, so that `torch.save(model)` still works."""

from __future__ import annotations

import contextlib
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
