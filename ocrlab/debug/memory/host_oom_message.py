"""What an allocation of host memory asked for, out of the message that refused it, and the limits of a process."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ocrlab.debug.diagnosis.oom_message import UNITS

REFUSED = re.compile(
    r"you tried to allocate (?P<torch>\d+) bytes"
    r"|Unable to allocate (?P<array>\d+(?:\.\d+)? ?[KMGTPE]?i?B)\b[^\n]{0,40}"
    r"for an array with shape (?P<shape>\([^)]*\))"
    r"|Failed to allocate (?P<opencv>\d+) bytes|memory allocation of (?P<rust>\d+) bytes failed"
    r"|unable to mmap (?P<mapped>\d+) bytes"
    r"|(?P<python>^(?:\w+\.)*MemoryError\b|std::bad_alloc|Cannot allocate memory)",
    re.MULTILINE,
)
SIZED = re.compile(r"(\d+(?:\.\d+)?) ?(\w+)")


@dataclass(frozen=True)
class Refused:
    """An allocation that was refused: its bytes where they are told, the shape of the array, its place in the text."""

    request: int | None
    shape: str
    offset: int


def refused(text: str) -> list[Refused]:
    """Return every refused allocation of host memory in a text, in order; those with a size count first."""
    requests = []
    for match in REFUSED.finditer(text):
        number = next((match[name] for name in ("torch", "opencv", "rust", "mapped") if match[name]), None)
        size = int(number) if number else _size(match["array"])
        requests.append(Refused(size, match["shape"] or "", match.start()))
    return [request for request in requests if request.request is not None] or requests


def _size(text: str | None) -> int | None:
    parts = SIZED.fullmatch(text or "")
    return int(float(parts[1]) * UNITS[parts[2].lower()]) if parts else None
