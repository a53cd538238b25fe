"""The guard around ocrlab's own code in the user's process: its errors never reach the program, and none is lost.

An error is printed in one line on stderr, is appended with its traceback to a private log, and switches off the part
that it comes from. An error that a signal handler raises belongs to the program and is passed on: torch's handler of
SIGCHLD raises in the main thread, wherever it is, when a loader worker has died; so may a user's. An error of the
program's own kernels, which CUDA reports to whoever calls it next, is written to the log and not printed: the program
gets it, too.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

NAME = "ocrlab-errors.log"
TRACER_NAME = "tracer-errors.txt"  # in the folder of a replay, whose parent appends it to the log of the run
MAX_BYTES = 1 << 20  # an error that comes back at each step must not fill a disk

Method = TypeVar("Method", bound=Callable[..., Any])
_logs: list[Path] = []  # the log of this process
_device_errors: list[Callable[[BaseException], bool]] = []  # what tells an error of the program's kernels


def write_errors_to(log: Path) -> None:
    """Append the errors of this process to a log from now on."""
    _logs[:] = [log.absolute()]


def recognize_device_errors(is_device_error: Callable[[BaseException], bool]) -> None:
    """Take errors of which this is true for those of the program's kernels; asked without torch otherwise."""
    _device_errors[:] = [is_device_error]


def is_device_error(error: BaseException) -> bool:
    """Return whether an error that ocrlab's code met is one of the program's kernels."""
    return any(tells(error) for tells in _device_errors)


def print_message(text: str, name: str = "ocrlab: flight recorder") -> None:
    """Print a line on stderr, if that is still open."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(f"{name}: {text}", file=sys.stderr, flush=True)


def report(error: BaseException, consequence: str, folder: Path | None = None, **name: str) -> None:
    """Print what follows from an error of ocrlab, and append it to the log in `folder`, by default that of the process.

    An error of the program's kernels is only appended. Never raises.
    """
    text = f"{consequence}: {summary(error)}"
    if name or not is_device_error(error):
        print_message(text, **name)
    for log in [folder / NAME] if folder is not None else _logs:
        _append(log, text, error)


def summary(error: BaseException) -> str:
    """Return class and message of an error in one line."""
    return f"{type(error).__name__}: {error}".partition("\n")[0][:300]


def append_own_error(run: Path | None, where: str, error: BaseException | str) -> None:
    """Append an error, or its traceback as text, to `flight/ocrlab-errors.log` of a run; never raises.

    A run without a flight folder gets `incident/ocrlab-errors.log`. The file is private: nothing in it is redacted.
    """
    if run is not None:
        _append(run / ("flight" if (run / "flight").is_dir() else "incident") / NAME, where, error)


def _append(log: Path, where: str, error: BaseException | str) -> None:
    with contextlib.suppress(Exception):
        log.parent.mkdir(exist_ok=True)
        trace = error if isinstance(error, str) else "".join(traceback.format_exception(error))
        text = f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} process {os.getpid()}, {where}\n{trace.rstrip()}\n\n"
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if os.fstat(descriptor).st_size < MAX_BYTES:
                os.write(descriptor, text.encode("utf-8", "backslashreplace"))
        finally:
            os.close(descriptor)


def worker_ended(error: BaseException) -> bool:
    """Return whether torch raised this because a loader worker ended."""
    return isinstance(error, RuntimeError) and "DataLoader worker (pid" in str(error)


def raised_by_signal(error: BaseException) -> bool:
    """Return whether a signal handler raised this."""
    handlers: list[Any] = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in handlers} - {None}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def belongs_to_program(error: BaseException) -> bool:
    """Return whether an error that came up in ocrlab's code is the program's own."""
    return worker_ended(error) or raised_by_signal(error)


@contextlib.contextmanager
def guarded(run: Path | None, where: str) -> Iterator[None]:
    """Append an error of the block to the log of a run instead of raising it."""
    try:
        yield
    except Exception as error:
        append_own_error(run, where, error)


def guard(method: Method) -> Method:
    """Make a method do nothing once its object is off, and switch the object off instead of raising.

    The object has `on`, and `give_up(error)`; or `failed`, `close()` and, where errors of the program's kernels matter
    to others, `on_program_error(error)`.
    """

    @functools.wraps(method)
    def guarded_method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "failed", False) is True or not getattr(self, "on", True):
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            if belongs_to_program(error):
                raise
            if hasattr(self, "give_up"):
                self.give_up(error)
            else:
                self.failed = True
                report(error, f"{type(self).__name__} is switched off")
                with contextlib.suppress(Exception):
                    self.close()
                on_program_error = getattr(self, "on_program_error", None)
                if on_program_error is not None and is_device_error(error):
                    on_program_error(error)
            return None

    return guarded_method  # type: ignore[return-value]


class InstrumentGuard:
    """The guard of an instrument. The first error ends it: `problem` names the error, and `stop` is called with it."""

    def __init__(self, name: str, stop: Callable[[BaseException], Any] | None = None) -> None:
        self.name, self.stop, self.problem = name, stop, ""

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.handle(error)

    def handle(self, error: Exception) -> None:
        """End the instrument after an error that was caught; raises it where it is the program's."""
        if belongs_to_program(error):
            raise error
        self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the instrument after an error of its own."""
        if self.problem:
            return
        self.problem = summary(error)
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
        text = f"{self.name} ended early; the program continues: {self.problem}{place}"
        print_message(text, name="ocrlab")
        for log in _logs:
            _append(log, text, error)
        if self.stop is not None:
            with contextlib.suppress(Exception):
                self.stop(error)
