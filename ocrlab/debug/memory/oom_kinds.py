"""Which of the diseases it is: the verdict, the numbers of the message and the growth before it, taken together."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ocrlab.debug.diagnosis import exit_codes
from ocrlab.debug.diagnosis.oom_message import LARGEST_CARD, size_text
from ocrlab.debug.memory.oom_inputs import OomRun

KINDS = {
    "gpumem.capacity": "capacity",
    "gpumem.fragmentation": "fragmentation",
    "gpumem.foreign": "another process",
    "gpumem.leak": "leak",
    "gpumem.raw_alloc": "outside the cache",
    "gpumem.absurd_size": "absurd size",
    "wsl.limits": "WSL limit",
    "host.oom_kill": "killed by the host",
    "host.alloc_fail": "refused by the host",
    "host.shm": "shared memory",
}
ABSURD = 2**40  # bytes of one request
PINNED = re.compile(r"pin_memory|cudaHostAlloc|CachingHostAllocator|pin memory thread")
GROWS = ("capacity", "killed by the host", "refused by the host", "control group", "outside the cache", "fragmentation")


@dataclass(frozen=True)
class OomKind:
    """The disease: its kind, the id of the catalogue, how sure (0..1), and why in numbers; no kind where it is none."""

    kind: str = ""
    cause: str = ""
    confidence: float = 0.0
    why: str = ""


def classify_oom(run: OomRun) -> OomKind:
    """Return which disease it is; empty where nothing says that memory ran out."""
    first = run.verdict.causes[0] if run.verdict.causes else None
    if not run.cause or first is None:
        return OomKind()
    kind = OomKind(KINDS.get(run.cause, run.cause), run.cause, first.confidence, _why(run))
    if run.cause == "host.oom_kill" and not killed_for_memory(run):
        return OomKind()  # a bare SIGKILL of which nobody knows the reason
    if run.cause == "host.oom_kill" and killed_in_group(run):
        kind = OomKind("control group", kind.cause, kind.confidence, kind.why)
    if run.cause in ("gpumem.raw_alloc", "wsl.limits") and PINNED.search(run.text):
        kind = OomKind(
            "pinned memory", kind.cause, kind.confidence, "page-locked host memory was asked for and refused"
        )
    if run.cause == "host.alloc_fail" and is_absurd(run):
        request = run.refused.request if run.refused else None
        kind = OomKind("absurd size", "gpumem.absurd_size", 0.9, f"one request of {size_text(request)}")
    return _grown(run, kind)


def is_absurd(run: OomRun) -> bool:
    """Tell whether the host was asked for more than the whole machine could ever hold."""
    request = run.refused.request if run.refused else None
    limit = run.limit
    return request is not None and (request >= ABSURD or request > 3 * (limit or LARGEST_CARD))


def killed_for_memory(run: OomRun) -> bool:
    """Tell whether anything but a SIGKILL speaks for a kill by the kernel."""
    log = run.text
    if run.facts.get("oom_kills") or re.search(r"(?i)oom|out of memory|memory cgroup", log):
        return True
    sure = bool(run.verdict.causes) and run.verdict.causes[0].confidence >= 0.6
    died = run.incident.signal == "SIGKILL" or exit_codes.name(run.incident.exit_code) == "SIGKILL"
    return sure or (died and run.steep is not None)


def killed_in_group(run: OomRun) -> bool:
    """Tell whether the control group killed, and not the whole machine."""
    return bool(re.search(r"Memory cgroup out of memory|CONSTRAINT_MEMCG|oom_memcg=", run.text)) or bool(
        run.facts.get("oom_kills") and "Out of memory: Killed" not in run.text
    )


def _grown(run: OomRun, kind: OomKind) -> OomKind:
    """Return a leak where memory certainly grew step by step, or was found to by the leak watch, before it ran out."""
    steep = run.steep
    if run.leak is not None and kind.kind in GROWS:
        return OomKind("leak", _leak(kind.cause), 0.95, run.leak.text)
    if steep is None or kind.kind not in GROWS:
        return kind
    series, grown = steep
    share = grown.rise / max(series.values[-1], 1.0)
    if share < 0.2:  # it grows, but most of it was there from the start
        return kind
    per = f"{size_text(int(grown.rate))} a {series.unit}"
    sure = f"95 %: {size_text(int(grown.low))} to {size_text(int(grown.high))}"
    why = f"{series.what} grew by {per} ({sure}), {size_text(int(grown.rise))} in all"
    return OomKind("leak", _leak(kind.cause), min(grown.confidence, 0.95), why)


def _leak(cause: str) -> str:
    return "gpumem.leak" if cause.startswith("gpumem.") else cause


def _why(run: OomRun) -> str:
    """Return the sum in words: of the message's judgement, else the verdict's first line of evidence."""
    for judged in run.judged:
        if judged.cause == run.cause:
            return judged.why
    if run.refused is not None and run.refused.request is not None and run.cause.startswith("host."):
        return f"{size_text(run.refused.request)} were asked for and refused"
    lines = run.verdict.causes[0].evidence
    return f"`{lines[0].text[:200].rstrip('.')}`" if lines else ""
