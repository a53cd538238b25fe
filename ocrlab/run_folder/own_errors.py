"""What ocrlab's own code fails at beside a user's program, written down with its traceback; standard library only."""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

NAME = "ocrlab-errors.log"
MOST = 1 << 20  # bytes; an error that comes back at each step must not fill a disk


def append_own_error(folder: Path | None, where: str, error: BaseException | str) -> None:
    """Append an error, or its traceback as text, to `flight/ocrlab-errors.log` of a run; never raises.

    A run without a flight folder gets `incident/ocrlab-errors.log`. The file is private: nothing in it is redacted.
    """
    try:
        if folder is None:
            return
        place = folder / "flight" if (folder / "flight").is_dir() else folder / "incident"
        place.mkdir(exist_ok=True)
        details = error if isinstance(error, str) else "".join(traceback.format_exception(error))
        text = f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} process {os.getpid()}, {where}\n{details.rstrip()}\n\n"
        descriptor = os.open(place / NAME, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if os.fstat(descriptor).st_size < MOST:
                os.write(descriptor, text.encode("utf-8", "backslashreplace"))
        finally:
            os.close(descriptor)
    except Exception:
        return


@contextlib.contextmanager
def guarded(folder: Path | None, where: str) -> Iterator[None]:
    """Keep an error of ocrlab's own code away from the user's program, and append it to the log of the run."""
    try:
        yield
    except Exception as error:
        append_own_error(folder, where, error)
