"""Which of the diseases it is: the verdict, the numbers of the message and the growth before it, taken together."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ocrlab.debug.diagnosis import exit_codes
from ocrlab.debug.diagnosis.oom_message import LARGEST_CARD, size_text
from ocrlab.debug.memory.oom_inputs import Known

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
class Split:
    """The disease: its kind, the id of the catalogue, how sure (0..1), and why in numbers; no kind where it is none."""

    kind: str = ""
    cause: str = ""
    confidence: float = 0.0
    why: str = ""


def split(known: Known) -> Split:
    """Return which disease it is; empty where nothing says that memory ran out."""
    first = known.verdict.causes[0] if known.verdict.causes else None
    if not known.cause or first is None:
        return Split()
    found = Split(KINDS.get(known.cause, known.cause), known.cause, first.confidence, _why(known))
    if known.cause == "host.oom_kill" and not killed(known):
        return Split()  # a bare SIGKILL of which nobody knows the reason
    if known.cause == "host.oom_kill" and of_group(known):
        found = Split("control group", found.cause, found.confidence, found.why)
    if known.cause in ("gpumem.raw_alloc", "wsl.limits") and PINNED.search(known.text):
        found = Split(
            "pinned memory", found.cause, found.confidence, "page-locked host memory was asked for and refused"
        )
    if known.cause == "host.alloc_fail" and absurd(known):
        request = known.refused.request if known.refused else None
        found = Split("absurd size", "gpumem.absurd_size", 0.9, f"one request of {size_text(request)}")
    return _grown(known, found)


def absurd(known: Known) -> bool:
    """Tell whether the host was asked for more than the whole machine could ever hold."""
    request = known.refused.request if known.refused else None
    limit = known.limit
    return request is not None and (request >= ABSURD or request > 3 * (limit or LARGEST_CARD))


def killed(known: Known) -> bool:
    """Tell whether anything but a SIGKILL speaks for a kill by the kernel."""
    log = known.text
    if known.facts.get("oom_kills") or re.search(r"(?i)oom|out of memory|memory cgroup", log):
        return True
    sure = bool(known.verdict.causes) and known.verdict.causes[0].confidence >= 0.6
    died = known.incident.signal == "SIGKILL" or exit_codes.name(known.incident.exit_code) == "SIGKILL"
    return sure or (died and known.steep is not None)


def of_group(known: Known) -> bool:
    """Tell whether the control group killed, and not the whole machine."""
    return bool(re.search(r"Memory cgroup out of memory|CONSTRAINT_MEMCG|oom_memcg=", known.text)) or bool(
        known.facts.get("oom_kills") and "Out of memory: Killed" not in known.text
    )


def _grown(known: Known, found: Split) -> Split:
    """Return a leak where memory certainly grew step by step, or was found to by the leak watch, before it ran out."""
    steep = known.steep
    if known.leak is not None and found.kind in GROWS:
        return Split("leak", _leak(found.cause), 0.95, known.leak.text)
    if steep is None or found.kind not in GROWS:
        return found
    series, grown = steep
    share = grown.rise / max(series.values[-1], 1.0)
    if share < 0.2:  # it grows, but most of it was there from the start
        return found
    per = f"{size_text(int(grown.rate))} a {series.unit}"
    sure = f"95 %: {size_text(int(grown.low))} to {size_text(int(grown.high))}"
    why = f"{series.what} grew by {per} ({sure}), {size_text(int(grown.rise))} in all"
    return Split("leak", _leak(found.cause), min(grown.confidence, 0.95), why)


def _leak(cause: str) -> str:
    return "gpumem.leak" if cause.startswith("gpumem.") else cause


def _why(known: Known) -> str:
    """Return the sum in words: of the message's judgement, else the verdict's first line of evidence."""
    for judged in known.judged:
        if judged.cause == known.cause:
            return judged.why
    if known.refused is not None and known.refused.request is not None and known.cause.startswith("host."):
        return f"{size_text(known.refused.request)} were asked for and refused"
    lines = known.verdict.causes[0].evidence
    return f"`{lines[0].text[:200].rstrip('.')}`" if lines else ""
