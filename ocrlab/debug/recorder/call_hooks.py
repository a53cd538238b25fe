"""One guard of what looks at the calls of the user's model."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any


def harmless(look: Callable[..., None]) -> Callable[..., None]:
    """Let a look at a call of the user's model end for good, with a word on stderr, instead of raising into it.

    It is a method; what it belongs to has `close`, which takes its hooks out, and `failed`, which is set then.
    """

    @functools.wraps(look)
    def looked(self: Any, *args: Any) -> None:
        if self.failed:
            return
        try:
            look(self, *args)
        except Exception as error:
            self.failed = True
            text = f"{type(self).__name__.lower()} are no longer looked at: {type(error).__name__}: {error}"
            with contextlib.suppress(OSError, ValueError, AttributeError):
                print(f"ocrlab: flight recorder: {text.splitlines()[0][:300]}", file=sys.stderr, flush=True)
            with contextlib.suppress(Exception):
                self.close()

    return looked
