"""Which lines of the kernel log are about the program: somebody else's kill is no reason for its death."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from ocrlab.hardware.processes import kernel_log

HOST = "pid:[4026531836]"  # the first process namespace, linux/proc_ns.h: there the log's numbers are ours
SURE = 0.5  # from here on an event counts as ours, where only name and time can be compared
AT_ONCE = 1.0  # seconds between the kernel's kill and the end of the program that reports it
NEAR = 2  # between the numbers of two processes that were forked one after the other
MEMCG = re.compile(r"task_memcg=(/[^,\s]+)")
STARTED = re.compile(  # subprocess.py, concurrent/futures/process.py
    r"died with <Signals\.SIGKILL|\bSIGKILL\b|\bKilled\b|(?<![\w.+-])-9(?![\w.-])"
    r"|\b(?:exit\w*|status|code|returned)\b\D{0,20}\b137\b|was terminated abruptly while the future"
)
BEGINS = re.compile(r"invoked oom-killer|\bmemory: usage \d")  # come before the line with the number


def lines(
    since: float, ended: float, pids: Collection[int], names: Collection[str], log: str, groups: Collection[Path] = ()
) -> str | None:
    """Return the lines since a moment on the monotonic clock that name one of our processes, or none at all (a GPU).

    None means that the log cannot be read, which is another thing than a log that says nothing.
    A process that lived too short to be seen counts as ours if the program's own output gives its number, if it was
    killed in a memory group of the program's own (`groups`), or if the program says that what it started was killed.
    """
    log_lines = kernel_log.lines(since).value
    if log_lines is None:
        return None
    ours = {*pids, *_in_groups(log_lines, groups), *_started(log_lines, ended, pids, log)}
    ours |= _siblings(log_lines, pids, names)
    mine = [line for line in log_lines if _ours(line, ended, ours, names, log)]
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


def _in_groups(log_lines: Sequence[str], groups: Collection[Path]) -> set[int]:
    """Return the numbers of those that were killed in a group in which nobody else's processes are."""
    parsed = [(MEMCG.search(line), kernel_log.events([line])) for line in log_lines]
    return {
        events[0].pid
        for memcg, events in parsed
        if memcg and events and events[0].pid and any(str(group).endswith(memcg[1]) for group in groups)
    }


def _siblings(log_lines: Sequence[str], pids: Collection[int], names: Collection[str]) -> set[int]:
    """Return the numbers right beside ours, of the same name: numbers go up by one, and workers are forked in a row."""
    main = min(pids, default=0)
    events = [event for event in kernel_log.events(log_lines) if event.kind == "oom" and event.pid and event.pid > main]
    return {
        event.pid
        for event in events
        if event.pid and event.name in names and any(abs(event.pid - pid) <= NEAR for pid in pids)
    }


def _started(log_lines: Sequence[str], ended: float, pids: Collection[int], log: str) -> Iterator[int]:
    """Yield the numbers that may be of a program which ours started and saw killed: younger than it, and just then."""
    if not STARTED.search(log):
        return
    for event in kernel_log.events(log_lines):
        younger = event.kind == "oom" and event.pid is not None and event.pid > min(pids, default=event.pid)
        if younger and event.pid and event.seconds is not None and abs(event.seconds - ended) <= AT_ONCE:
            yield event.pid


def _number_is_real() -> bool:
    """Tell whether the kernel log knows processes by the numbers that we know; not so in a container."""
    try:
        return os.readlink("/proc/self/ns/pid") == HOST
    except OSError:
        return False
