"""Which lines of the kernel log are about the program: the kill of another program explains nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import replace
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

    None means that the log cannot be read; a log without such lines is empty.
    A process that lived too short to be seen counts as ours if the program's own output gives its number, if it was
    killed in a memory group of the program's own (`groups`), if its number and name fit to a worker that was forked
    right before or after it, or if the program reports at that moment that what it started was killed.
    """
    log_lines = kernel_log.lines(since).value
    if log_lines is None:
        return None
    owners = kernel_log.xid_owners(log_lines)
    parsed = []
    for number, line in enumerate(log_lines):
        event = next(iter(kernel_log.events([line])), None)
        parsed.append((line, event and replace(event, pid=owners.get(number, event.pid))))
    main, reports_kill = min(pids, default=0), STARTED.search(log) is not None

    def is_relative(line: str, event: kernel_log.Event) -> bool:
        memcg = MEMCG.search(line)
        if memcg and any(str(group).endswith(memcg[1]) for group in groups):
            return True
        if event.kind != "oom" or event.pid is None or event.pid <= main:
            return False
        if event.name in names and any(abs(event.pid - pid) <= NEAR for pid in pids):
            return True
        return reports_kill and event.seconds is not None and abs(event.seconds - ended) <= AT_ONCE

    def is_ours(event: kernel_log.Event | None) -> bool:
        if event is None or event.pid is None or event.pid in ours:
            return True
        if re.search(rf"\bpid\W+(?:s\W+)?{event.pid}\b", log):
            return True
        return not real and any(kernel_log.match(event, -1, name, ended) >= SURE for name in names)

    ours = {*pids, *(event.pid for line, event in parsed if event and is_relative(line, event))}
    real = _number_is_real()
    mine = [line for line, event in parsed if is_ours(event)]
    if not any("oom" in line.lower() for line in mine if not BEGINS.search(line)):
        mine = [line for line in mine if not BEGINS.search(line)]
    return "\n".join(mine)


def _number_is_real() -> bool:
    """Return whether the kernel log knows processes by the numbers that we know; not so in a container."""
    try:
        return os.readlink("/proc/self/ns/pid") == HOST
    except OSError:
        return False
