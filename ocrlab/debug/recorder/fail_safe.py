"""One guard of everything that runs in the user's process: no error of ours reaches it, and none is lost.

An error is said in one line on stderr, appended with its traceback to `flight/ocrlab-errors.log`, and switches off the
part that it comes from.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ocrlab.run_folder.own_errors import append_own_error

Method = TypeVar("Method", bound=Callable[..., Any])
_folders: list[Path] = []  # the flight/ of the recording that began last


def write_errors_to(folder: Path) -> None:
    """Have errors appended to the log in this flight/ from now on."""
    _folders[:] = [folder.absolute()]


def guard(method: Method) -> Method:
    """Let a method of a part do nothing once that is off, and switch it off instead of raising.

    A part has `on`, and `give_up(error)`; or `failed`, and `close()`.
    """

    @functools.wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "failed", False) is True or not getattr(self, "on", True):
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            if worker_ended(error):
                raise
            if hasattr(self, "give_up"):
                self.give_up(error)
            else:
                self.failed = True
                report(error, f"{type(self).__name__.lower()} are no longer looked at")
                with contextlib.suppress(Exception):
                    self.close()
            return None

    return guarded  # type: ignore[return-value]


def worker_ended(error: BaseException) -> bool:
    """Tell whether torch raised because a loader's worker ended: its signal handler does, wherever the process is, so
    that this error is the program's to know.
    """
    return isinstance(error, RuntimeError) and "DataLoader worker (pid" in str(error)


def report(error: BaseException, consequence: str, folder: Path | None = None) -> None:
    """Say in one line what follows from an error of ours, and append it to the log of a flight/; never raises."""
    summary = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    print_message(f"{consequence}: {summary}")
    for place in [folder] if folder is not None else _folders:
        append_own_error(place.parent, f"{consequence}: {summary}", error)


def print_message(text: str) -> None:
    """Say something about the recorder on stderr, if that is still there."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(f"ocrlab: flight recorder: {text}", file=sys.stderr, flush=True)
