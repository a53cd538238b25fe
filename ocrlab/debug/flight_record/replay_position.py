"""Where a replayed step is now: one mapped page that still says it after SIGKILL, SIGSEGV or in an endless operator.

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
HEADER = struct.Struct("<8sBB6x")  # magic, which side holds, whether what began there has ended
SIDE = struct.Struct("<QddI")  # count, monotonic seconds, the longest of them between two places, bytes of the text
ROOM = 8192  # bytes of one side
SIZE = 5 * 4096


class Writer:
    """The trail of this process, in a new file; raises OSError."""

    def __init__(self, path: Path | str) -> None:
        self.page = shared_file.create(path, SIZE)
        self.count, self.side, self.last, self.slowest = 0, 0, 0.0, 0.0
        self.page[: HEADER.size] = HEADER.pack(MAGIC, 0, 0)

    def enter(self, place: dict[str, Any]) -> None:
        """Say what begins now: JSON-ready values; texts that are too long are left out, the longest first."""
        data = json.dumps(place, separators=(",", ":"), default=str).encode()
        while len(data) > ROOM - SIDE.size:
            place = {**place, max(place, key=lambda name: len(str(place[name]))): "..."}
            data = json.dumps(place, separators=(",", ":"), default=str).encode()
        self.count += 1
        side = 1 - self.side
        start = HEADER.size + side * ROOM
        now = time.monotonic()
        self.slowest = max(self.slowest, now - self.last) if self.last else 0.0
        self.last = now
        data = SIDE.pack(self.count, now, self.slowest, len(data)) + data
        self.page[start : start + len(data)] = data
        self.page[9] = 0
        self.page[8] = self.side = side

    def leave(self) -> None:
        """Say that what began last has ended."""
        self.page[9] = 1

    def close(self) -> None:
        """Give the page back; what it says stays."""
        self.page.close()


@dataclass(frozen=True)
class ReplayPosition:
    """The last place, how many there were, when it was told (monotonic seconds), and the longest time between two.

    `done` means that what began there has ended, and nothing else has begun.
    """

    place: dict[str, Any]
    count: int
    time: float
    slowest: float
    done: bool = False


def read(path: Path | str) -> ReplayPosition | None:
    """Return the last word of a trail; None where there is none."""
    try:
        data = Path(path).read_bytes()
        magic, side, done = HEADER.unpack_from(data)
        count, when, slowest, length = SIDE.unpack_from(data, HEADER.size + (side & 1) * ROOM)
        start = HEADER.size + (side & 1) * ROOM + SIDE.size
        place = json.loads(data[start : start + length]) if magic == MAGIC and count else None
    except (OSError, struct.error, ValueError):
        return None
    return ReplayPosition(place, count, when, slowest, bool(done)) if isinstance(place, dict) else None
