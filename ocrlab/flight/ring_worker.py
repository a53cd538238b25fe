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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ocrlab.flight.ring_layout import ENCODE, States, last_of

MAGIC = b"OCRLABW1"
SIZE = 256 * 1024
HEAD = struct.Struct("<8sqiid")  # magic, pid, worker, loader, seconds since 1970
SAMPLE_AT, SAMPLE = 64, struct.Struct("<dH238s")  # selector, then two: when, length, text
BATCH_AT, BATCH_BYTES = 4096, 120 * 1024  # selector, then two batches; the failed one lies where nobody writes again
BATCH = struct.Struct("<II")  # bytes, CRC-32
LENGTH = struct.Struct("<I")
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

    def sample(self, name: str) -> None:
        """Say which sample is being loaded."""
        text = name.encode(errors="replace")[:238]
        side = 1 - self.page[SAMPLE_AT]
        SAMPLE.pack_into(self.page, SAMPLE_AT + 8 + side * SAMPLE.size, time.time(), len(text), text)
        self.page[SAMPLE_AT] = side

    def batch(self, order: dict[str, Any], loaded: States) -> None:
        """Say which batch is being loaded, and the states of the generators before it."""
        if self.held:
            return
        still, moving = loaded
        text = ENCODE({"order": order, "loaded": [*still]}).encode()
        parts, last = [LENGTH.pack(len(text)), text], last_of(still)
        for name, state in still.items():
            pieces = [*((state,) if isinstance(state, bytes) else state), *((moving,) if name == last else ())]
            parts += [LENGTH.pack(sum(map(len, pieces))), *pieces]
        data = b"".join(parts)
        if len(data) > BATCH_BYTES - BATCH.size:
            text = b'{"order":{"left_out":true},"loaded":[]}'
            data = LENGTH.pack(len(text)) + text
        side = 1 - self.page[BATCH_AT]
        at = BATCH_AT + 8 + side * BATCH_BYTES
        self.page[at + BATCH.size : at + BATCH.size + len(data)] = data
        BATCH.pack_into(self.page, at, len(data), zlib.crc32(data))
        self.page[BATCH_AT] = side

    def fail(self, name: str) -> None:
        """Keep the batch of now as the one that failed at sample `name`; only the first one is kept."""
        if not self.held:
            self.held = True
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


def read_page(path: Path) -> Worker:
    """Return what a worker's page says; raises ValueError for a file that is none, OSError."""
    data = path.read_bytes()
    magic, pid, number, loader, when = HEAD.unpack_from(data)
    if magic != MAGIC:
        raise ValueError(f"{path} is no worker's page")
    seen, size, text = SAMPLE.unpack_from(data, SAMPLE_AT + 8 + (data[SAMPLE_AT] & 1) * SAMPLE.size)
    worker = Worker(pid, number, text[:size].decode(errors="replace"), seen or when, loader)
    if data[FAILED_AT]:
        _, size, text = SAMPLE.unpack_from(data, FAILED_AT + 8)
        worker.failed = text[:size].decode(errors="replace")
    at = BATCH_AT + 8 + (data[BATCH_AT] & 1) * BATCH_BYTES
    size, check = BATCH.unpack_from(data, at)
    batch = data[at + BATCH.size : at + BATCH.size + size]
    if size and zlib.crc32(batch) == check:
        texts, *states = _parts(batch)
        told = json.loads(texts)
        worker.order, worker.loaded = told["order"], dict(zip(told["loaded"], states, strict=True))
    return worker


def _parts(data: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(data):
        (length,) = LENGTH.unpack_from(data, at)
        parts.append(data[at + LENGTH.size : at + LENGTH.size + length])
        at += LENGTH.size + length
    return parts
