"""Reading a ring from outside: while its process lives, or after anything that ended it."""

from __future__ import annotations

import itertools
import re
import struct
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ocrlab.debug.flight_record.ring_format import (
    BLOCK_BYTES,
    BLOCKS,
    FIRST,
    HEADER,
    MAGIC,
    MARGIN,
    NOW,
    PAGE,
    PHASE_AT,
    SAVED,
    SAVED_AT,
    SLOT_BYTES,
    STAGE_AT,
    TEXTS,
    WORD_BYTES,
    WORDS,
    Step,
    TornRecord,
    decode_slot,
    read_block,
)
from ocrlab.debug.flight_record.worker_status import WorkerStatus, read_workers
from ocrlab.errors import DataError

NAME = re.compile(r"ring-(\d+)-(\d+)\.bin")
SEAL = b"\nocrlab: whole\n"  # ends a snapshot in torch's older form; torch.load stops before it
LARGEST = 2**31  # bytes of a ring; a header that says more is damaged


@dataclass(frozen=True)
class Snapshot:
    """The state of a training before the micro-batch `micro`, in optimiser step `number`."""

    path: Path
    number: int
    micro: int


@dataclass
class Flight:
    """The content of a ring: its steps, oldest first, and `now`, the newest of them as far as it came.

    `torn` counts records that were being written or are damaged; `sample` is what validation looked at.
    """

    path: Path
    pid: int
    rank: int
    start: int
    time: float
    steps: list[Step] = field(default_factory=list)
    now: Step | None = None
    torn: int = 0
    sample: str = ""
    workers: list[WorkerStatus] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)  # of this start, the newest first


def parse_name(path: Path) -> tuple[int, int]:
    """Return rank and start of a ring's file; raises DataError for a file of another name."""
    match = NAME.fullmatch(path.name)
    if not match:
        raise DataError(f"{path} is not the file of a ring", need="ring-RANK-START.bin")
    return int(match[1]), int(match[2])


def find_rings(run_folder: Path | str) -> list[Path]:
    """Return the rings of a run folder (or of its flight/), the newest start first, by rank in a start."""
    folder = Path(run_folder)
    inner = folder / "flight"
    paths = [path for path in (inner if inner.is_dir() else folder).glob("ring-*.bin") if NAME.fullmatch(path.name)]
    return sorted(paths, key=lambda path: (-parse_name(path)[1], parse_name(path)[0]))


def read_ring(path: Path | str) -> Flight:
    """Read a ring, also while it is written; raises DataError for another file."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            head = file.read(FIRST)
            flight, slots, size = _header(path, head)
            head = _settled(file, head)
            file.seek(FIRST)
            records = [file.read(SLOT_BYTES) for _ in range(slots)]
            blocks = file.read((slots + MARGIN) * BLOCKS * BLOCK_BYTES)
            large = [file.read(size) for _ in range(slots)]
    except OSError as error:
        raise DataError(f"{path} cannot be read", got=str(error)) from error
    steps: list[tuple[int, Step]] = []
    for slot, payload in zip(records, large, strict=True):
        try:
            record = decode_slot(slot, payload, lambda number: read_block(blocks, number)) if slot else None
        except TornRecord:
            record = None
            flight.torn += 1
        if record:
            steps.append(record)
    flight.steps = [step for _, step in sorted(steps, key=lambda record: record[0])]
    _complete(flight.steps)
    if flight.steps:
        flight.now = _now(flight.steps[-1], head)
        flight.steps[-1] = flight.now
    flight.sample = _text(head, "sample")
    flight.workers = read_workers(path.parent, flight.rank, flight.start)
    flight.snapshots = _snapshots(path.parent, head, flight.rank)
    return flight


def _complete(steps: Sequence[Step]) -> None:
    """Give each micro-batch what is written once: the learning rate and memory of its optimizer step, and the state of
    a generator that was the same before and after it.
    """
    for before, step in itertools.pairwise(steps):
        if before.number == step.number and step.lr is None and not step.memory:
            step.lr, step.memory = before.lr, before.memory
    last_places: dict[str, int] = {}  # by generator, the place of the last step that holds its state
    for place, step in enumerate(steps):
        for name, state in [*step.random.items()]:
            since = last_places.get(name)
            if since is not None and steps[since].random[name] == state:
                for between in steps[since + 1 : place]:
                    between.random = {**between.random, name: state}
            last_places[name] = place


def _header(path: Path, head: bytes) -> tuple[Flight, int, int]:
    try:
        magic, slots, size, pid, rank, start, when = HEADER.unpack_from(head)
    except struct.error:
        magic, slots, size = b"", 0, 0
    if magic != MAGIC or not slots or size < PAGE or slots * size > LARGEST or len(head) < FIRST:
        do = "Replay it with the ocrlab that recorded it" if magic[:7] == MAGIC[:7] != magic else ""
        raise DataError(f"{path} is not a ring", got=f"a file that starts with {head[:8]!r}", need=f"{MAGIC!r}", do=do)
    return Flight(path, pid, rank, start, when), slots, size


def _settled(file: object, head: bytes) -> bytes:
    """Return the first pages as two readings agree on; of a living process the last one has to do."""
    for _ in range(3):
        file.seek(0)  # type: ignore[attr-defined]
        again = file.read(FIRST)  # type: ignore[attr-defined]
        if again == head:
            break
        head = again
    return head


def _now(step: Step, head: bytes) -> Step:
    """Return the newest step with what the page of now says about it."""
    phase, stage = (_word(head, head[at]) for at in (PHASE_AT, STAGE_AT))
    return replace(step, phase=phase, stage=stage, op=_text(head, "op"))


def _word(head: bytes, number: int) -> str:
    """Return word `number` of phases and stages, '' for 0."""
    at = WORDS + (number - 1) * WORD_BYTES
    there = number > 0 and at + WORD_BYTES <= FIRST
    return head[at + 1 : at + 1 + head[at]].decode(errors="replace") if there else ""


def _snapshots(folder: Path, head: bytes, rank: int) -> list[Snapshot]:
    snapshots = []
    for side, letter in enumerate("ab"):
        there, micro, number = SAVED.unpack_from(head, NOW + SAVED_AT + 32 * side)
        path = folder / f"snapshot-{rank}-{letter}.pt"
        if there and path.is_file():
            snapshots.append(Snapshot(path, number, micro))
    return sorted(snapshots, key=lambda snapshot: -snapshot.micro)


def _text(head: bytes, name: str) -> str:
    offset, size = TEXTS[name]
    selector = NOW + offset
    at = selector + 1 + (head[selector] & 1) * size
    return head[at + 1 : at + 1 + min(head[at], size - 1)].decode(errors="replace")


def is_whole(path: Path) -> bool:
    """Tell, without torch, whether a snapshot is complete to its last byte; a zip file has an end of its own."""
    try:
        with path.open("rb") as file:
            file.seek(-len(SEAL), 2)
            return file.read() == SEAL or zipfile.is_zipfile(path)
    except OSError:  # gone, or shorter than that
        return False
