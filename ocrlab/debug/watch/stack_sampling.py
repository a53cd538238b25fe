"""Where the threads of a program stand: samples of their Python frames in a silence, and whether they went on.

A loop that spins goes round in one place; a program that works is seen in one function of its own and then in another,
leaves a line for good, or counts on in a function that calls another one: the steps of an epoch.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import commonprefix

from ocrlab.hardware.processes import pyspy
from ocrlab.hardware.processes.process_tree import Process
from ocrlab.hardware.processes.stack_types import Thread

LOOKED_AT = ("main", "rank", "worker")
PROCESSES = 4  # of a program; a sample of each costs 25 ms of CPU
SURE = 4  # samples of each half of a silence, so that not one branch of a small loop is taken for the whole
STDLIB = re.compile(r"<frozen|.*/lib(?:64)?/python\d[\d.]*/(?!site-packages/|dist-packages/)")  # of any Python
RISES = 5  # times in a row that a counter must grow: of values drawn at random one row in 720 does so
BURST, APART = 6, 0.05  # samples, seconds apart: counters of short loops start again and again
NUMBER = re.compile(r"-?\d{1,18}")
IMPORTS = re.compile(r"<frozen importlib|.*/python\d[\d.]*/importlib/")

Call = tuple[str, str, int]  # function, file, line
Path = tuple[Call, ...]  # outermost first
Counts = dict[tuple[int, str, str], int]  # of whole numbers, by depth, function and name, in the callers of others


@dataclass(frozen=True)
class Place:
    """Where one thread stood, and what its callers had counted, if it was using the CPU."""

    path: Path
    counts: Counts


Samples = dict[tuple[int, int], list[Place]]  # by process and thread, in order


def sample(family: Sequence[Process], samples: Samples, end: float, times: int = 1) -> None:
    """Add to `samples` where the main processes stand now; ends at `end` on the monotonic clock.

    With `times` what they count is looked at again, soon after.
    """
    chosen = [process for process in family if process.role in LOOKED_AT and process.state not in "TtDZ"]
    for turn in range(times):
        time.sleep(APART if turn else 0)
        for process in chosen[:PROCESSES]:
            if time.monotonic() < end:
                for thread in pyspy.dump(process, end)[0]:
                    place = _place(thread)
                    again = Place((), place.counts)  # paths are compared over the whole silence, at even distances
                    samples.setdefault((process.pid, thread.id), []).append(again if turn else place)


def moved(samples: Samples) -> bool:
    """Return whether a thread was seen in two places of the program, left one for good, or counts on in a caller."""
    for places in samples.values():
        paths = [place.path for place in places if place.path]
        # A loop that waits calls the same thing again and again; what the standard library does inside does not matter.
        own_paths = sorted({tuple((function, file) for function, file, _ in _own(path)) for path in paths})
        branches = any(not _nested(a, b) for a, b in itertools.pairwise(own_paths))
        half = len(paths) // 2
        first, second = commonprefix(paths[:half]), commonprefix(paths[half:])  # noqa: RUF071  # of calls, not of text
        if branches or (half >= SURE and not _nested(first, second)) or _counts_on(places):
            return True
    return False


def _counts_on(places: Sequence[Place]) -> bool:
    """Return whether a whole number in a calling function has grown again and again, as the variable of a loop does.

    What the innermost function counts proves nothing: a loop that never ends can count as well.
    """
    rises: Counts = {}
    last: Counts = {}
    for place in places:
        for name in set(last) | set(place.counts):
            old, now = last.get(name), place.counts.get(name)
            if now is None or (old is not None and now < old):
                rises[name] = 0
            elif old is not None and now > old:
                rises[name] = rises.get(name, 0) + 1
        last = place.counts
        if max(rises.values(), default=0) >= RISES:
            return True
    return False


def _own(path: Path) -> Path:
    """Return a path up to where the program first calls the standard library, which may also be what runs it.

    An import does not count: what it runs is the program again.
    """
    path = tuple(call for call in path if not IMPORTS.match(call[1]))
    inside = [not STDLIB.match(file) for _, file, _ in path]
    begin = inside.index(True) if True in inside else 0
    return path[: inside.index(False, begin) if False in inside[begin:] else len(path)]


def _place(thread: Thread) -> Place:
    path = tuple((frame.function, frame.file, frame.line) for frame in reversed(thread.frames))
    if not (thread.active or thread.gil):  # who sleeps between two tries waits for something
        return Place(path, {})
    callers = set(_own(path)[:-1])
    counts = {
        (depth, call[0], name): int(value)
        for depth, (call, frame) in enumerate(zip(path, reversed(thread.frames), strict=True))
        if call in callers
        for name, value in frame.state.items()
        if NUMBER.fullmatch(value)
    }
    return Place(path, counts)


def _nested(a: Sequence[object], b: Sequence[object]) -> bool:
    depth = min(len(a), len(b))
    return a[:depth] == b[:depth]
