"""What a victim program says about itself, beside any recorder: lines in a file, and a mapped slot for each process.

The recorder's word is compared with it after the program was killed, so it shares no code with the recorder.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

SLOTS, SIZE = 8, 512  # slot 0 is the main process, 1 + n is loader worker n
HALF = struct.Struct("<QiH")  # how often, pid, bytes of text


@dataclass(frozen=True)
class Word:
    """The last word of one slot: how often it spoke, who, and what."""

    count: int
    pid: int
    text: str


class Truth:
    """Writes lines and slots into a folder; both are whole after any death of the process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.lines = os.open(folder / "truth.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        slots = os.open(folder / "truth.bin", os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(slots, SLOTS * SIZE)
        self.page = mmap.mmap(slots, SLOTS * SIZE)
        self.replay = os.environ.get("OCRLAB_REPLAY")
        self.counts = [0] * SLOTS

    def write(self, kind: str, **words: Any) -> None:
        """Append one line."""
        line = json.dumps({"kind": kind, "pid": os.getpid(), "replay": self.replay, **words})
        os.write(self.lines, line.encode() + b"\n")

    def now(self, slot: int, text: str) -> None:
        """Put `text` into a slot: the half that is not shown is filled, then a byte turns it round."""
        if self.replay:
            return
        self.counts[slot] += 1
        data = text.encode()[:200]
        side, start = self.counts[slot] % 2, slot * SIZE
        record = HALF.pack(self.counts[slot], os.getpid(), len(data)) + data
        place = start + 8 + side * 240
        self.page[place : place + len(record)] = record
        self.page[start] = side + 1


def states() -> dict[str, int]:
    """Return CRC-32 of the states of the random generators, as Python, NumPy and torch themselves tell them."""
    _, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002  # what a program draws from
    return {
        "python": zlib.crc32(repr((words, gauss)).encode()),
        "numpy": zlib.crc32(repr((kind, position, has_gauss, cached)).encode(), zlib.crc32(keys.tobytes())),
        "torch": zlib.crc32(torch.get_rng_state().numpy().tobytes()),
    }


def slots(folder: Path) -> dict[int, Word]:
    """Return the last word of every slot that has spoken."""
    data, records = (folder / "truth.bin").read_bytes().ljust(SLOTS * SIZE, b"\0"), {}  # it is there before its size is
    for slot in range(SLOTS):
        side = data[slot * SIZE]
        if side:
            place = slot * SIZE + 8 + (side - 1) * 240
            count, pid, length = HALF.unpack_from(data, place)
            records[slot] = Word(count, pid, data[place + HALF.size : place + HALF.size + length].decode())
    return records


def lines(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Return the lines of one kind, in order; a line that death has torn is left out.

    What replays have said went aside, after a copy of what the run has.
    """
    path = folder / "truth.jsonl"
    pattern = f"**/flight/replay-*/*/aside{path.absolute()}"
    copies = sorted(folder.glob(pattern), key=lambda copy: copy.stat().st_mtime)
    records: list[dict[str, Any]] = []
    for text in (raw_line for file in (path, *copies) if file.exists() for raw_line in file.read_bytes().splitlines()):
        try:
            line = json.loads(text)
        except ValueError:
            continue
        records += [line] if line not in records else []
    return [line for line in records if kind in (None, line["kind"])]
