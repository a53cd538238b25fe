"""Which code is the user's: neither Python's, nor an installed package's, nor an instrument's; by the file's name."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator
from itertools import islice
from types import FrameType

INSTRUMENTS = os.path.dirname(os.path.realpath(__file__)) + os.sep
FOREIGN = re.compile(
    r"/(?:site|dist)-packages/|/lib/python\d[\d.]*t?/|^<(?!string>|stdin>|ipython|isolated)"
    r"|(?:^|/)ocrlab/(?:debug/(?:flight_record|instruments|laws|recorder|replay)|run_folder)/"
)


@functools.lru_cache(maxsize=4096)
def is_own(file: str) -> bool:
    """Return whether a file is the user's; a notebook cell and `python -c` are, too."""
    return not FOREIGN.search(file)


@functools.cache
def is_own_class(kind: type) -> bool:
    """Return whether a class is defined in the user's code."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ == "__main__" or (bool(file) and is_own(str(file)))


def own_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and its callers as far as they run the user's code, the innermost first."""
    while frame is not None:
        if is_own(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def own_stack() -> tuple[str, ...]:
    """Return up to eight of the user's lines of this thread, the innermost first: `file:line function`."""
    frames = islice(own_frames(sys._getframe(1)), 8)
    return tuple(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}" for frame in frames)
