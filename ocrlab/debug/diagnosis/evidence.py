"""Everything in an incident that speaks for a cause, each with the line it stands on."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, replace

from ocrlab.debug.diagnosis import (
    catalogue,
    cuda_compatibility,
    exit_codes,
    kernel_log_lines,
    nvidia_smi,
    oom_message,
    source_in_tracebacks,
)
from ocrlab.debug.diagnosis.log_excerpt import HEAD, TAIL, window
from ocrlab.debug.diagnosis.log_lines import Line, LogText, by_person, log_text
from ocrlab.records import Evidence, Incident

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
    texts = {name: _short(text) for name, text in incident.texts.items() if name != "stacks.txt"}
    ours = kernel_log_lines.own_pids(incident.facts)
    if ours and KERNEL_LOG in texts:
        texts[KERNEL_LOG] = kernel_log_lines.blank_other_processes(texts[KERNEL_LOG], ours)
    cleaned = [source_in_tracebacks.blanked(log_text(name, text, advice.advice)) for name, text in texts.items()]
    if incident.context:
        cleaned.append(log_text(CONTEXT, incident.context, advice.advice))
    return cleaned


def _short(text: str) -> str:
    if len(text) < LONG:
        return text
    return window(io.BytesIO(text.encode("utf-8", errors="replace")))


def find_hits(incident: Incident, texts: list[LogText]) -> list[Hit]:
    """Return every hit of signatures, memory numbers, versions, exit codes and stacks in the texts."""
    spoken = {text.name for text in texts if text.name == CONTEXT or by_person(text.text)}
    hits = [hit for sign in catalogue.load().signs() for hit in _signature(sign, texts, spoken)]
    for order, text in enumerate(texts):
        hits += _memory(text, order)
        hits += _died(text) + _orphan(text)
    hits += _versions(texts)
    return hits


def hit(cause: str, strength: str, evidence: Evidence, why: str = "", order: tuple[int, int] | None = None) -> Hit:
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
            match_hit = hit(sign.cause, sign.strength, quote(text.name, line), sign.why, place)
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
    memory = nvidia_smi.orphan(text.text)
    if memory is None:
        return []
    why = f"{memory.used} of {memory.total} MiB are in use and nvidia-smi shows no process"
    foreign = hit("gpumem.foreign", "strong", quote(text.name, text.line(memory.offset)), why)
    return [replace(foreign, confidence=foreign.confidence + 0.02)]  # a message of OOM alone says less


def _died(text: LogText) -> list[Hit]:
    """Return hits of exit codes and signals in a text; where they stand is not where in time they belong."""
    hits = []
    for name, offset in exit_codes.find(text.text)[:5]:
        line, why = quote(text.name, text.line(offset)), f"a process died of {name}"
        hits += [hit(cause, strength, line, why) for cause, strength in DIED_OF.get(name, ())]
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
            return [hit("build.arch", strength, quote(text.name, text.line(mismatch.offset)), mismatch.why)]
        mismatch = cuda_compatibility.Mismatch(mismatch.why, mismatch.offset - len(text.text) - 1)
    return []


def quote(file: str, line: Line) -> Evidence:
    """Return a line as evidence, shortened to what fits a terminal."""
    text = line.text.strip()
    return Evidence(file, line.number, text if len(text) <= 300 else f"{text[:297]}...")
