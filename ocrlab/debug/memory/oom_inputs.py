"""What a run that may have run out of memory left behind: messages, memory over time, phase and limits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ocrlab.debug.diagnosis import classify, oom_message
from ocrlab.debug.diagnosis.catalogue import Level
from ocrlab.debug.diagnosis.evidence import CONTEXT
from ocrlab.debug.diagnosis.hangs.stack_patterns import is_library
from ocrlab.debug.diagnosis.log_records import Line, LoggedException, read_records
from ocrlab.debug.diagnosis.oom_message import UNITS
from ocrlab.debug.flight_record import ring_reader
from ocrlab.debug.memory import memory_series
from ocrlab.debug.memory.memory_series import Growth, Series, growth
from ocrlab.errors import OcrlabError
from ocrlab.records import Incident, Verdict

REFUSED = re.compile(
    r"(?:you tried to allocate|Failed to allocate|unable to mmap|memory allocation of) (?P<bytes>\d+) bytes"
    r"|Unable to allocate (?P<array>\d+(?:\.\d+)? ?[KMGTPE]?i?B)\b[^\n]{0,40}"
    r"for an array with shape (?P<shape>\([^)]*\))"
    r"|^(?:\w+\.)*MemoryError\b|std::bad_alloc|Cannot allocate memory",
    re.MULTILINE,
)
SIZED = re.compile(r"(\d+(?:\.\d+)?) ?(\w+)")


@dataclass(frozen=True)
class Refused:
    """A refused allocation: its bytes if the message names them, the shape of the array, its place in the text."""

    request: int | None
    shape: str
    offset: int


def find_refusals(text: str) -> list[Refused]:
    """Return every refused allocation of host memory in a text, in order; those with a size count first."""
    refused = []
    for match in REFUSED.finditer(text):
        parts = SIZED.fullmatch(match["array"] or "")
        size = int(float(parts[1]) * UNITS[parts[2].lower()]) if parts else int(match["bytes"] or 0) or None
        refused.append(Refused(size, match["shape"] or "", match.start()))
    return [each for each in refused if each.request is not None] or refused


MEMORY = ("gpumem.", "host.oom_kill", "host.alloc_fail", "host.shm", "wsl.limits")
LEAK = re.compile(
    r"(?P<mib>\d+(?:\.\d+)?) MiB a step are kept by (?P<holder>[^\n]+?)(?: at (?P<at>[^\s:]+:\d+))?(?::|\.)[^\n]*"
)
VALIDATES = re.compile(r"(?i)valid|eval|test_step|test_epoch|inference|predict")
GROUP_LIMIT = re.compile(r"\bmemory: usage \d+kB, limit (\d{1,15})kB")  # mm/memcontrol.c, both versions of groups


@dataclass(frozen=True)
class SourceLine:
    """A line of a file of the run."""

    file: str
    line: int | None
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass
class OomRun:
    """What is known: the verdict, messages of the GPU's allocator and the host's, series with their growth, phase."""

    incident: Incident
    verdict: Verdict
    folder: Path | None = None
    message: oom_message.Oom | None = None
    judged: list[oom_message.Judgement] = field(default_factory=list)
    message_at: SourceLine | None = None  # of the message
    refused: Refused | None = None
    refused_at: SourceLine | None = None
    grown: list[tuple[Series, Growth]] = field(default_factory=list)
    leak: SourceLine | None = None  # the line of a leak that was found while it ran
    phase: str = ""
    phase_at: str = ""
    step: int | None = None
    samples: list[str] = field(default_factory=list)
    place: SourceLine | None = None  # of the program's own, where the allocation was
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def facts(self) -> Mapping[str, Any]:
        """What was measured from outside."""
        return self.incident.facts

    @property
    def cards(self) -> list[dict[str, Any]]:
        """The GPUs at the failure, as the watcher saw them."""
        return list((self.facts.get("gpus") or {}).get("cards") or ())

    def speaks_for(self, cause: str) -> bool:
        """Return whether the numbers of the message make a cause more than possible."""
        return any(judged.cause == cause and judged.level is not Level.POSSIBLE for judged in self.judged)

    @property
    def text(self) -> str:
        """All that the program said."""
        return "\n".join(text for name, text in self.incident.texts.items() if name != "stacks.txt")

    @property
    def cause(self) -> str:
        """The first cause of the verdict that is one of memory, empty where there is none."""
        return next((cause.id for cause in self.verdict.causes[:1] if cause.id.startswith(MEMORY)), "")

    @property
    def limit(self) -> int | None:
        """The limit on host memory: of its control group, by the watcher or the kernel's log, else where it started."""
        memory = self.facts.get("memory")
        group = memory.get("group") if isinstance(memory, Mapping) else None
        limit = group.get("limit") if isinstance(group, Mapping) else None
        if not isinstance(limit, int | float):
            match = GROUP_LIMIT.search(self.incident.texts.get("kernel_log.txt", ""))
            limit = int(match[1]) << 10 if match else self.facts.get("memory_limit_bytes")
        return int(limit) if isinstance(limit, int | float) else None

    @property
    def steep(self) -> tuple[Series, Growth] | None:
        """The series that certainly grows; on a GPU before the host, allocated before reserved."""
        sure = [pair for pair in self.grown if pair[1].grows and not pair[0].early]
        if self.message is not None:
            sure = [pair for pair in sure if pair[0].where == "gpu"]
        elif self.cause.startswith("host."):
            sure = [pair for pair in sure if pair[0].where != "gpu"]
        return next(iter(sure), None)


def collect(incident: Incident, folder: Path | None = None, config: Mapping[str, Any] | None = None) -> OomRun:
    """Return everything that an incident, and the run folder if there is one, tell about memory."""
    run = OomRun(incident, classify.classify(incident), folder, config=dict(config or {}))
    _messages(run)
    limit = run.message.total if run.message else run.limit
    for series in memory_series.gather(folder, incident.texts, incident.facts):
        run.grown.append((series, growth(series.at, series.values, limit)))
    leaks = ((name, text, LEAK.search(text)) for name, text in incident.texts.items())
    run.leak = next((_line_at(name, text, match.start()) for name, text, match in leaks if match), None)
    _phase(run)
    return run


def _messages(run: OomRun) -> None:
    """Find the first message with numbers, of the allocator of the GPU and of the host's."""
    for name, text in run.incident.texts.items():
        if name in ("stacks.txt", CONTEXT):
            continue
        messages = oom_message.parse(text)
        if messages and run.message is None:
            whole = next((message for message in messages if message.request is not None), messages[0])
            run.message, run.message_at = whole, _line_at(name, text, whole.offset)
            run.judged = oom_message.judge(whole)
            run.place = _frame(text, whole.offset)
        refused = find_refusals(text)
        if refused and run.refused is None:
            run.refused, run.refused_at = refused[0], _line_at(name, text, refused[0].offset)
            run.place = run.place or _frame(text, refused[0].offset)


def _phase(run: OomRun) -> None:
    """Find in which phase it ended: from the flight record, the heartbeat, or the frames of the last traceback."""
    for path in ring_reader.find_rings(run.folder) if run.folder else []:
        try:
            now = ring_reader.read_ring(path).now
        except (OcrlabError, OSError):
            continue
        if now is not None:
            run.phase, run.step, run.samples = now.phase, now.number, list(now.samples)
            run.phase_at = f"flight/{path.name}"
            return
    beat = run.facts.get("heartbeat")
    if isinstance(beat, Mapping) and beat.get("phase"):
        run.phase, run.phase_at = str(beat["phase"]), "facts.json"
        run.step = beat["step"] if isinstance(beat.get("step"), int) else None
        run.samples = [str(beat["sample"])] if beat.get("sample") else []
        return
    for name, text in run.incident.texts.items():
        traced = [exception for exception in _exceptions(text) if exception.traced]
        frames = [frame for exception in traced[-1:] for frame in exception.frames if VALIDATES.search(frame.function)]
        if frames:
            run.phase, run.phase_at = "validation", f"{name}:{frames[0].number}"
            return


def _exceptions(text: str) -> Sequence[LoggedException]:
    return read_records([Line(number, line) for number, line in enumerate(text.split("\n"), 1)]).exceptions


def _frame(text: str, offset: int) -> SourceLine | None:
    """Return the innermost frame of the program's own in the traceback that ends at a message."""
    number = text.count("\n", 0, offset) + 1
    traced = [e for e in _exceptions(text) if e.traced and e.first <= number]
    frames = [frame for exception in traced[-1:] for frame in exception.frames if not is_library(frame)]
    return SourceLine(frames[-1].file, frames[-1].line, frames[-1].source.strip()) if frames else None


def _line_at(name: str, text: str, offset: int) -> SourceLine:
    begin = text.rfind("\n", 0, offset) + 1
    line = text[begin:].partition("\n")[0]
    return SourceLine(name, text.count("\n", 0, offset) + 1, line.strip()[:300])
