"""The numbers inside an out-of-memory message or an nvidia-smi table, and whose memory is missing.

Formats: c10/cuda/CUDACachingAllocator.cpp of torch 1.0 (cached), 1.6 to 2.0 (reserved in total) and 2.1 to 2.15
(of the allocated memory ...), CUDAMallocAsyncAllocator.cpp, the MPS and XPU allocators; PaddlePaddle's and TensorFlow's
messages of the same problem.

A cause is named if its end would have made room for this very request.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ocrlab.debug.diagnosis.catalogue import Level

UNITS = {"b": 1, "bytes": 1} | {
    f"{letter}{binary}b": 2 ** (10 * power) for power, letter in enumerate("kmgtpe", 1) for binary in ("", "i")
}
SIZE = r"(\d+(?:\.\d+)?)\s?(bytes|[KMGTPE]i?B|B)\b"
OOM_LINE = re.compile(
    r"out of memory|Out of memory|OutOfMemoryError|(?<!you )[Tt]ried to allocate \d|memory on GPU|OOM when allocating"
    r"|would exceed allowed memory",
    re.ASCII,
)
FIELDS = {
    "request": rf"(?:[Tt]ried to allocate|Cannot allocate|Requested(?: size)?\s*:?|trying to allocate) {SIZE}",
    "total": rf"(?:{SIZE} total capacity|has a total capac(?:i)?ty of {SIZE}|Device limit\s*: {SIZE})",
    "free": rf"(?:;\s*{SIZE} free|of which {SIZE} is free|available memory is only {SIZE}"
    rf"|Free \(according to CUDA\): {SIZE})",
    "process": rf"this process has {SIZE} memory in use",
    "allocated": rf"(?:{SIZE} already allocated|allocated memory {SIZE} is allocated by PyTorch"
    rf"|{SIZE} memory has been allocated|{SIZE} allocated\b|Currently allocated\s*: {SIZE}|MPS allocated: {SIZE})",
    "reserved_total": rf"(?:{SIZE} reserved in total by PyTorch|{SIZE} cached)",
    "unallocated": rf"{SIZE} is reserved by PyTorch but unallocated",
    "private": rf"with {SIZE} allocated in private pools",
    "allowed": rf"(?:{SIZE} allowed|memory fraction\)\s*: {SIZE}|max allowed: {SIZE}"
    rf"|exceed memory limit \({SIZE}\))",
}
PATTERNS = {name: re.compile(pattern) for name, pattern in FIELDS.items()}
OTHERS = re.compile(rf"Process (\d+) has {SIZE} memory in use")
DEVICE = re.compile(r"\bGPU (\d+)")
REACH = 1600  # characters of a message, which launchers sometimes wrap over lines
WRAPPED_UNSIGNED = 2**60  # bytes; 17179869184.00 GiB is a negative number that WSL's driver reported
GIB = 2**30
CONTEXT = 0.8 * GIB  # of a process on the device, with the libraries' kernels: nobody's fault, and nobody can take it
MATERIAL = 0.1  # of the device: what is less explains no error, even where it would have been enough
TORN = 0.05  # of what is reserved: less lies between the blocks of every training
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

    @property
    def outside(self) -> int | None:
        """What this process holds beside torch's allocator: its context, NCCL's buffers, cuBLAS' workspaces."""
        if self.process is None or self.reserved is None or self.process >= WRAPPED_UNSIGNED:
            return None
        return max(self.process - self.reserved, 0)


def parse(text: str) -> list[Oom]:
    """Return every out-of-memory message of a text that holds a number, in order."""
    messages: list[Oom] = []
    last = -1
    for start in OOM_LINE.finditer(text):
        if start.start() < last:
            continue
        begin = text.rfind("\n", 0, start.start()) + 1
        piece = text[begin : start.start() + REACH]
        end = _end(piece, start.start() - begin)
        oom = _parse_message(piece[:end], begin)
        if oom is not None:
            messages.append(oom)
            last = begin + end
        if len(messages) >= 50:
            break
    return messages


def _end(piece: str, offset: int) -> int:
    """Return where the message at an offset ends: at the next message, traceback or empty line."""
    ends = [piece.find(mark, offset + 40) for mark in ("\n\n", "\nTraceback", "\n  File", "CUDA out of memory")]
    ends += [match.start() for match in list(re.finditer(r"out of memory. Tried", piece))[1:2]]
    return min([end for end in ends if end > 0], default=len(piece))


def _parse_message(piece: str, offset: int) -> Oom | None:
    flat = re.sub(r"\s*\n\s*", " ", piece)
    values = {name: _size(pattern.search(flat)) for name, pattern in PATTERNS.items()}
    if "more than 1EB" in flat:
        values["request"] = 2**60
    if all(value is None for value in values.values()):
        return None
    reserved_total = values.pop("reserved_total")
    cached = " cached" in flat and "reserved in total" not in flat
    if values["unallocated"] is None and reserved_total is not None and values["allocated"] is not None:
        beyond = reserved_total - values["allocated"]
        values["unallocated"] = reserved_total if cached and _fits(reserved_total, values) else max(beyond, 0)
    others = {int(pid): _bytes(number, unit) for pid, number, unit in OTHERS.findall(flat)}
    device = DEVICE.search(flat)
    return _in_a_container(
        Oom(**values, others=others or None, device=int(device[1]) if device else None, offset=offset)
    )


def _fits(cached: int, values: dict[str, int | None]) -> bool:
    """Return whether what is cached comes on top of what is allocated, as torch before 1.4 meant it."""
    total, allocated = values["total"], values["allocated"] or 0
    return total is None or cached < allocated or allocated + cached + (values["free"] or 0) <= 1.01 * total


def _in_a_container(oom: Oom) -> Oom:
    """Return a message in which this process is listed as another one: NVML knows it by its number on the host."""
    if oom.process is not None or not oom.others or not oom.reserved:
        return oom
    large = {pid: used for pid, used in oom.others.items() if used >= 0.98 * oom.reserved}
    if not large:
        return oom
    pid = min(large, key=lambda process: large[process])
    rest = {other: size for other, size in oom.others.items() if other != pid}
    return replace(oom, process=large[pid], others=rest or None)


def _size(match: re.Match[str] | None) -> int | None:
    groups = [group for group in match.groups() if group is not None] if match else []
    return _bytes(*groups[:2]) if groups else None


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * UNITS[unit.lower()])


@dataclass(frozen=True)
class Judgement:
    """What the numbers say: an id of the catalogue, how sure, the sum in words, the bytes that its end would free."""

    cause: str
    level: Level
    why: str
    bytes: int = 0


def judge(oom: Oom) -> list[Judgement]:
    """Return the causes that the numbers of one message support, most probable first; empty if none."""
    rivals = [part for part in (_foreign(oom), _fragmented(oom), _outside(oom)) if part is not None]
    most = max((rival.bytes for rival in rivals if rival.level is not Level.POSSIBLE), default=0)
    rivals = [rival if rival.bytes >= most else replace(rival, level=Level.POSSIBLE) for rival in rivals]
    judgements = [part for part in (_absurd(oom), *rivals, _capacity(oom)) if part is not None]
    if oom.process is not None and oom.process >= WRAPPED_UNSIGNED:
        why = "the driver reports a negative amount, as only WSL2's does"
        judgements.insert(-1, Judgement("wsl.limits", Level.STRONG, why))
    return sorted(judgements, key=lambda judgement: -judgement.level.value)


def _absurd(oom: Oom) -> Judgement | None:
    if oom.request is None:
        return None
    limit = 3 * oom.total if oom.total else LARGEST_CARD
    if oom.request >= limit:
        against = f" of a device with {size_text(oom.total)}" if oom.total else ""
        level = Level.DECISIVE if oom.request >= NOWHERE else Level.LIKELY  # where a wrong size comes from is open
        return Judgement("gpumem.absurd_size", level, f"one request of {size_text(oom.request)}{against}")
    spills = (oom.ours or 0) > (oom.total or 0)  # Windows lends the card the host's memory
    if oom.total and oom.request > oom.total and not spills:
        why = f"one request of {size_text(oom.request)} is larger than the whole device ({size_text(oom.total)})"
        return Judgement("gpumem.absurd_size", Level.LIKELY, why)
    return None


def _foreign(oom: Oom) -> Judgement | None:
    """More than a tenth of the device is held by somebody else, and this request would have fitted into it."""
    if not oom.foreign:
        return None
    named = sum((oom.others or {}).values())
    context = 0 if oom.process is not None or named else CONTEXT  # older messages leave the own context out
    foreign = oom.foreign - context
    if oom.total is None or foreign < MATERIAL * oom.total:
        return None
    share, ours = foreign / oom.total, oom.ours or 0
    whose = f"named processes hold {size_text(named)}" if named else ""
    whose = whose or f"other processes hold about {size_text(int(foreign))}"
    why = f"{whose} of {size_text(oom.total)}; this process holds {size_text(oom.ours)}"
    most_of_it = share >= 0.5 or (share >= 0.3 and ours < 0.25 * oom.total)
    level = Level.STRONG if most_of_it else Level.LIKELY
    if ours + (oom.request or 0) > oom.total:
        level = Level.POSSIBLE  # it would not have fitted into an empty device either
    return Judgement("gpumem.foreign", level, why, int(foreign))


def _fragmented(oom: Oom) -> Judgement | None:
    """Enough is reserved and not in use for this request, or with what is free, only not in one piece."""
    idle, request, free = oom.unallocated, oom.request, oom.free or 0
    if idle is None or request is None:
        return None
    if idle >= request:
        share = idle / max(oom.reserved or 1, 1)
        why = f"{size_text(idle)} is reserved but unallocated, more than the {size_text(request)} asked for"
        level = Level.STRONG if share >= 0.2 else Level.LIKELY if share >= TORN else Level.POSSIBLE
        return Judgement("gpumem.fragmentation", level, why, idle)
    if idle >= MATERIAL * (oom.total or oom.reserved or 1) and idle + free >= request > free:
        both = f"{size_text(idle)} reserved but unallocated and {size_text(oom.free)} free"
        why = f"{both} are more than the {size_text(request)} asked for"
        return Judgement("gpumem.fragmentation", Level.LIKELY, why, idle)
    return None


def _outside(oom: Oom) -> Judgement | None:
    """Far more than a context is held by this process beside torch's allocator, and it would have been enough."""
    if oom.outside is None or oom.total is None or oom.request is None:
        return None
    beyond = oom.outside - CONTEXT
    if beyond < 2 * MATERIAL * oom.total or (oom.free or 0) + beyond < oom.request:
        return None
    why = f"{size_text(oom.outside)} of this process are outside torch's allocator (NCCL, cuBLAS, other libraries)"
    return Judgement("gpumem.raw_alloc", Level.LIKELY, why, int(beyond))


def _capacity(oom: Oom) -> Judgement:
    request, total, ours = oom.request or 0, oom.total or 0, oom.ours or 0
    limited = oom.allowed and request and total and oom.allowed < 0.999 * total
    if limited and (oom.reserved or 0) + request > (oom.allowed or 0):
        limit = size_text(oom.allowed)
        why = f"{size_text(request)} more would pass the limit of {limit} that this program set itself"
        return Judgement("gpumem.capacity", Level.STRONG, why)
    level, why = Level.LIKELY, "the message does not say who holds the memory"
    if _absurd(oom):
        level, why = Level.POSSIBLE, f"one request of {size_text(request)} of {size_text(oom.total)}"
    elif total and ours and request:
        why = f"this process holds {size_text(ours)} of {size_text(total)} and asks for {size_text(request)} more"
        full = ours + request > total  # a single message cannot tell it from a leak
        likely = (full and ours >= 0.8 * total) or (request <= total and (full or ours >= 0.6 * total))
        level = Level.LIKELY if likely else Level.POSSIBLE
    elif request > 0.5 * total > 0:
        why = f"one request of {size_text(request)} of {size_text(total)}"
    return Judgement("gpumem.capacity", level, why)


def size_text(size: int | None) -> str:
    """Return a size in bytes in the unit that torch would print."""
    if size is None:
        return "an unknown amount"
    for unit, power in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= power:
            return f"{size / power:.2f} {unit}"
    return f"{size} bytes"
