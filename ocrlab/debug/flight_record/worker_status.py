"""The page of a loader worker: the sample that it is on now, the batch that this belongs to, and what failed in it."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import struct
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ocrlab.debug.flight_record.ring_format import ENCODE, State, States

MAGIC = b"OCRLABW2"
SIZE = 256 * 1024
HEAD = struct.Struct("<8sqiid")  # magic, pid, worker, loader, seconds since 1970
SAMPLE_AT, SAMPLE = 64, struct.Struct("<dH238s")  # selector, then two: when, length, text
BATCH_AT, BATCH_BYTES = 4096, 120 * 1024  # selector, then two batches; the failed one lies where nobody writes again
# Of the states, and of the order with what of the states moves in each batch: bytes, CRC-32. They follow in this order;
# states that were written there already are not written again.
BATCH = struct.Struct("<IIII")
LENGTH = struct.Struct("<I")
PLACES = SAMPLE_AT, SAMPLE.size, BATCH_AT, BATCH_BYTES  # what writes into it from C is told
FAILED_AT = 600  # 1 + the side of the batch that failed, and its sample follows
NAME = re.compile(r"worker-(\d+)-(\d+)-(\d+)-(\d+)\.bin")


@dataclass
class Worker:
    """A loader worker: the sample it is on (or was, when it ended), the order of its batch, and the one that failed.

    An order is what rebuilds a batch: {"indices", "worker", "workers", ...}, with the random states before it.
    """

    pid: int
    worker: int
    sample: str
    time: float
    loader: int = 0
    order: dict[str, Any] = field(default_factory=dict)
    loaded: dict[str, bytes] = field(default_factory=dict)
    failed: str = ""  # sample at which the dataset raised for the first time
    failed_at: float = 0.0  # seconds since 1970


class Page:
    """The page of this worker, in a new file; raises OSError."""

    def __init__(self, folder: Path | str, rank: int, start: int, loader: int, worker: int) -> None:
        path = Path(folder, f"worker-{rank}-{start}-{loader}-{worker}.bin")
        part = path.with_name(f".{path.name}.{os.getpid()}")
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, bytes(SIZE))
            self.page = mmap.mmap(descriptor, SIZE)
            HEAD.pack_into(self.page, 0, MAGIC, os.getpid(), worker, loader, time.time())
            os.replace(part, path)
        finally:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                part.unlink()
        self.held = False  # a batch has failed and stays
        self.notes: Any = None  # writes the same in C, and is told what it has not written
        self.still: list[Mapping[str, State] | None] = [None, None]  # the states that are written on each side,
        self.written = [(0, 0), (0, 0)]  # their bytes and checksum

    def sample(self, name: str) -> None:
        """Say which sample is being loaded."""
        text = name.encode(errors="replace")[:238]
        side = 1 - self.page[SAMPLE_AT]
        SAMPLE.pack_into(self.page, SAMPLE_AT + 8 + side * SAMPLE.size, time.time(), len(text), text)
        self.page[SAMPLE_AT] = side

    def batch(self, order: str, loaded: States) -> None:
        """Say which batch is being loaded, as JSON, and the states of the generators before it."""
        if self.held:
            return
        still, moving = loaded
        side = 1 - (self.page[BATCH_AT] & 1)
        at = BATCH_AT + 8 + side * BATCH_BYTES
        if still is not self.still[side] or self.notes is not None:
            self.still[side] = None  # until they are written whole
            states = _joined(still)
            self.written[side] = self._put(at + BATCH.size, states if len(states) <= BATCH_BYTES // 2 else _joined({}))
            self.still[side] = still
            if self.notes is not None:
                self.notes.wrote(side, still, *self.written[side])
        text = order.encode()
        size = self.written[side][0]
        if BATCH.size + size + LENGTH.size + len(text) + len(moving) > BATCH_BYTES:
            text = b'{"left_out":true}'
        told, start = LENGTH.pack(len(text)) + text + moving, at + BATCH.size + size
        self.page[start : start + len(told)] = told
        BATCH.pack_into(self.page, at, *self.written[side], len(told), zlib.crc32(told))
        self.page[BATCH_AT] = side

    def _put(self, at: int, data: bytes) -> tuple[int, int]:
        self.page[at : at + len(data)] = data
        return len(data), zlib.crc32(data)

    def fail(self, name: str) -> None:
        """Keep the batch of now as the one that failed at sample `name`; only the first one is kept."""
        if not self.held:
            self.held = True
            if self.notes is not None:
                self.notes.failed = True
            text = name.encode(errors="replace")[:238]
            SAMPLE.pack_into(self.page, FAILED_AT + 8, time.time(), len(text), text)
            self.page[FAILED_AT] = 1


def workers(folder: Path, rank: int, start: int) -> list[Worker]:
    """Return the workers of one start of a run, by loader and number; a page that cannot be read is left out."""
    found = []
    for path in folder.glob(f"worker-{rank}-{start}-*.bin"):
        if NAME.fullmatch(path.name):
            with contextlib.suppress(OSError, ValueError, struct.error, IndexError, KeyError, TypeError):
                found.append(read_page(path))
    return sorted(found, key=lambda worker: (worker.loader, worker.worker))


def refused_last(workers: Sequence[Worker], newest: float) -> bool:
    """Tell whether a batch of the training could not be loaded and none came after it, the last one `newest`."""
    return any(worker.failed and worker.loader == 0 and worker.failed_at >= newest for worker in workers)


def read_page(path: Path) -> Worker:
    """Return what a worker's page says; raises ValueError for a file that is none, OSError."""
    data = path.read_bytes()
    magic, pid, number, loader, when = HEAD.unpack_from(data)
    if magic != MAGIC:
        raise ValueError(f"{path} is no worker's page")
    seen, size, text = SAMPLE.unpack_from(data, SAMPLE_AT + 8 + (data[SAMPLE_AT] & 1) * SAMPLE.size)
    worker = Worker(pid, number, text[:size].decode(errors="replace"), seen or when, loader)
    if data[FAILED_AT]:
        worker.failed_at, size, text = SAMPLE.unpack_from(data, FAILED_AT + 8)
        worker.failed = text[:size].decode(errors="replace")
    at = BATCH_AT + 8 + (data[BATCH_AT] & 1) * BATCH_BYTES
    size, check, told, told_check = BATCH.unpack_from(data, at)
    states = data[at + BATCH.size : at + BATCH.size + size]
    text = data[at + BATCH.size + size : at + BATCH.size + size + told]
    if size and (zlib.crc32(states), zlib.crc32(text)) == (check, told_check):
        names, *held = _parts(states)
        (length,) = LENGTH.unpack_from(text)
        worker.order = json.loads(text[LENGTH.size : LENGTH.size + length])
        worker.loaded = dict(zip(json.loads(names), held, strict=True))
        if worker.loaded and not worker.order.get("left_out"):
            worker.loaded[[*worker.loaded][-1]] += text[LENGTH.size + length :]
    return worker


def _joined(still: Mapping[str, State]) -> bytes:
    """Return states, and their names before them, as a page holds them."""
    names = ENCODE([*still]).encode()
    states = [state if isinstance(state, bytes) else b"".join(state) for state in still.values()]
    return b"".join(LENGTH.pack(len(part)) + part for part in (names, *states))


def _parts(data: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(data):
        (length,) = LENGTH.unpack_from(data, at)
        parts.append(data[at + LENGTH.size : at + LENGTH.size + length])
        at += LENGTH.size + length
    return parts
