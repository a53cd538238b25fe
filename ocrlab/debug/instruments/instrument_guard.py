"""The one guard around what an instrument does inside the user's training: no error of its own reaches it."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ocrlab.debug.instruments.signal_errors import raised_by_signal


class InstrumentGuard:
    """The first error ends the instrument: `problem` names it, a line on stderr says so, and `stop` is called with it.

    An error that a signal handler raised belongs to the program and goes on to it.
    """

    def __init__(self, name: str, stop: Callable[[BaseException], Any] | None = None) -> None:
        self.name, self.stop, self.problem = name, stop, ""

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.handle(error)

    def handle(self, error: Exception) -> None:
        """End the instrument after an error that was caught; raises it where a signal handler did."""
        if raised_by_signal(error):
            raise error
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the instrument after an error of its own."""
        if self.problem:
            return
        self.problem = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
        with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr may be closed
            print(f"ocrlab: {self.name} ended early, the program goes on: {self.problem}{place}", file=sys.stderr)
        if self.stop is not None:
            with contextlib.suppress(Exception):
                self.stop(error)
