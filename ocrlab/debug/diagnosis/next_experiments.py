"""What is left to find out where `ocrlab watch` has seen the failure: watching it again tells nothing new."""

from __future__ import annotations

from dataclasses import replace

from ocrlab.debug.diagnosis import catalogue
from ocrlab.records import Cause, Incident

SENDER = 'journalctl -k --since "1 hour ago" | grep -iE "oom|killed"'
READS = (
    "a line of the OOM killer: memory; none: somebody sent it, and the scheduler's log or `ocrlab diagnose --explain "
    "ext.signal`, which has the command that catches the sender, tells who"
)
COPIES = "COMMAND with num_workers=0    (fits: copies in the workers; killed again: the main process)"
LEFT = {
    "host.oom_kill": f"{SENDER}    ({READS})",
    "ext.signal": f"{SENDER}    ({READS})",
    "loader.worker_killed": f"{SENDER}    ({READS}); then {COPIES}",
    "loader.worker_crash": "COMMAND with worker_init_fn=lambda _: faulthandler.enable()    (names the line); each "
    "index of that worker alone with num_workers=0 names the sample",
    "loader.hang_sample": "dataset[INDEX] of the sample that the evidence names, alone, with num_workers=0    (stands "
    "still too: that sample or its file; returns: the worker)",
    "hang.deadlock": "py-spy dump --native --pid PID ; gdb -p PID -batch -ex 'thread apply all bt'    (native frames: "
    "which lock, and which thread holds it)",
}


def replace_experiments(causes: list[Cause], incident: Incident) -> list[Cause]:
    """Return the causes; where the watcher made the incident their experiments are those that it has not done."""
    if not watched(incident):
        return causes
    left = {**LEFT, "host.oom_kill": COPIES} if incident.facts.get("oom_kills") else LEFT
    return [
        replace(cause, experiment=left.get(cause.id, cause.experiment)) if _general(cause) else cause
        for cause in causes
    ]


def _general(cause: Cause) -> bool:
    """Tell whether the experiment is that of the cause, and not of the form in which it was seen here."""
    entry = catalogue.load().entries.get(cause.id)
    return entry is not None and cause.experiment == entry.experiment


def watched(incident: Incident) -> bool:
    """Tell whether `ocrlab watch` has seen the program end: then its facts name the main process."""
    return incident.status != "log" and "main_pid" in incident.facts


def counters(incident: Incident) -> list[str]:
    """Return what is missing about a kill: the counters, or who sent the signal where they were read."""
    if "oom_kills" not in incident.facts:
        return ["cgroup counters (oom_kill) before and after"]
    return [] if incident.facts["oom_kills"] else ["who sent the signal (bpftrace, auditd, the scheduler's log)"]
