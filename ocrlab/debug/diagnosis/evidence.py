"""Lines of the kernel log that name a process: OOM kills, traps, segmentation faults, Xid; whose they are.

Everything in an incident that speaks for a cause, each with the line it stands on.

What was measured from outside, as hits: exit codes, signals, counters, kernel lines that name our processes."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ocrlab.debug.diagnosis import catalogue, cuda_compatibility, exit_codes, log_text, oom_message
from ocrlab.debug.diagnosis.log_text import HEAD, TAIL, Line, LogText, by_person, clean_lines, clean_log, read_excerpt
from ocrlab.records import Cause, Evidence, Incident

# mm/oom_kill.c, arch/x86/kernel/traps.c, arch/x86/mm/fault.c, and the NVIDIA kernel module.
KINDS = {
    "oom": re.compile(r"(?:Kill(?:ed)? process |oom-kill:[^\n]{0,300},pid=|reaped process )(?P<pid>\d+)"),
    "trap": re.compile(r"\[(?P<pid>\d+)\] trap invalid opcode ip:\S+ sp:\S+ error:\S+(?: in (?P<what>[^\s\[]+))?"),
    "fault": re.compile(r"\[(?P<pid>\d+)\]: segfault at \S+ ip \S+ sp \S+ error \d+(?: in (?P<what>[^\s\[]+))?"),
    "xid": re.compile(r"Xid \([^)\n]{1,40}\): (?P<what>\d+), pid='?(?P<pid>\d+)"),
}
BEGINS = re.compile(r"invoked oom-killer|\bmemory: usage \d")  # names who asked for memory, not who was killed


@dataclass(frozen=True)
class KernelLine:
    """One line: its kind (oom, trap, fault, xid), whose it is, the library or the Xid, its number and text."""

    kind: str
    pid: int
    what: str
    number: int
    text: str


def own_pids(facts: Mapping[str, Any]) -> set[int]:
    """Return the numbers under which the kernel log knows the program's processes, from the facts of an incident."""
    return {int(pid) for key in ("pids", "oom_pids") for pid in facts.get(key) or ()}


def process_lines(text: str) -> Iterator[KernelLine]:
    """Yield every line that names a process."""
    for line in clean_lines(text):
        for kind, pattern in KINDS.items():
            match = pattern.search(line.text)
            if match:
                what = match.groupdict().get("what") or "unmapped code"
                yield KernelLine(kind, int(match["pid"]), what, line.number, line.text.strip())
                break


def blank_other_processes(text: str, ours: Iterable[int]) -> str:
    """Return a kernel log in which the lines about other people's processes are empty; numbers of lines stay."""
    mine = set(ours)
    lines = list(process_lines(text))
    foreign = {entry.number for entry in lines if entry.pid not in mine}
    if not any(entry.kind == "oom" and entry.pid in mine for entry in lines):
        foreign |= {number for number, line in enumerate(text.split("\n"), 1) if BEGINS.search(line)}
    return "\n".join("" if number in foreign else line for number, line in enumerate(text.split("\n"), 1))


CONTEXT, KERNEL_LOG = "context", "kernel_log.txt"
LONG = 2 * (HEAD + TAIL)  # characters from which a text is windowed before it is searched; never one that was
PERSON_CONFIDENCE, PERSON_CEILING = 0.66, 0.7  # what a person says is a claim, not evidence
MOST = 3  # lines of one signature
# Of a process that died: what each signal speaks for, most probable first.
DIED_OF = {
    "SIGILL": (("build.cpu_isa", "strong"),),
    "SIGSEGV": (("native.segv", "strong"),),
    "SIGABRT": (("native.abort", "fallback"),),
    "SIGBUS": (("host.shm", "possible"), ("data.corrupt", "hint")),
    "SIGFPE": (("native.segv", "likely"),),
    "SIGKILL": (("host.oom_kill", "possible"), ("ext.signal", "possible")),
    "SIGTERM": (("ext.signal", "likely"),),
    "SIGINT": (("ext.signal", "strong"),),
    "SIGHUP": (("ext.signal", "strong"),),
    "SIGPIPE": (("ext.signal", "strong"),),
    "SIGXCPU": (("ext.signal", "strong"),),
    "SIGXFSZ": (("io.disk_full", "strong"),),
    "SIGSTOP": (("hang.stopped", "strong"),),
    "SIGTRAP": (("native.abort", "likely"),),
}
LIBRARY = re.compile(  # what a card that the binary does not know looks like
    r"CUBLAS_STATUS|CUDNN_STATUS|CUSOLVER_STATUS|CUFFT|cublas runtime error|unable to find an engine|CUDA error"
    r"|named symbol|\bnan\b"
    r"|illegal instruction was|invalid device function|no kernel image|illegal memory access|misaligned"
    r"|unspecified launch|invalid argument|unknown error|unhandled cuda error|(?i:hang|stuck|freez)"
)


@dataclass(frozen=True)
class Hit:
    """One thing that speaks for a cause; `order` is its place in time, None for what was said or measured."""

    cause: str
    confidence: float
    ceiling: float
    strength: str
    evidence: Evidence
    why: str = ""
    order: tuple[int, int] | None = None


def clean_texts(incident: Incident) -> list[LogText]:
    """Return the texts of an incident cleaned, in the order in which they count; the context last."""
    advice = catalogue.load()
    texts = {name: _excerpt(text) for name, text in incident.texts.items() if name != "stacks.txt"}
    ours = own_pids(incident.facts)
    if ours and KERNEL_LOG in texts:
        texts[KERNEL_LOG] = blank_other_processes(texts[KERNEL_LOG], ours)
    cleaned = [log_text.blank_source(clean_log(name, text, advice.advice)) for name, text in texts.items()]
    if incident.context:
        cleaned.append(clean_log(CONTEXT, incident.context, advice.advice))
    return cleaned


def _excerpt(text: str) -> str:
    if len(text) < LONG:
        return text
    return read_excerpt(io.BytesIO(text.encode("utf-8", errors="replace")))


def find_hits(incident: Incident, texts: list[LogText]) -> list[Hit]:
    """Return every hit of signatures, memory numbers, versions, exit codes and stacks in the texts."""
    spoken = {text.name for text in texts if text.name == CONTEXT or by_person(text.text)}
    hits = [hit for sign in catalogue.load().signs() for hit in _signature(sign, texts, spoken)]
    for order, text in enumerate(texts):
        hits += _memory(text, order)
        hits += _died(text) + _orphan(text)
    hits += _versions(texts)
    return hits


def make_hit(cause: str, strength: str, evidence: Evidence, why: str = "", order: tuple[int, int] | None = None) -> Hit:
    """Return a hit with the confidence of its strength."""
    start, ceiling = catalogue.PROVES[strength]
    return Hit(cause, start, ceiling, strength, evidence, why, order)


def _signature(sign: catalogue.Sign, texts: list[LogText], spoken: set[str]) -> list[Hit]:
    """Return up to three hits of a signature; what a rule needs or forbids may stand in any of the texts.

    A rule reads several places, so it has none in time. What a person says, in texts that are `spoken` or in a sentence
    between the lines of a log, is never sure.
    """
    if len(sign.all) > 1 or sign.none:
        if not all(any(text.searched.search(pattern) for text in texts) for pattern in sign.all):
            return []
        if any(text.searched.search(pattern) for pattern in sign.none for text in texts):
            return []
    hits = []
    for order, text in enumerate(texts):
        if sign.context_only and text.name != CONTEXT:
            continue
        for match in text.searched.finditer(sign.all[0]):
            line = text.line(_inside(match))
            place = None if text.name == CONTEXT or len(sign.all) > 1 else (order, line.number)
            match_hit = make_hit(sign.cause, sign.strength, quote(text.name, line), sign.why, place)
            if len(sign.all) > 1:  # who has read more is a little surer
                match_hit = replace(match_hit, confidence=match_hit.confidence + 0.01)
            if match_hit.confidence > PERSON_CONFIDENCE and (text.name in spoken or by_person(line.text)):
                match_hit = replace(match_hit, confidence=PERSON_CONFIDENCE, ceiling=PERSON_CEILING, strength="likely")
            hits.append(match_hit)
            if len(hits) >= MOST:
                return hits
    return hits


def _inside(match: re.Match[str]) -> int:
    """Return the offset of the first character of a match that is no space: `^` may stand before a line break."""
    return match.start() + len(match[0]) - len(match[0].lstrip())


def _memory(text: LogText, order: int) -> list[Hit]:
    hits = []
    for message in oom_message.parse(text.text)[:5]:
        line = text.line(message.offset)
        place = None if text.name == CONTEXT else (order, line.number)
        for judged in oom_message.judge(message):
            sure = judged.confidence
            strength = (
                "decisive" if sure > 0.88 else "strong" if sure >= 0.72 else "likely" if sure > 0.5 else "possible"
            )
            ceiling = max(sure, 0.7 if sure < 0.72 else 0.95)
            hits.append(Hit(judged.cause, sure, ceiling, strength, quote(text.name, line), judged.why, place))
    return hits


def _orphan(text: LogText) -> list[Hit]:
    memory = oom_message.orphan(text.text)
    if memory is None:
        return []
    why = f"{memory.used} of {memory.total} MiB are in use and nvidia-smi shows no process"
    foreign = make_hit("gpumem.foreign", "strong", quote(text.name, text.line(memory.offset)), why)
    return [replace(foreign, confidence=foreign.confidence + 0.02)]  # a message of OOM alone says less


def _died(text: LogText) -> list[Hit]:
    """Return hits of exit codes and signals in a text; where they stand is not where in time they belong."""
    hits = []
    for name, offset in exit_codes.find(text.text)[:5]:
        line, why = quote(text.name, text.line(offset)), f"a process died of {name}"
        hits += [make_hit(cause, strength, line, why) for cause, strength in DIED_OF.get(name, ())]
    return hits


def _versions(texts: list[LogText]) -> list[Hit]:
    """Return a hit where the card named in any text cannot run the torch named in it, beside an error that fits."""
    whole = "\n".join(text.text for text in texts)
    mismatch = cuda_compatibility.mismatch(whole)
    if mismatch is None or not LIBRARY.search(whole):
        return []
    for text in texts:
        if mismatch.offset < len(text.text):
            strength = "likely" if text.name == CONTEXT else "strong"
            return [make_hit("build.arch", strength, quote(text.name, text.line(mismatch.offset)), mismatch.why)]
        mismatch = cuda_compatibility.Mismatch(mismatch.why, mismatch.offset - len(text.text) - 1)
    return []


def quote(file: str, line: Line) -> Evidence:
    """Return a line as evidence, shortened to what fits a terminal."""
    text = line.text.strip()
    return Evidence(file, line.number, text if len(text) <= 300 else f"{text[:297]}...")


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


def fact_hits(incident: Incident) -> list[Hit]:
    """Return what the facts of an incident speak for; a watcher's own kill is no evidence."""
    facts = incident.facts
    hits_ = _kernel(incident)
    if facts.get("oom_kills"):
        text = f"the control group's oom_kill counter grew by {facts['oom_kills']}"
        if was_killed(incident):
            hits_.append(_proof("host.oom_kill", 0.95, text))
        else:  # somebody else in the same group
            hits_.append(make_hit("host.oom_kill", "hint", Evidence("facts", None, text), text))
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
    return [make_hit(cause, strength, line, line.text) for cause, strength in DIED_OF.get(signal, ())]


def _bus(line: Evidence, incident: Incident) -> list[Hit]:
    """Return what SIGBUS says: shared memory where none is left, else a mapped file that became shorter."""
    left = incident.facts.get("shm_free_bytes")
    if not isinstance(left, int):
        return [make_hit(cause, strength, line, line.text) for cause, strength in DIED_OF["SIGBUS"]]
    why = f"SIGBUS with {left >> 20} MiB left in /dev/shm"
    line = Evidence("facts", None, f"{line.text}, with {left >> 20} MiB left in /dev/shm")
    if left <= SHM_LEFT:
        return [make_hit("host.shm", "strong", line, why)]
    if not _plenty(incident):
        return [make_hit("host.shm", "likely", line, "it held a block of shared memory, which its end has freed")]
    return [make_hit("data.corrupt", "likely", line, why), make_hit("native.segv", "possible", line, why)]


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
    hits_ = [make_hit(*meaning, line, line.text)]
    if meaning[0] == "host.shm" and not drop_shm_guesses(hits_, Incident(facts=dict(facts))):
        return [
            make_hit("loader.worker_crash", "likely", line, "SIGBUS with plenty of room in /dev/shm: a mapped file")
        ]
    return hits_


def _kernel(incident: Incident) -> list[Hit]:
    """Return the kernel's own lines about our processes."""
    ours = own_pids(incident.facts)
    return [_line(entry) for entry in process_lines(incident.texts.get(KERNEL_LOG, "")) if entry.pid in ours]


def _line(entry: KernelLine) -> Hit:
    line = Evidence(KERNEL_LOG, entry.number, entry.text[:300])
    if entry.kind == "oom":
        return _proof("host.oom_kill", 0.95, f"the kernel killed our process {entry.pid}", line)
    if entry.kind == "trap":
        return _proof("build.cpu_isa", 0.93, f"invalid opcode in {entry.what}", line)
    if entry.kind == "fault":
        return make_hit("native.segv", "strong", line, f"segmentation fault in {entry.what}")
    cause = "hw.xid_app" if entry.what in APPLICATION_XIDS else "hw.gpu"
    return make_hit(cause, "strong", line, f"Xid {entry.what} names our process {entry.pid}")


def _proof(cause: str, confidence: float, why: str, line: Evidence | None = None) -> Hit:
    """Return a hit that was measured: it stands before everything that the program printed."""
    return Hit(cause, confidence, 0.97, "decisive", line or Evidence("facts", None, why), why, MEASURED)
