"""An exception as the record that explains it when the process is gone."""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path
from typing import Any

TRACEBACK_LIMIT = 64_000  # characters; the head shows where it began, the tail what went wrong
PACKAGE = Path(__file__).parents[1]


def describe(error: BaseException) -> dict[str, Any]:
    """Return an exception as `RunRecord.error`: type, message, innermost frame, innermost frame of your own code."""
    kind = type(error)
    try:
        message = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
    except Exception as problem:
        message = f"it has no text: {type(problem).__name__}"
    if isinstance(error, SystemExit):
        message = f"exit status {error.code}"
    frames = [(f.f_code.co_filename, line, f.f_code.co_name) for f, line in traceback.walk_tb(error.__traceback__)]
    installed = (
        "<frozen",
        *{sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    )
    yours = [each for each in frames if each[0].startswith(f"{PACKAGE}{os.sep}") or not each[0].startswith(installed)]
    text = "".join(traceback.format_exception(kind, error, error.__traceback__))
    if len(text) > TRACEBACK_LIMIT:
        half = TRACEBACK_LIMIT // 2
        text = f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
    return {
        "type": kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}",
        "message": message,
        "where": _place(frames),
        "your_code": _place(yours),  # ocrlab's own frames count as yours
        "traceback": text,
    }


def _place(frames: list[tuple[str, int, str]]) -> str | None:
    return "{}:{} {}".format(*frames[-1]) if frames else None
