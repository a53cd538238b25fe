"""The process around a command: signals as exceptions, and a stdout that nothing else writes to."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from ocrlab.cli.parser import json_line


@contextlib.contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Turn SIGINT and SIGTERM into exceptions, so that run folders are closed; yields the numbers of those that came.

    A signal that the caller's shell has switched off (nohup, a background job) stays off, and where this is not the
    main thread the program around it owns the signals.
    """
    came: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    old = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(ValueError):
            if signal.getsignal(number) is not signal.SIG_IGN:
                old[number] = signal.signal(number, stop)
    try:
        yield came
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def prepare_streams() -> None:
    """Open to nowhere what the caller has closed of stdin, stdout and stderr, and let stdout take any file name.

    The next file to be opened would get the number of a closed one, and all that is printed; and a `print` to a closed
    stderr goes to stdout. Linux's file names may hold any bytes, and a terminal's character set may be small.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # as Python's stderr does by itself


def is_answering_process() -> bool:
    """Return whether this process is the one that prints the answer: of several ranks the first one is."""
    return not any(os.environ.get(name, "0") not in ("", "0") for name in ("RANK", "SLURM_PROCID"))


_answers: list[int] = []  # descriptors of the stdout that `outputs_to_stderr` has put aside


def answer_line(record: Any) -> None:
    """Write a line of JSON to the stdout that is kept for answers, for a command that has many; raises OSError."""
    sys.stdout.flush()
    write_line(_answers[-1] if _answers else 1, record)


def write_line(descriptor: int, record: Any) -> None:
    """Hand a whole line of JSON to the operating system, so that one who is killed leaves whole lines."""
    data = memoryview(json_line(record))
    while data:
        data = data[os.write(descriptor, data) :]


@contextlib.contextmanager
def outputs_to_stderr(really: bool) -> Iterator[None]:
    """Send everything that is written to stdout to stderr instead, also by C code and by child processes."""
    if not really:
        yield
        return
    sys.stdout.flush()
    try:
        saved = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # started without a stdout or stderr
        saved = None
    _answers.extend([saved] if saved is not None else [])
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if saved is not None:
            _answers.pop()
            os.dup2(saved, 1)
            os.close(saved)
