"""Everything that is known of a failure, gathered from outside, as the `Incident` that the diagnosis judges."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import resource
import shutil
import signal
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ocrlab.debug.flight_record import last_position
from ocrlab.debug.watch import error_hook, rank_status
from ocrlab.debug.watch.hang_detector import LOOK_SECONDS
from ocrlab.debug.watch.io_loop import Session
from ocrlab.debug.watch.memory_tracker import OomKillCounters
from ocrlab.hardware.processes import exit_codes, kernel_log, process_tree, stack_dumps
from ocrlab.hardware.processes.process_tree import Process
from ocrlab.records import Incident
from ocrlab.run_folder import heartbeat
from ocrlab.run_folder.fail_safe import guarded

STACK_SECONDS = 1.0
ISA = ("avx", "amx", "fma", "sse4", "f16c", "bmi", "asimd", "sve")  # what an illegal instruction may need
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
LOG, STACKS, KERNEL = "log_tail.txt", "stacks.txt", "kernel_log.txt"


def gather(
    session: Session,
    kills: OomKillCounters,
    scratch: Path,
    status: str,
    ended_by: str | None,
    home: Path | None = None,
    recorded: Path | None = None,
) -> Incident:
    """Return what is known of a program that fails or hangs: output, stacks, kernel log, memory, ranks, hidden errors.

    `home` is the run folder, whose log gets what our own code fails at; `recorded` is the folder of the flight record.
    """
    child, quiet, log = session.child, session.quiet, session.ring.text()
    family = process_tree.descendants(child.pid)
    texts, facts = {LOG: log}, _facts(session, ended_by)
    counted = kills.count()
    if status in ("hung", "suspected") and child.code is None:
        if quiet.sampler is not None:
            quiet.sampler.join(3 * LOOK_SECONDS)  # py-spy stops a process, which our own sampling would report
        taken = stack_dumps.take(process_tree.descendants(child.pid), STACK_SECONDS)
        facts["pids"] = sorted({*facts["pids"], *(stack.process.pid for stack in taken)})
        texts[STACKS] = stack_dumps.text(taken)
        for stack in taken:
            kills.note(stack.process.pid)  # the groups that are its own, for the kernel log
        with guarded(home, "watch: the kind of hang"):
            from ocrlab.debug.diagnosis.hangs import hang_cause

            more = {"stacks_before": quiet.before, "log": log}
            hang = hang_cause.hang_fact(taken, {**facts, **more}, texts[STACKS])
            facts |= {"hang": hang} if hang else {}
    with guarded(home, "watch: the kernel log"):
        kernel_lines = _kernel_log(session, log, kills.own())
        if kernel_lines is not None:
            facts["kernel_log_read"] = True
        if kernel_lines:
            texts[KERNEL] = kernel_lines
            oom_pids = {event.pid for event in kernel_log.events(kernel_lines.splitlines()) if event.pid}
            facts["oom_pids"] = sorted(oom_pids)
    if counted is not None and _is_killed(session, family, log):
        facts["oom_kills"] = counted
    facts |= session.memory.facts()
    with guarded(home, "watch: the end of the flight record"):
        position = last_position.position_text(recorded) if recorded else ""
        facts |= {"record": position} if position else {}
    if status == "failed":
        records = error_hook.read(scratch, home)
        hidden, silent = error_hook.hidden_errors(records, log, child.pid, home)
        texts |= hidden
        facts |= silent | error_hook.failing_values(records, log, child.pid)
        facts["exits"] += error_hook.exits(records, log)
    ranks = rank_status.gather(scratch, quiet.heartbeats, family, log)
    if ranks:
        facts["ranks"], texts[rank_status.FILE] = ranks, rank_status.table(ranks)
        rank_status.keep(scratch, ranks)
    code = child.code
    by_signal = code is not None and code < 0
    return Incident(
        status, None if by_signal else code, exit_codes.signal_of_exit(code) if by_signal else None, texts, "", facts
    )


def _facts(session: Session, ended_by: str | None) -> dict[str, Any]:
    """Return the facts about the program and its machine that need no look at its stacks or at a log."""
    from ocrlab.hardware import host, nvidia_driver  # slow to import, and only a failure needs it

    child, quiet, now = session.child, session.quiet, session.child.ended or time.monotonic()
    facts: dict[str, Any] = {
        "main_pid": child.pid,
        "pids": sorted({child.pid, *quiet.roles, *(ended["pid"] for ended in child.exits)}),
        "exits": [{**ended, "role": quiet.roles.get(ended["pid"], ended["role"])} for ended in child.exits],
        "silent_seconds": round(now - quiet.since, 1),
        "run_seconds": round(now - child.started, 1),
        "ended_by": ended_by,
        "memory_peak_bytes": child.peak_bytes,
        "disk_free_bytes": host.disk_free("").value,
        "fd_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "memory_limit_bytes": host.memory_bytes().value,
        "platform": "wsl2" if "microsoft" in platform.release().lower() else "linux",
        "gpu": nvidia_driver.present(Path("/")),
        "workers": sum(role == "worker" for role in quiet.roles.values()),
        "cpu_flags": sorted(flag for flag in host.cpu_flags() if flag.startswith(ISA)),
    }
    with contextlib.suppress(OSError):  # not mounted
        facts["shm_free_bytes"] = shutil.disk_usage("/dev/shm").free
    last = heartbeat.newest(quiet.heartbeats)
    if last:
        facts["heartbeat"] = {**last, "age": round(now - float(last["time"]), 1)}
    return {name: value for name, value in facts.items() if value is not None}


def _is_killed(session: Session, family: Sequence[Process], log: str) -> bool:
    """Return whether any process of the program may have been killed; else the counters counted another program."""
    child, living = session.child, {process.pid for process in family}
    workers = [pid for pid, role in session.quiet.roles.items() if role in ("main", "worker", "rank")]
    return (
        child.code in (-signal.SIGKILL, 128 + signal.SIGKILL)
        or "Kill" in log
        or any(ended["signal"] == "SIGKILL" for ended in child.exits)
        or (child.code is None and not living.issuperset(workers))
    )


def _kernel_log(session: Session, log: str, groups: Sequence[Path]) -> str | None:
    """Return the lines of the kernel log about the program; None where the log cannot be read."""
    child, quiet = session.child, session.quiet
    pids = {child.pid, *quiet.roles, *(int(ended["pid"]) for ended in child.exits)}
    died = child.code is None or child.code < 0 or child.code > 128 or "signal" in log or "Kill" in log
    died = died or any(ended["signal"] for ended in child.exits)
    names = quiet.names if died else ()  # else an event about such a name is about another program
    return own_kernel_lines(child.started, child.ended or time.monotonic(), pids, names, log, groups)


def own_kernel_lines(
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
    parsed: list[tuple[str, kernel_log.Event | None]] = []
    for number, line in enumerate(log_lines):
        event = next(iter(kernel_log.events([line])), None)
        parsed.append((line, event and replace(event, pid=owners.get(number, event.pid))))
    main, reports_kill, real = min(pids, default=0), STARTED.search(log) is not None, _number_is_real()

    def is_relative(line: str, event: kernel_log.Event) -> bool:
        memcg = MEMCG.search(line)
        if memcg and any(str(group).endswith(memcg[1]) for group in groups):
            return True
        if event.kind != "oom" or event.pid is None or event.pid <= main:
            return False
        is_sibling = event.name in names and any(abs(event.pid - pid) <= NEAR for pid in pids)
        return is_sibling or (reports_kill and event.seconds is not None and abs(event.seconds - ended) <= AT_ONCE)

    ours = {None, *pids, *(event.pid for line, event in parsed if event and is_relative(line, event))}
    mine = [
        line
        for line, event in parsed
        if event is None
        or event.pid in ours
        or re.search(rf"\bpid\W+(?:s\W+)?{event.pid}\b", log)
        or (not real and any(kernel_log.match(event, -1, name, ended) >= SURE for name in names))
    ]
    if not any("oom" in line.lower() for line in mine if not BEGINS.search(line)):
        mine = [line for line in mine if not BEGINS.search(line)]
    return "\n".join(mine)


def _number_is_real() -> bool:
    """Return whether the kernel log knows processes by the numbers that we know; not so in a container."""
    try:
        return os.readlink("/proc/self/ns/pid") == HOST
    except OSError:
        return False
