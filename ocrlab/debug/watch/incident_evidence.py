"""Everything that is known of a failure, gathered from outside, as the `Incident` that the diagnosis judges."""

from __future__ import annotations

import contextlib
import platform
import resource
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ocrlab.debug.flight_record import last_position
from ocrlab.debug.watch import error_hook, kernel_log_filter, rank_status
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
        values = error_hook.failing_values(records, log, child.pid)
        texts, facts = {**texts, **hidden}, {**facts, **silent, **values}
        facts["exits"] = [*facts["exits"], *error_hook.exits(records, log)]
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
    return kernel_log_filter.lines(child.started, child.ended or time.monotonic(), pids, names, log, groups)
