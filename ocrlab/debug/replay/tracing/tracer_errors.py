"""What the tracer of a replay fails at: a line on stderr, and the traceback in a file of the replay's folder.

The parent appends it to the log of the run, which is not written to in here.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

NAME = "tracer-errors.txt"
_folder: list[Path] = []


def write_into(folder: Path) -> None:
    """Write the errors of this process into a folder from now on."""
    _folder[:] = [folder]


def report(what: str, error: BaseException) -> None:
    """Say that the tracer failed; never raises."""
    try:
        print(f"ocrlab replay: {what}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        for folder in _folder:
            with (folder / NAME).open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{what}\n{''.join(traceback.format_exception(error))}\n")
    except Exception:
        return
