"""Reading a ring from outside: while its process lives, or after anything that ended it."""

from __future__ import annotations

import itertools
import re
import struct
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ocrlab import safe_read
from ocrlab.debug.flight_record import ring_format as ring
from ocrlab.debug.flight_record.ring_format import Step, TornRecord
from ocrlab.debug.flight_record.worker_status import WorkerStatus, read_workers
from ocrlab.errors import DataError

NAME = re.compile(r"ring-(\d+)-(\d+)\.bin")
SEAL = b"\nocrlab: whole\n"  # ends a snapshot in torch's older form; torch.load stops before it
LARGEST = 2**31  # bytes of a ring; a header with more is damaged


@dataclass(frozen=True)
class Snapshot:
    """The state of a training before the micro-batch `micro`, in optimizer step `number`."""

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
        raise DataError(f"{path} is not a ring file", need="ring-RANK-START.bin")
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
        with safe_read.open_file(path) as file:
            head = file.read(ring.FIRST)
            flight, slots, size = _header(path, head)
            for _ in range(3):  # until two readings of the first pages agree; a living process may go on writing
                before = head
                file.seek(0)
                head = file.read(ring.FIRST)
                if head == before:
                    break
            records = [file.read(ring.SLOT_BYTES) for _ in range(slots)]
            blocks = file.read((slots + ring.MARGIN) * ring.BLOCKS * ring.BLOCK_BYTES)
            large = [file.read(size) for _ in range(slots)]
    except OSError as error:
        raise DataError(f"{path} cannot be read", got=str(error)) from error
    steps: dict[int, Step] = {}
    for slot, payload in zip(records, large, strict=True):
        try:
            record = ring.decode_slot(slot, payload, lambda number: ring.read_block(blocks, number)) if slot else None
        except TornRecord:
            flight.torn += 1
        else:
            steps |= [record] if record else []
    flight.steps = [steps[number] for number in sorted(steps)]
    _complete(flight.steps)
    if flight.steps:  # the newest one, with what the status page tells about it
        phase, stage = (_word(head, head[at]) for at in (ring.PHASE_AT, ring.STAGE_AT))
        op = _text(ring.OP.read(head))
        flight.now = flight.steps[-1] = replace(flight.steps[-1], phase=phase, stage=stage, op=op)
    flight.sample = _text(ring.SAMPLE.read(head))
    flight.workers = read_workers(path.parent, flight.rank, flight.start)
    for side, letter in enumerate("ab"):
        there, micro, number = ring.SAVED.unpack_from(head, ring.NOW + ring.SAVED_AT + 32 * side)
        snapshot = path.parent / f"snapshot-{flight.rank}-{letter}.pt"
        if there and snapshot.is_file():
            flight.snapshots.append(Snapshot(snapshot, number, micro))
    flight.snapshots.sort(key=lambda snapshot: -snapshot.micro)
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
        magic, slots, size, pid, rank, start, when = ring.HEADER.unpack_from(head)
    except struct.error:
        magic, slots, size = b"", 0, 0
    if magic != ring.MAGIC or not slots or size < ring.PAGE or slots * size > LARGEST or len(head) < ring.FIRST:
        do = "Replay it with the ocrlab that recorded it" if magic[:7] == ring.MAGIC[:7] != magic else ""
        raise DataError(
            f"{path} is not a ring", got=f"a file that starts with {head[:8]!r}", need=f"{ring.MAGIC!r}", do=do
        )
    return Flight(path, pid, rank, start, when), slots, size


def _word(head: bytes, number: int) -> str:
    """Return word `number` of phases and stages, '' for 0."""
    at = ring.WORDS + (number - 1) * ring.WORD_BYTES
    return _text(head[at:]) if number > 0 and at + ring.WORD_BYTES <= ring.FIRST else ""


def _text(value: bytes) -> str:
    return value[1 : 1 + value[0]].decode(errors="replace")


def is_whole(path: Path) -> bool:
    """Tell, without torch, whether a snapshot is complete to its last byte; a zip file has an end of its own."""
    try:
        with safe_read.open_file(path) as file:
            file.seek(-len(SEAL), 2)
            return file.read() == SEAL or zipfile.is_zipfile(path)
    except OSError:  # gone, or shorter than that
        return False
