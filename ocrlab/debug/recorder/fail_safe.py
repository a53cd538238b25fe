"""No error of the recorder reaches the training: it is said once, and the recorder is off from then on."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


def harmless(method: Method) -> Method:
    """Let a method of a Tape do nothing once it is off, and switch it off instead of raising."""

    @functools.wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.on:
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            self.give_up(error)
            return None

    return guarded  # type: ignore[return-value]


def say(text: str) -> None:
    """Say something about the recorder on stderr, if that is still there."""
    try:
        print(f"ocrlab: flight recorder: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        return
