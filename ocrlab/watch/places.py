"""Where the threads of a program stand: samples of their Python frames in a silence, and whether they went on.

A loop that spins goes round in one place; a program that works is seen in one function of its own and then in another,
or leaves a line for good.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Sequence

from ocrlab.probes import pyspy
from ocrlab.probes.frames import Thread
from ocrlab.probes.tree import Process

LOOKED_AT = ("main", "rank", "worker")
PROCESSES = 4  # of a program; a sample of each costs 25 ms of CPU
SURE = 4  # samples of each half of a silence, so that not one branch of a small loop is taken for the whole
STDLIB = re.compile(r"<frozen|.*/lib(?:64)?/python\d[\d.]*/(?!site-packages/|dist-packages/)")  # of any Python
IMPORTS = re.compile(r"<frozen importlib|.*/python\d[\d.]*/importlib/")

Call = tuple[str, str, int]  # function, file, line
Path = tuple[Call, ...]  # outermost first
Seen = dict[tuple[int, int], list[Path]]  # by process and thread, in order


def sample(family: Sequence[Process], seen: Seen, end: float) -> None:
    """Add to `seen` where the main processes stand now; ends at `end` on the monotonic clock."""
    chosen = [process for process in family if process.role in LOOKED_AT and process.state not in "TtDZ"]
    for process in chosen[:PROCESSES]:
        if time.monotonic() < end:
            for thread in pyspy.dump(process, end)[0]:
                seen.setdefault((process.pid, thread.id), []).append(_path(thread))


def moved(seen: Seen) -> bool:
    """Tell whether a thread was seen in two places of the program, or left one for good."""
    return any(_branches(paths) or _left(paths) for paths in seen.values())


def _branches(paths: Sequence[Path]) -> bool:
    """Tell whether one caller was seen in two different functions of the program itself.

    A loop that waits calls the same thing again and again; what the standard library does inside is no matter.
    """
    known = sorted({tuple((function, file) for function, file, _ in _own(path)) for path in paths})
    return any(not _nested(a, b) for a, b in itertools.pairwise(known))


def _left(paths: Sequence[Path]) -> bool:
    """Tell whether the second half of the samples has nothing in common with the first, line by line."""
    half = len(paths) // 2
    return half >= SURE and not _nested(_common(paths[:half]), _common(paths[half:]))


def _own(path: Path) -> Path:
    """Return a path up to where the program first calls the standard library, which may also be what runs it.

    An import is no such call: what it runs is the program again.
    """
    path = tuple(call for call in path if not IMPORTS.match(call[1]))
    inside = [not STDLIB.match(file) for _, file, _ in path]
    begin = inside.index(True) if True in inside else 0
    return path[: inside.index(False, begin) if False in inside[begin:] else len(path)]


def _path(thread: Thread) -> Path:
    return tuple((frame.function, frame.file, frame.line) for frame in reversed(thread.frames))


def _common(paths: Sequence[Path]) -> Path:
    """Return the calls that all paths begin with."""
    first, last = min(paths), max(paths)
    depth = 0
    while depth < len(first) and depth < len(last) and first[depth] == last[depth]:
        depth += 1
    return first[:depth]


def _nested(a: tuple[object, ...], b: tuple[object, ...]) -> bool:
    depth = min(len(a), len(b))
    return a[:depth] == b[:depth]
