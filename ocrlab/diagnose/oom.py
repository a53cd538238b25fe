"""The numbers inside an out-of-memory message, and what they say about whose memory is missing.

Formats: c10/cuda/CUDACachingAllocator.cpp of torch 1.0 (cached), 1.6 to 2.0 (reserved in total) and 2.1 to 2.15
(of the allocated memory ...); PaddlePaddle's and TensorFlow's messages of the same disease.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

UNITS = {"b": 1, "bytes": 1, "kib": 2**10, "kb": 2**10, "mib": 2**20, "mb": 2**20, "gib": 2**30, "gb": 2**30}
UNITS |= {"tib": 2**40, "tb": 2**40, "pib": 2**50, "eb": 2**60, "eib": 2**60}
SIZE = r"(\d+(?:\.\d+)?)\s?(bytes|[KMGTPE]i?B|B)\b"
FOUND = re.compile(
    r"out of memory|Out of memory|OutOfMemoryError|(?<!you )[Tt]ried to allocate \d|memory on GPU|OOM when allocating",
    re.ASCII,
)
FIELDS = {
    "request": rf"(?:[Tt]ried to allocate|Cannot allocate|Requested size:?|trying to allocate) {SIZE}",
    "total": rf"(?:{SIZE} total capacity|has a total capacity of {SIZE})",
    "free": rf"(?:;\s*{SIZE} free|of which {SIZE} is free|available memory is only {SIZE})",
    "process": rf"this process has {SIZE} memory in use",
    "allocated": rf"(?:{SIZE} already allocated|allocated memory {SIZE} is allocated by PyTorch"
    rf"|{SIZE} memory has been allocated|{SIZE} allocated\b)",
    "reserved_total": rf"(?:{SIZE} reserved in total by PyTorch|{SIZE} cached)",
    "unallocated": rf"{SIZE} is reserved by PyTorch but unallocated",
    "private": rf"with {SIZE} allocated in private pools",
    "allowed": rf"{SIZE} allowed",
}
PATTERNS = {name: re.compile(pattern) for name, pattern in FIELDS.items()}
OTHERS = re.compile(rf"Process (\d+) has {SIZE} memory in use")
DEVICE = re.compile(r"\bGPU (\d+)")
REACH = 1600  # characters of a message, which launchers sometimes wrap over lines
WRAPPED_UNSIGNED = 2**60  # bytes; 17179869184.00 GiB is a negative number that WSL's driver reported

GIB = 2**30
LARGEST_CARD = 192 * GIB  # where the message does not name the device
NOWHERE = 2**50  # bytes; no machine has them, so it is a negative number or an overflow


@dataclass(frozen=True)
class Oom:
    """One out-of-memory message; sizes in bytes, None where the message does not say.

    `unallocated` is reserved by PyTorch but unallocated; `others` are the processes that the message names.
    """

    request: int | None = None
    total: int | None = None
    free: int | None = None
    process: int | None = None
    allocated: int | None = None
    unallocated: int | None = None
    private: int | None = None
    allowed: int | None = None
    others: dict[int, int] | None = None
    device: int | None = None
    offset: int = 0

    @property
    def reserved(self) -> int | None:
        """What the caching allocator holds, in use or not."""
        if self.allocated is None or self.unallocated is None:
            return self.allocated
        return self.allocated + self.unallocated

    @property
    def ours(self) -> int | None:
        """What this process holds on the device, as far as the message tells."""
        wrapped = self.process is not None and self.process >= WRAPPED_UNSIGNED
        return self.reserved if self.process is None or wrapped else self.process

    @property
    def foreign(self) -> int | None:
        """What is neither free nor ours: other processes, and a CUDA context where the message leaves it out."""
        named = sum((self.others or {}).values())
        if self.total is None or self.free is None or self.ours is None:
            return named or None
        return max(self.total - self.free - self.ours, named, 0)


def parse(text: str) -> list[Oom]:
    """Return every out-of-memory message of a text that holds a number, in order."""
    found: list[Oom] = []
    last = -1
    for start in FOUND.finditer(text):
        if start.start() < last:
            continue
        begin = text.rfind("\n", 0, start.start()) + 1
        piece = text[begin : begin + REACH]
        end = _end(piece)
        oom = _one(piece[:end], begin)
        if oom is not None:
            found.append(oom)
            last = begin + end
        if len(found) >= 50:
            break
    return found


def _end(piece: str) -> int:
    """Return where a message ends: at the next message, traceback or empty line."""
    ends = [piece.find(mark, 40) for mark in ("\n\n", "\nTraceback", "\n  File", "CUDA out of memory")]
    second = re.compile(r"out of memory. Tried").finditer(piece)
    ends += [found.start() for found in list(second)[1:2]]
    return min([end for end in ends if end > 0], default=len(piece))


def _one(piece: str, offset: int) -> Oom | None:
    flat = re.sub(r"\s*\n\s*", " ", piece)
    values = {name: _size(pattern.search(flat)) for name, pattern in PATTERNS.items()}
    if "more than 1EB" in flat:
        values["request"] = 2**60
    if all(value is None for value in values.values()):
        return None
    reserved_total = values.pop("reserved_total")
    if values["unallocated"] is None and reserved_total is not None and values["allocated"] is not None:
        cached = reserved_total if "cached" in flat and "reserved in total" not in flat else None
        # torch before 1.2 printed what is cached and not in use, later versions everything reserved.
        beyond = reserved_total - values["allocated"]
        values["unallocated"] = cached if cached is not None and beyond < 0 else max(beyond, 0)
    others = {int(pid): _bytes(number, unit) for pid, number, unit in OTHERS.findall(flat)}
    device = DEVICE.search(flat)
    return Oom(**values, others=others or None, device=int(device[1]) if device else None, offset=offset)


def _size(found: re.Match[str] | None) -> int | None:
    if found is None:
        return None
    number, unit = [group for group in found.groups() if group is not None][:2]
    return _bytes(number, unit)


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * UNITS[unit.lower()])


@dataclass(frozen=True)
class Judgement:
    """What the numbers say: an id of the catalogue, how sure, and the sum in words."""

    cause: str
    confidence: float
    why: str


def judge(oom: Oom) -> list[Judgement]:
    """Return what the numbers of one message speak for, most probable first; empty where they say nothing."""
    found = [part for part in (_absurd(oom), _wsl(oom), _foreign(oom), _fragmented(oom)) if part is not None]
    found.append(_capacity(oom))
    return sorted(found, key=lambda judgement: -judgement.confidence)


def _absurd(oom: Oom) -> Judgement | None:
    if oom.request is None:
        return None
    limit = 3 * oom.total if oom.total else LARGEST_CARD
    if oom.request >= limit:
        against = f" of a device with {words(oom.total)}" if oom.total else ""
        sure = 0.9 if oom.request >= NOWHERE else 0.7  # that the size is wrong is certain, not where it comes from
        return Judgement("gpumem.absurd_size", sure, f"one request of {words(oom.request)}{against}")
    if oom.total and oom.request > oom.total:
        why = f"one request of {words(oom.request)} is larger than the whole device ({words(oom.total)})"
        return Judgement("gpumem.absurd_size", 0.7, why)
    return None


def _wsl(oom: Oom) -> Judgement | None:
    if oom.process is not None and oom.process >= WRAPPED_UNSIGNED:
        return Judgement("wsl.limits", 0.85, "the driver reports a negative amount, as only WSL2's does")
    return None


def _foreign(oom: Oom) -> Judgement | None:
    """More than a tenth of the device is held by somebody else, and this request would have fitted into it."""
    if not oom.foreign:
        return None
    named = sum((oom.others or {}).values())
    context = 0 if oom.process is not None or named else 0.8 * GIB  # older messages leave the own context out
    foreign = oom.foreign - context
    if oom.total is None or foreign < 0.1 * oom.total:
        return None
    share = foreign / oom.total
    whose = (
        f"named processes hold {words(named)}" if named else f"about {words(int(foreign))} is held by nobody of ours"
    )
    why = f"{whose} of {words(oom.total)}; this process holds {words(oom.ours)}"
    needed = (oom.ours or 0) + (oom.request or 0)
    if share >= 0.5 or (oom.ours or 0) < 0.25 * oom.total:
        sure = 0.88 if share >= 0.3 else 0.7
    else:
        sure = 0.72 if share >= 0.25 else 0.55
    if needed > oom.total:
        sure = min(sure, 0.4)  # it would not have fitted into an empty device either
    return Judgement("gpumem.foreign", sure, why)


def _fragmented(oom: Oom) -> Judgement | None:
    """Enough is reserved and not in use for this request, only not in one piece."""
    if oom.unallocated is None or oom.request is None or oom.unallocated < oom.request:
        return None
    reserved = oom.reserved or 1
    share = oom.unallocated / max(reserved, 1)
    why = f"{words(oom.unallocated)} is reserved but unallocated, more than the {words(oom.request)} asked for"
    if share >= 0.2:
        return Judgement("gpumem.fragmentation", 0.86, why)
    return Judgement("gpumem.fragmentation", 0.66 if share >= 0.08 else 0.45, why)


def _capacity(oom: Oom) -> Judgement:
    if oom.total and oom.ours and oom.request:
        share = (oom.ours + oom.request) / oom.total
        held = oom.ours / oom.total
        why = f"this process holds {words(oom.ours)} of {words(oom.total)} and asks for {words(oom.request)} more"
        if share > 1 and held >= 0.8:
            return Judgement("gpumem.capacity", 0.7, why)  # one message cannot tell it from a leak
        fits = oom.request <= oom.total
        return Judgement("gpumem.capacity", 0.65 if fits and (held >= 0.6 or share > 1) else 0.5, why)
    if oom.total and oom.request and oom.request > 0.5 * oom.total:
        return Judgement("gpumem.capacity", 0.6, f"one request of {words(oom.request)} of {words(oom.total)}")
    return Judgement("gpumem.capacity", 0.6, "the message does not say who holds the memory")


def words(size: int | None) -> str:
    """Return a size in bytes in the unit that torch would print."""
    if size is None:
        return "an unknown amount"
    for unit, power in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= power:
            return f"{size / power:.2f} {unit}"
    return f"{size} bytes"
