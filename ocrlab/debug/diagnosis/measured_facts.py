"""What was measured from outside, as hits: exit codes, signals, counters, kernel lines that name our processes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ocrlab.debug.diagnosis import exit_codes, kernel_log_lines
from ocrlab.debug.diagnosis.evidence import DIED_OF, KERNEL_LOG, Hit, hit
from ocrlab.records import Cause, Evidence, Incident

# NVIDIA's Xid catalogue: restart the program.
APPLICATION_XIDS = ("8", "11", "13", "25", "31", "32", "43", "45", "69", "94")
SILENT = 0.6  # of a missing file after a step that may have failed in silence
MOVES = 2.0  # seconds of silence; less is no silence
SHM_LEFT = 256 * 2**20  # bytes; with more left, even after the end has freed some, a SIGBUS is not for want of it
MEASURED = (-1, 0)  # the place in time of what was measured: before all that was printed
OF_A_GPU = ("gpumem.", "kernel.", "hw.gpu", "hw.xid_app", "dist.p2p", "hang.gpu_kernel", "driver.device_busy")
SHM_USE = re.compile(r"leaked shared_memory objects|multiprocessing/shared_memory\.py")
BUS = re.compile(r"[Bb]us error|SIGBUS|总线错误")
KILLED = re.compile(r"killed by signal: Killed|^Killed\s*$|\bSIGKILL\b", re.MULTILINE)
WORKER_DIED_OF = {
    "SIGKILL": ("loader.worker_killed", "likely"),
    "SIGTERM": ("loader.worker_killed", "likely"),
    "SIGBUS": ("host.shm", "likely"),
    "SIGILL": ("build.cpu_isa", "strong"),
    "SIGSEGV": ("loader.worker_crash", "strong"),
    "SIGABRT": ("loader.worker_crash", "strong"),
    "SIGFPE": ("loader.worker_crash", "strong"),
}


def hits(incident: Incident) -> list[Hit]:
    """Return what the facts of an incident speak for; a watcher's own kill is no evidence."""
    facts = incident.facts
    hits_ = _kernel(incident)
    if facts.get("oom_kills"):
        text = f"the control group's oom_kill counter grew by {facts['oom_kills']}"
        if was_killed(incident):
            hits_.append(_proof("host.oom_kill", 0.95, text))
        else:  # somebody else in the same group
            hits_.append(hit("host.oom_kill", "hint", Evidence("facts", None, text), text))
    hits_ += _ended(incident, facts.get("ended_by"))
    for ended in facts.get("exits") or ():
        hits_ += _worker(ended, facts)
    return hits_


def absent(cause: str, facts: Mapping[str, Any]) -> bool:
    """Tell whether a cause needs what was not there: a GPU, or a data worker."""
    if facts.get("gpu") is False and cause.startswith(OF_A_GPU):
        return True
    return facts.get("workers") == 0 and cause.startswith("loader.")


def still_moved(incident: Incident) -> bool:
    """Tell whether a program still moved when the watcher ended it: it was over its time limit, it did not hang."""
    silent = incident.facts.get("silent_seconds")
    return incident.facts.get("ended_by") == "limit" and isinstance(silent, int | float) and silent < MOVES


def was_killed(incident: Incident) -> bool:
    """Tell whether a process of the program died of SIGKILL, as far as anybody has seen its end."""
    if incident.signal == "SIGKILL" or exit_codes.name(incident.exit_code) == "SIGKILL":
        return True
    if any(ended.get("signal") == "SIGKILL" for ended in incident.facts.get("exits") or ()):
        return True
    log = "\n".join(text for name, text in incident.texts.items() if name not in (KERNEL_LOG, "stacks.txt"))
    return bool(KILLED.search(log)) or any(name == "SIGKILL" for name, _ in exit_codes.find(log))


def _ended(incident: Incident, ended_by: object) -> list[Hit]:
    """Return what the end of the main process says."""
    signal = incident.signal or exit_codes.name(incident.exit_code)
    if ended_by == "user":
        return [_proof("ext.signal", 0.95, "Ctrl-C reached the watcher")]
    if ended_by == "outside" and signal:
        return [_proof("ext.signal", 0.9, f"{signal} was sent by somebody else, through the watcher")]
    if not signal or ended_by == "limit":
        return []
    line = Evidence("facts", None, f"the process died of {signal}")
    if signal == "SIGBUS":
        return _bus(line, incident)
    return [hit(cause, strength, line, line.text) for cause, strength in DIED_OF.get(signal, ())]


def _bus(line: Evidence, incident: Incident) -> list[Hit]:
    """Return what SIGBUS says: shared memory where none is left, else a mapped file that became shorter."""
    left = incident.facts.get("shm_free_bytes")
    if not isinstance(left, int):
        return [hit(cause, strength, line, line.text) for cause, strength in DIED_OF["SIGBUS"]]
    why = f"SIGBUS with {left >> 20} MiB left in /dev/shm"
    line = Evidence("facts", None, f"{line.text}, with {left >> 20} MiB left in /dev/shm")
    if left <= SHM_LEFT:
        return [hit("host.shm", "strong", line, why)]
    if not _plenty(incident):
        return [hit("host.shm", "likely", line, "it held a block of shared memory, which its end has freed")]
    return [hit("data.corrupt", "likely", line, why), hit("native.segv", "possible", line, why)]


def _plenty(incident: Incident) -> bool:
    """Tell whether there was room in /dev/shm: it is measured after the end, which frees what the program held."""
    left = incident.facts.get("shm_free_bytes")
    used_shm = any(SHM_USE.search(text) for text in incident.texts.values())
    return isinstance(left, int) and left > SHM_LEFT and not used_shm


def cap_missing_files(hits: list[Hit], incident: Incident) -> list[Hit]:
    """Return the hits; a missing file is less sure where a handler may have taken what kept it from being written."""
    if not incident.facts.get("silent"):
        return hits
    return [
        replace(hit, confidence=min(hit.confidence, SILENT), ceiling=SILENT) if hit.cause == "io.missing" else hit
        for hit in hits
    ]


def ask_silent_handler(causes: list[Cause], incident: Incident) -> list[Cause]:
    """Return the causes; before a missing file is looked for, the handler that may have hidden why is asked."""
    silent = incident.facts.get("silent")
    if not silent or not causes or causes[0].id != "io.missing":
        return causes
    return [replace(causes[0], experiment=f"COMMAND    (after it is shown: {silent})"), *causes[1:]]


def drop_shm_guesses(hits: list[Hit], incident: Incident) -> list[Hit]:
    """Return the hits without those that take a bus error for want of shared memory, where there was plenty."""
    if not _plenty(incident):
        return hits
    return [hit for hit in hits if hit.cause != "host.shm" or not BUS.search(hit.evidence.text)]


def _worker(ended: Mapping[str, Any], facts: Mapping[str, Any]) -> list[Hit]:
    """Return what the end of a data worker says, where it was not the watcher that ended it."""
    meaning = WORKER_DIED_OF.get(str(ended.get("signal")))
    if meaning is None or ended.get("role") != "worker" or facts.get("ended_by"):
        return []
    line = Evidence("facts", None, f"data worker {ended.get('pid')} died of {ended.get('signal')}")
    hits_ = [hit(*meaning, line, line.text)]
    if meaning[0] == "host.shm" and not drop_shm_guesses(hits_, Incident(facts=dict(facts))):
        return [hit("loader.worker_crash", "likely", line, "SIGBUS with plenty of room in /dev/shm: a mapped file")]
    return hits_


def _kernel(incident: Incident) -> list[Hit]:
    """Return the kernel's own lines about our processes."""
    ours = kernel_log_lines.own_pids(incident.facts)
    return [
        _line(entry)
        for entry in kernel_log_lines.process_lines(incident.texts.get(KERNEL_LOG, ""))
        if entry.pid in ours
    ]


def _line(entry: kernel_log_lines.KernelLine) -> Hit:
    line = Evidence(KERNEL_LOG, entry.number, entry.text[:300])
    if entry.kind == "oom":
        return _proof("host.oom_kill", 0.95, f"the kernel killed our process {entry.pid}", line)
    if entry.kind == "trap":
        return _proof("build.cpu_isa", 0.93, f"invalid opcode in {entry.what}", line)
    if entry.kind == "fault":
        return hit("native.segv", "strong", line, f"segmentation fault in {entry.what}")
    cause = "hw.xid_app" if entry.what in APPLICATION_XIDS else "hw.gpu"
    return hit(cause, "strong", line, f"Xid {entry.what} names our process {entry.pid}")


def _proof(cause: str, confidence: float, why: str, line: Evidence | None = None) -> Hit:
    """Return a hit that was measured: it stands before everything that the program printed."""
    return Hit(cause, confidence, 0.97, "decisive", line or Evidence("facts", None, why), why, MEASURED)
