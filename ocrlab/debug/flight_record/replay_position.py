"""Where a replayed step is now: one mapped page that still holds it after SIGKILL, SIGSEGV or in an endless operator.

A place is a small JSON object; it is written beside the last one, and one byte switches between them.
"""

from __future__ import annotations

import json
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ocrlab.run_folder import shared_file

MAGIC = b"OCRLABT1"
HEADER = struct.Struct("<8sBB6x")  # magic, which place is valid, whether what began there has ended
PLACE = shared_file.DoubleBuffer(selector=8, first=HEADER.size, size=8192)
HAS_ENDED = 9  # offset in the header
ENTRY = struct.Struct("<QddI")  # count, monotonic seconds, the longest time between two places, bytes of the text
SIZE = 5 * 4096


class Writer:
    """The position of this process, in a new file; raises OSError."""

    def __init__(self, path: Path | str) -> None:
        self.page = shared_file.create(path, SIZE)
        self.count, self.last, self.slowest = 0, 0.0, 0.0
        self.page[: HEADER.size] = HEADER.pack(MAGIC, 0, 0)

    def enter(self, place: dict[str, Any]) -> None:
        """Write what begins now: JSON-ready values; texts that are too long are left out, the longest first."""
        data = _encode(place)
        while len(data) > PLACE.size - ENTRY.size:
            place = {**place, max(place, key=lambda name: len(str(place[name]))): "..."}
            data = _encode(place)
        now = time.monotonic()
        self.count += 1
        self.slowest = max(self.slowest, now - self.last) if self.last else 0.0
        self.last = now
        PLACE.write(self.page, ENTRY.pack(self.count, now, self.slowest, len(data)) + data)
        self.page[HAS_ENDED] = 0

    def leave(self) -> None:
        """Write that what began last has ended."""
        self.page[HAS_ENDED] = 1

    def close(self) -> None:
        """Close the file; its content stays."""
        self.page.close()


def _encode(place: dict[str, Any]) -> bytes:
    return json.dumps(place, separators=(",", ":"), default=str).encode()


@dataclass(frozen=True)
class ReplayPosition:
    """The last place, how many there were, when it was entered (monotonic seconds), the longest time between two.

    `done` means that what began there has ended, and nothing else has begun.
    """

    place: dict[str, Any]
    count: int
    time: float
    slowest: float
    done: bool = False


def read(path: Path | str) -> ReplayPosition | None:
    """Return the last position in a file; None where there is none."""
    try:
        data = Path(path).read_bytes()
        magic, _, has_ended = HEADER.unpack_from(data)
        entry = PLACE.read(data)
        count, when, slowest, length = ENTRY.unpack_from(entry)
        place = json.loads(entry[ENTRY.size : ENTRY.size + length]) if magic == MAGIC and count else None
    except (OSError, struct.error, ValueError, IndexError):
        return None
    return ReplayPosition(place, count, when, slowest, bool(has_ended)) if isinstance(place, dict) else None
