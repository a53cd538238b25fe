"""What supports a cause: lines of the texts of an incident, and what was measured from outside."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ocrlab.debug.diagnosis import catalogue, cuda_compatibility, oom_message
from ocrlab.debug.diagnosis.catalogue import Level, Role
from ocrlab.debug.diagnosis.log_text import HEAD, TAIL, LogText, by_person, clean_log, read_excerpt
from ocrlab.hardware.processes import exit_codes
from ocrlab.hardware.processes.kernel_log import Event, events, xid_owners
from ocrlab.records import Evidence, Incident

CONTEXT, KERNEL_LOG = "context", "kernel_log.txt"
LONG = 2 * (HEAD + TAIL)  # characters from which a text is excerpted before it is searched; an excerpt is shorter
MOST = 3  # lines of one signature
MEASURED = (-1, 0)  # the place in time of what was measured: before all that was printed
MOVES = 2.0  # seconds without progress; a program that was silent for less still moved
SHM_LEFT = 256 * 2**20  # bytes; with more left, a SIGBUS does not come from a full /dev/shm
# What a signal that ended a process supports, most probable first.
DIED_OF = {
    "SIGILL": {"build.cpu_isa": Level.STRONG},
    "SIGSEGV": {"native.segv": Level.STRONG},
    "SIGABRT": {"native.abort": Level.STRONG},  # a fallback: what the process printed says why
    "SIGBUS": {"host.shm": Level.POSSIBLE},
    "SIGFPE": {"native.segv": Level.LIKELY},
    "SIGKILL": {"host.oom_kill": Level.POSSIBLE, "ext.signal": Level.POSSIBLE},
    "SIGTERM": {"ext.signal": Level.LIKELY},
    **{name: {"ext.signal": Level.STRONG} for name in ("SIGINT", "SIGHUP", "SIGPIPE", "SIGXCPU")},
    "SIGXFSZ": {"io.disk_full": Level.STRONG},
    "SIGSTOP": {"hang.stopped": Level.STRONG},
    "SIGTRAP": {"native.abort": Level.LIKELY},
}
WORKER_DIED_OF = {
    "SIGKILL": ("loader.worker_killed", Level.LIKELY),
    "SIGTERM": ("loader.worker_killed", Level.LIKELY),
    "SIGBUS": ("host.shm", Level.LIKELY),
    "SIGILL": ("build.cpu_isa", Level.STRONG),
    **dict.fromkeys(("SIGSEGV", "SIGABRT", "SIGFPE"), ("loader.worker_crash", Level.STRONG)),
}
LIBRARY_ERRORS = re.compile(  # errors that a GPU too new or too old for the binary can cause
    r"CUBLAS_STATUS|CUDNN_STATUS|CUSOLVER_STATUS|CUFFT|cublas runtime error|unable to find an engine|CUDA error"
    r"|named symbol|\bnan\b"
    r"|illegal instruction was|invalid device function|no kernel image|illegal memory access|misaligned"
    r"|unspecified launch|invalid argument|unknown error|unhandled cuda error|(?i:hang|stuck|freez)"
)
# NVIDIA's Xid catalogue: restart the program.
APPLICATION_XIDS = ("8", "11", "13", "25", "31", "32", "43", "45", "69", "94")
OF_A_GPU = ("gpumem.", "kernel.", "hw.gpu", "hw.xid_app", "dist.p2p", "hang.gpu_kernel", "driver.device_busy")
SHM_USE = re.compile(r"leaked shared_memory objects|multiprocessing/shared_memory\.py")
BUS = re.compile(r"[Bb]us error|SIGBUS|总线错误")
KILLED = re.compile(r"killed by signal: Killed|^Killed\s*$|\bSIGKILL\b", re.MULTILINE)
OOM_HEADER = re.compile(r"invoked oom-killer|\bmemory: usage \d")  # names who asked for memory, not who was killed


@dataclass(frozen=True)
class Hit:
    """One line that supports a cause; `order` is its place in time, None for what a person reported."""

    cause: str
    level: Level
    evidence: Evidence
    why: str = ""
    order: tuple[int, int] | None = None
    role: Role = Role.CAUSE

    def capped(self, level: Level) -> Hit:
        """Return the hit with at most this level."""
        return replace(self, level=self.level.at_most(level))


def own_pids(facts: Mapping[str, Any]) -> set[int]:
    """Return the numbers under which the kernel log knows the program's processes, from the facts of an incident."""
    return {int(pid) for key in ("pids", "oom_pids") for pid in facts.get(key) or ()}


def process_events(text: str) -> dict[int, Event]:
    """Return what a kernel log says of processes, by the number of the line; an Xid may name its process elsewhere."""
    lines = text.split("\n")
    owners = xid_owners(lines)
    named = {}
    for number, line in enumerate(lines):
        for event in events([line]):
            pid = event.pid or owners.get(number)
            if pid:
                named[number + 1] = replace(event, pid=pid, text=line.strip())
    return named


def blank_other_processes(text: str, ours: set[int]) -> str:
    """Return a kernel log in which the lines about other people's processes are empty; numbers of lines stay."""
    named = process_events(text)
    foreign = {number for number, event in named.items() if event.pid not in ours}
    header = None if any(event.kind == "oom" and event.pid in ours for event in named.values()) else OOM_HEADER
    return "\n".join(
        "" if number in foreign or (header and header.search(line)) else line
        for number, line in enumerate(text.split("\n"), 1)
    )


def clean_texts(incident: Incident) -> list[LogText]:
    """Return the texts of an incident cleaned, in the order in which they count; the context last."""
    advice = catalogue.load().advice
    texts = {name: text for name, text in incident.texts.items() if name != "stacks.txt"}
    for name, text in texts.items():
        if len(text) >= LONG:
            texts[name] = read_excerpt(io.BytesIO(text.encode("utf-8", errors="replace")))
    pids = own_pids(incident.facts)
    if pids and KERNEL_LOG in texts:
        texts[KERNEL_LOG] = blank_other_processes(texts[KERNEL_LOG], pids)
    texts |= {CONTEXT: incident.context} if incident.context else {}
    return [clean_log(name, text, advice) for name, text in texts.items()]


def find_hits(texts: list[LogText], incident: Incident) -> list[Hit]:
    """Return every hit of signatures, memory numbers, versions, exit codes and stacks in the texts of an incident.

    A full /dev/shm is not blamed for a bus error where it had room.
    """
    written = {text.name for text in texts if text.name == CONTEXT or by_person(text.text)}
    hits: list[Hit] = []
    for order, text in enumerate(texts):
        hits += _memory_hits(text, order)
        for signal, offset in exit_codes.find_signals(text.text)[:5]:  # where it stands is not where in time it belongs
            hits += _signal_hits(signal, quote(text, offset), f"a process died of {signal}")
    hits += [hit for sign in catalogue.load().signs() for hit in _signature_hits(sign, texts, written)]
    has_room = _has_shared_memory(incident)
    hits = [hit for hit in hits if not (has_room and hit.cause == "host.shm" and BUS.search(hit.evidence.text))]
    return hits + _version_hits(texts)


def _signature_hits(sign: catalogue.Sign, texts: list[LogText], written: set[str]) -> list[Hit]:
    """Return up to three hits of a signature; what a rule needs or forbids may stand in any of the texts.

    A rule reads several places, so it has none in time. What a person wrote, in texts that are `written` or in a
    sentence between the lines of a log, is a claim and never sure.
    """
    rule = len(sign.all) > 1
    if not all(any(pattern.search(text.text) for text in texts) for pattern in sign.all[1:]):
        return []
    if any(pattern.search(text.text) for pattern in sign.none for text in texts):
        return []
    hits: list[Hit] = []
    for order, text in enumerate(texts):
        if sign.context_only and text.name != CONTEXT:
            continue
        for match in sign.all[0].finditer(text.text):
            start = match.start() + len(match[0]) - len(match[0].lstrip())  # `^` may stand before a line break
            evidence = quote(text, start)
            place = None if text.name == CONTEXT or rule else (order, evidence.line or 0)
            hit = Hit(sign.cause, sign.level, evidence, sign.why, place, sign.role)
            claimed = text.name in written or by_person(text.line(start).text)
            if claimed and hit.level.value > Level.LIKELY.value:
                hit = replace(hit, level=Level.LIKELY, why=hit.why or "a person reports it")
            hits.append(hit)
            if len(hits) >= MOST:
                return hits
    return hits


def _memory_hits(text: LogText, order: int) -> list[Hit]:
    """Return what the numbers of out-of-memory messages support."""
    hits = []
    for message in oom_message.parse(text.text)[:5]:
        evidence = quote(text, message.offset)
        place = None if text.name == CONTEXT else (order, evidence.line or 0)
        hits += [Hit(each.cause, each.level, evidence, each.why, place) for each in oom_message.judge(message)]
    return hits


def _signal_hits(signal: str, evidence: Evidence, why: str) -> list[Hit]:
    role = Role.FALLBACK if signal == "SIGABRT" else Role.CAUSE
    return [Hit(cause, level, evidence, why, role=role) for cause, level in DIED_OF.get(signal, {}).items()]


def _version_hits(texts: list[LogText]) -> list[Hit]:
    """Return a hit where the card named in any text cannot run the torch named in it, next to an error that fits."""
    whole = "\n".join(text.text for text in texts)
    mismatch = cuda_compatibility.mismatch(whole)
    if mismatch is None or not LIBRARY_ERRORS.search(whole):
        return []
    ends = itertools.accumulate(len(text.text) + 1 for text in texts)
    why, offset = mismatch
    text, end = next((text, end) for text, end in zip(texts, ends, strict=True) if offset < end)
    level = Level.LIKELY if text.name == CONTEXT else Level.STRONG
    return [Hit("build.arch", level, quote(text, offset - end + len(text.text) + 1), why)]


def quote(text: LogText, offset: int) -> Evidence:
    """Return the line at an offset as evidence, shortened to what fits a terminal."""
    line = text.line(offset)
    words = line.text.strip()
    return Evidence(text.name, line.number, words if len(words) <= 300 else f"{words[:297]}...")


def fact_hits(incident: Incident) -> list[Hit]:
    """Return what the facts of an incident support; a watcher's own kill is not evidence."""
    facts = incident.facts
    pids = own_pids(facts)
    named = process_events(incident.texts.get(KERNEL_LOG, ""))
    hits = [hit for number, event in named.items() if event.pid in pids for hit in _kernel_hits(number, event)]
    if facts.get("oom_kills") and was_killed(incident):  # else it was another program in the same group
        hits.append(_measured("host.oom_kill", f"the control group's oom_kill counter grew by {facts['oom_kills']}"))
    hits += _end_hits(incident)
    for end in facts.get("exits") or () if not facts.get("ended_by") else ():
        hits += _worker_hits(end, incident)
    return hits


def _measured(cause: str, why: str) -> Hit:
    return Hit(cause, Level.DECISIVE, Evidence("facts", None, why), why, MEASURED)


def _kernel_hits(number: int, event: Event) -> list[Hit]:
    library, line = event.library or "unmapped code", Evidence(KERNEL_LOG, number, event.text[:300])
    if event.kind == "oom":
        why = f"the kernel killed our process {event.pid}"
        return [Hit("host.oom_kill", Level.DECISIVE, line, why, MEASURED)]
    if event.kind == "trap" and event.detail == "invalid opcode":
        return [Hit("build.cpu_isa", Level.DECISIVE, line, f"invalid opcode in {library}", MEASURED)]
    if event.kind == "segfault":
        return [Hit("native.segv", Level.STRONG, line, f"segmentation fault in {library}")]
    if event.kind == "xid":  # of an error of the program: what it prints says which one
        of_program = event.detail in APPLICATION_XIDS
        cause, role = ("hw.xid_app", Role.WRAPPER) if of_program else ("hw.gpu", Role.CAUSE)
        return [Hit(cause, Level.STRONG, line, f"Xid {event.detail} names our process {event.pid}", role=role)]
    return []


def _end_hits(incident: Incident) -> list[Hit]:
    """Return what the end of the main process supports."""
    signal = incident.signal or exit_codes.signal_of_exit(incident.exit_code)
    ended_by = incident.facts.get("ended_by")
    if ended_by == "user":
        return [_measured("ext.signal", "Ctrl-C reached the watcher")]
    if ended_by == "outside" and signal:
        return [_measured("ext.signal", f"{signal} was sent by another process, through the watcher")]
    if not signal or ended_by == "limit":
        return []
    text = f"the process died of {signal}"
    left = incident.facts.get("shm_free_bytes")
    if signal != "SIGBUS" or not isinstance(left, int):
        return _signal_hits(signal, Evidence("facts", None, text), text)
    # shared memory where none is left, else a mapped file that became shorter
    why = f"SIGBUS with {left >> 20} MiB left in /dev/shm"
    evidence = Evidence("facts", None, f"{text}, with {left >> 20} MiB left in /dev/shm")
    if left <= SHM_LEFT:
        return [Hit("host.shm", Level.STRONG, evidence, why)]
    if not _has_shared_memory(incident):
        return [Hit("host.shm", Level.LIKELY, evidence, "it held a block of shared memory, which its end has freed")]
    return [Hit("data.corrupt", Level.LIKELY, evidence, why), Hit("native.segv", Level.POSSIBLE, evidence, why)]


def _worker_hits(end: Mapping[str, Any], incident: Incident) -> list[Hit]:
    """Return what the end of a data worker supports."""
    meaning = WORKER_DIED_OF.get(str(end.get("signal")))
    if meaning is None or end.get("role") != "worker":
        return []
    text = why = f"data worker {end.get('pid')} died of {end.get('signal')}"
    cause, level = meaning
    if cause == "host.shm" and _has_shared_memory(incident):
        cause, why = "loader.worker_crash", "SIGBUS with plenty of room in /dev/shm: a mapped file"
    return [Hit(cause, level, Evidence("facts", None, text), why)]


def was_killed(incident: Incident) -> bool:
    """Return whether a process of the program died of SIGKILL, as far as facts and logs show."""
    ends = [end.get("signal") for end in incident.facts.get("exits") or ()]
    if "SIGKILL" in (incident.signal, exit_codes.signal_of_exit(incident.exit_code), *ends):
        return True
    log = "\n".join(text for name, text in incident.texts.items() if name not in (KERNEL_LOG, "stacks.txt"))
    return bool(KILLED.search(log)) or any(name == "SIGKILL" for name, _ in exit_codes.find_signals(log))


def still_moved(incident: Incident) -> bool:
    """Return whether a program still moved when the watcher ended it at its time limit: it did not hang."""
    silent = incident.facts.get("silent_seconds")
    return incident.facts.get("ended_by") == "limit" and isinstance(silent, int | float) and silent < MOVES


def is_absent(cause: str, facts: Mapping[str, Any]) -> bool:
    """Return whether a cause needs a part that the machine or the program lacks: a GPU, or a data worker."""
    if facts.get("gpu") is False and cause.startswith(OF_A_GPU):
        return True
    return facts.get("workers") == 0 and cause.startswith("loader.")


def _has_shared_memory(incident: Incident) -> bool:
    """Return whether /dev/shm had room: it is measured after the end, which frees what the program held."""
    left = incident.facts.get("shm_free_bytes")
    used = any(SHM_USE.search(text) for text in incident.texts.values())
    return isinstance(left, int) and left > SHM_LEFT and not used
