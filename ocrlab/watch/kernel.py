"""Which lines of the kernel log are about the program: somebody else's kill is no reason for its death."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence

from ocrlab.probes import kernel_log

HOST = "pid:[4026531836]"  # the first process namespace, linux/proc_ns.h: there the log's numbers are ours
SURE = 0.5  # from here on an event counts as ours, where only name and time can be compared
BEGINS = re.compile(r"invoked oom-killer")  # comes before the line with the number


def lines(since: float, ended: float, pids: Collection[int], names: Collection[str], log: str) -> str | None:
    """Return the lines since a moment on the monotonic clock that name one of our processes, or none at all (a GPU).

    None means that the log cannot be read, which is another thing than a log that says nothing.
    A process that lived too short to be seen counts as ours if the program's own output gives its number.
    """
    found = kernel_log.lines(since).value
    if found is None:
        return None
    mine = [line for line in found if _ours(line, ended, pids, names, log)]
    if not any("oom" in line.lower() for line in mine if not BEGINS.search(line)):
        mine = [line for line in mine if not BEGINS.search(line)]
    return "\n".join(mine)


def _ours(line: str, ended: float, pids: Collection[int], names: Collection[str], log: str) -> bool:
    events: Sequence[kernel_log.Event] = kernel_log.events([line])
    if not events or events[0].pid is None:
        return True
    event = events[0]
    if event.pid in pids or re.search(rf"\bpid\W+(?:s\W+)?{event.pid}\b", log):
        return True
    if _number_is_real():
        return False
    return any(kernel_log.match(event, -1, name, ended) >= SURE for name in names)


def _number_is_real() -> bool:
    """Tell whether the kernel log knows processes by the numbers that we know; not so in a container."""
    try:
        return os.readlink("/proc/self/ns/pid") == HOST
    except OSError:
        return False
