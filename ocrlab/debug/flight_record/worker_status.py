"""The page of a loader worker: the sample that it is on now, the batch that this belongs to, and what failed in it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ocrlab import safe_read
from ocrlab.debug.flight_record.ring_format import ENCODE, States
from ocrlab.run_folder import shared_file

MAGIC = b"OCRLABW3"
SIZE = 256 * 1024
HEAD = struct.Struct("<8sqiid")  # magic, pid, worker, loader, seconds since 1970
SAMPLE = struct.Struct("<dH238s")  # when, length, text
SAMPLES = shared_file.DoubleBuffer(selector=64, first=72, size=SAMPLE.size)
BATCHES = shared_file.DoubleBuffer(selector=4096, first=4104, size=120 * 1024)  # the failed one is not overwritten
BATCH = struct.Struct("<III")  # bytes of the order, of the states, and the CRC-32 of both, which follow
LENGTH = struct.Struct("<I")
FAILED_AT, FAILED_SAMPLE_AT = 600, 608  # whether a batch has failed, and at which sample
NAME = re.compile(r"worker-(\d+)-(\d+)-(\d+)-(\d+)\.bin")


@dataclass
class WorkerStatus:
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


class StatusPage:
    """The page of this worker, in a new file; raises OSError."""

    def __init__(self, folder: Path | str, rank: int, start: int, loader: int, worker: int) -> None:
        self.page = shared_file.create(Path(folder, f"worker-{rank}-{start}-{loader}-{worker}.bin"), SIZE)
        self.page[: HEAD.size] = HEAD.pack(MAGIC, os.getpid(), worker, loader, time.time())
        self.has_failed = False  # the batch that failed stays

    def sample(self, name: str) -> None:
        """Write which sample is being loaded."""
        SAMPLES.write(self.page, _sample(name))

    def batch(self, order: str, states: States) -> None:
        """Write which batch is being loaded, as JSON, and the states of the generators before it."""
        if self.has_failed:
            return
        text, state_bytes = order.encode(), _pack_states(states)
        if len(state_bytes) > BATCHES.size // 2:
            state_bytes = _pack_states({})
        if BATCH.size + len(text) + len(state_bytes) > BATCHES.size:
            text = b'{"left_out":true}'
        check = zlib.crc32(state_bytes, zlib.crc32(text))
        BATCHES.write(self.page, BATCH.pack(len(text), len(state_bytes), check) + text + state_bytes)

    def fail(self, name: str) -> None:
        """Mark the current batch as failed at sample `name`; only the first failure counts."""
        if not self.has_failed:
            self.has_failed = True
            self.page[FAILED_SAMPLE_AT : FAILED_SAMPLE_AT + SAMPLE.size] = _sample(name)
            self.page[FAILED_AT] = 1


def _sample(name: str) -> bytes:
    text = name.encode(errors="replace")[:238]
    return SAMPLE.pack(time.time(), len(text), text)


def read_workers(folder: Path, rank: int, start: int) -> list[WorkerStatus]:
    """Return the workers of one start of a run, by loader and number; a page that cannot be read is left out."""
    workers = []
    for path in folder.glob(f"worker-{rank}-{start}-*.bin"):
        if NAME.fullmatch(path.name):
            with contextlib.suppress(OSError, ValueError, struct.error, IndexError, KeyError, TypeError):
                workers.append(read_page(path))
    return sorted(workers, key=lambda worker: (worker.loader, worker.worker))


def last_batch_failed(workers: Sequence[WorkerStatus], newest: float) -> bool:
    """Return whether a batch of the training could not be loaded and none came after it, the last one `newest`."""
    return any(worker.failed and worker.loader == 0 and worker.failed_at >= newest for worker in workers)


def read_page(path: Path) -> WorkerStatus:
    """Read the status file of a worker; raises ValueError for another file, OSError."""
    data = safe_read.read(path)
    magic, pid, number, loader, when = HEAD.unpack_from(data)
    if magic != MAGIC:
        raise ValueError(f"{path} is not the status file of a worker")
    sample_time, size, text = SAMPLE.unpack(SAMPLES.read(data))
    worker = WorkerStatus(pid, number, text[:size].decode(errors="replace"), sample_time or when, loader)
    if data[FAILED_AT]:
        worker.failed_at, size, text = SAMPLE.unpack_from(data, FAILED_SAMPLE_AT)
        worker.failed = text[:size].decode(errors="replace")
    batch = BATCHES.read(data)
    size, length, check = BATCH.unpack_from(batch)
    text = batch[BATCH.size : BATCH.size + size]
    states = batch[BATCH.size + size : BATCH.size + size + length]
    if size and zlib.crc32(states, zlib.crc32(text)) == check:
        names, *parts = _unpack_states(states)
        worker.order = json.loads(text)
        worker.loaded = dict(zip(json.loads(names), parts, strict=True))
    return worker


def _pack_states(states: States) -> bytes:
    """Return the names of states, as JSON, and the states, each after its length."""
    names = ENCODE([*states]).encode()
    return b"".join(LENGTH.pack(len(part)) + part for part in (names, *states.values()))


def _unpack_states(data: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(data):
        (length,) = LENGTH.unpack_from(data, at)
        parts.append(data[at + LENGTH.size : at + LENGTH.size + length])
        at += LENGTH.size + length
    return parts
