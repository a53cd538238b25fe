"""The flight recorder's ring: the last steps of a training in a mapped file that outlives SIGKILL; the door to it.

One writer, in the training process; `read` and `find` look at it from outside, at any moment.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ocrlab.debug.flight_record.ring_format import (
    BLOCK,
    BLOCK_AT,
    BLOCK_BYTES,
    BLOCKS,
    CHECK,
    COUNT_AT,
    COUNTS,
    FIRST,
    HEADER,
    LOSS,
    MAGIC,
    MARGIN,
    MICRO,
    NOW,
    PAGE,
    PHASE_AT,
    SAVED,
    SAVED_AT,
    SIZE,
    SLOT,
    SLOT_BYTES,
    SMALL,
    STAGE_AT,
    SUMMED,
    TEXTS,
    WORD_BYTES,
    WORDS,
    State,
    States,
    Step,
    encoded,
    fitting,
    last_of,
)
from ocrlab.debug.flight_record.ring_reader import Flight, Snapshot, find, name_of, read
from ocrlab.debug.flight_record.worker_status import Worker

__all__ = ["Flight", "Snapshot", "Step", "Worker", "Writer", "create", "find", "name_of", "read"]

LARGE_BYTES = 24 * 1024  # some hundred sample ids, and two sets of random states where they are no words and rest
TOGETHER = 16  # records whose checksums are written at a time
PHASES = ("data", "forward", "loss", "backward", "optimiser", "validation")  # the first words
FORWARD = 1 + PHASES.index("forward")
MOST = (FIRST - WORDS) // WORD_BYTES  # words that there is room for
CHANGING = 8  # of them, which are written over where there are more
SIDES = 16  # states that are known as they are written, of this process and its workers
# Blocks filled since, from which on words are written again and not named any more, so that no step names a block
# older than the newest by MARGIN steps' worth. What C has prepared may name those that are half as much older.
OLD = BLOCKS * SIDES
KEPT = 3  # rings of earlier starts of a run, this one included


class Writer:
    """The ring of this process, in a new file; raises OSError, also for a disk that has no room for all of it."""

    def __init__(
        self, path: Path | str, *, slots: int = 256, rank: int = 0, start: int = 0, room: int = LARGE_BYTES
    ) -> None:
        self.slots, self.room = slots, -(-room // PAGE) * PAGE
        self.blocks_at, self.blocks = FIRST + slots * SLOT_BYTES, (slots + MARGIN) * BLOCKS
        self.large_at = self.blocks_at + self.blocks * BLOCK_BYTES
        self.page = mapped(path, self.large_at + slots * self.room)
        HEADER.pack_into(self.page, 0, MAGIC, slots, self.room, os.getpid(), rank, start, time.time())
        self.bytes = memoryview(self.page)
        self.floats, self.wholes = self.bytes.cast("d"), self.bytes.cast("q")
        self.told: dict[int, Told] = {}  # by the id of the states that stay
        self.kept: dict[int, tuple[bytes, int]] = {}  # by id the words of a generator, and the block that has them
        self.together = min(TOGETHER, slots)
        self.words: dict[str, int] = {"": 0}  # and their numbers
        self.turned = 0  # words that were written over others
        for name in PHASES:
            self.word(name)
        self.has_op = False

    @property
    def count(self) -> int:
        """How many records were written; the ring itself holds it, for whoever writes into it."""
        return self.wholes[COUNT_AT >> 3]

    @property
    def block(self) -> int:
        """How many blocks were filled, which is the number of the newest."""
        return self.wholes[BLOCK_AT >> 3]

    def word(self, name: str) -> int:
        """Return the number of a phase or a stage; of more than there is room for, the last ones change."""
        number = self.words.get(name)
        if number is None:
            number = len(self.words)
            if number > MOST:
                number = 1 + MOST - CHANGING + self.turned % CHANGING
                self.turned += 1
                del self.words[next(word for word, other in self.words.items() if other == number)]
            raw = name.encode(errors="replace")[: WORD_BYTES - 1]
            at = WORDS + (number - 1) * WORD_BYTES
            self.page[at : at + 1 + len(raw)] = COUNTS[len(raw)] + raw
            self.words[name] = number
        return number

    def begin(self, step: Step) -> None:
        """Write the record of the step that now begins, in place of the oldest one."""
        made = fitting(step, self.room, self.states)
        known = (step.lr is not None) | (step.loss_before is not None) << 1 | made.same << 2
        numbers = step.number, step.micro, step.epoch, step.walk, step.lr or 0.0, step.loss_before or 0.0, step.time
        self.put(*numbers, known, -1, made.text, made.states)
        if step.phase and step.phase != "forward":
            self.phase(step.phase)

    def put(
        self,
        number: int,
        micro: int,
        epoch: int,
        walk: int,
        lr: float,
        before: float,
        when: float,
        known: int,
        position: int,
        text: bytes,
        states: bytes,
    ) -> None:
        """Write the record of a step that now begins; text and states have `room` bytes, `known` is as in a slot."""
        page, wholes, floats = self.page, self.wholes, self.floats
        record = wholes[COUNT_AT >> 3] + 1
        size = len(text) + len(states)
        i = self.slot(record)
        wholes[i] = wholes[COUNT_AT >> 3] = record
        start = self.payload(record, size)
        wholes[i + CHECK] = wholes[i + LOSS] = 0
        wholes[i + 5], wholes[i + 6], wholes[i + 7], wholes[i + 8] = number, micro, epoch, walk
        floats[i + 9], floats[i + 10], floats[i + 11] = lr, before, when
        wholes[i + 12], wholes[i + 13], wholes[i + 14], wholes[i + 15] = known, position, len(text), size
        page[start : start + size] = text + states
        wholes[i + 1] = record
        if record - wholes[(COUNT_AT >> 3) + 1] >= self.together:
            self._sum()
        if self.has_op:
            self._text("op", "")
        page[STAGE_AT] = 0
        page[PHASE_AT] = FORWARD

    def slot(self, record: int) -> int:
        """Return where the slot of a record begins, in eight bytes."""
        return (FIRST + (record - 1) % self.slots * SLOT_BYTES) >> 3

    def payload(self, record: int, size: int) -> int:
        """Return where the payload of a record lies, in bytes."""
        if size <= SMALL:
            return (self.slot(record) << 3) + SLOT.size
        return self.large_at + (record - 1) % self.slots * self.room

    def _sum(self) -> None:
        """Write the checksums of the records that have none yet."""
        wholes, summed = self.wholes, (COUNT_AT >> 3) + 1
        for record in range(max(wholes[summed], self.count - self.together) + 1, self.count + 1):
            i = self.slot(record)
            numbers, size = self.bytes[(i + SUMMED) << 3 : (i << 3) + SLOT.size], wholes[i + SIZE]
            start = self.payload(record, size)
            wholes[i + CHECK] = zlib.crc32(self.bytes[start : start + size], zlib.crc32(numbers))
        wholes[summed] = self.count

    def states(self, states: States) -> bytes:
        """Return the states of the generators as a record holds them."""
        still, moving = states
        told = self.told.get(id(still))
        if told is None or len(moving) != told.more or self.old(told.oldest):
            if len(self.told) >= SIDES:
                self.told.clear()
            self.told[id(still)] = told = self._told(still, len(moving))
        return told.raw + moving

    def _told(self, still: Mapping[str, State], more: int) -> Told:
        parts, last, oldest = [COUNTS[len(still)]], last_of(still), self.block + 1
        for name, state in still.items():
            block = 0 if isinstance(state, bytes) else self.keep(state[0])
            oldest = min(oldest, block or oldest)
            parts.append(encoded(name, state, block, more if name == last else 0))
        return Told(still, b"".join(parts), more, oldest)

    def old(self, block: int) -> bool:
        """Tell whether so many blocks were filled since this one that it is not to be named any more."""
        return self.block - block >= OLD

    def keep(self, words: bytes) -> int:
        """Write the words of a generator, unless a block has them; returns the number of their block."""
        known = self.kept.get(id(words))
        if known is None or self.old(known[1]):
            number = self.block + 1
            at = self.blocks_at + number % self.blocks * BLOCK_BYTES
            BLOCK.pack_into(self.page, at, number, len(words), zlib.crc32(words))
            self.page[at + BLOCK.size : at + BLOCK.size + len(words)] = words
            self.wholes[BLOCK_AT >> 3] = number
            if len(self.kept) >= BLOCKS * SIDES:
                self.kept.clear()
            self.kept[id(words)] = known = words, number
        return known[1]

    def phase(self, name: str) -> None:
        """Say which part of the step begins, mostly in a word of PHASES."""
        self.page[PHASE_AT] = self.word(name)

    def stage(self, name: str) -> None:
        """Say which stage of the model is entered."""
        self.page[STAGE_AT] = self.word(name)

    def op(self, name: str) -> None:
        """Say which operator begins (a replay does)."""
        self.has_op = True
        self._text("op", name)

    def sample(self, name: str) -> None:
        """Say which sample is looked at outside of a step: in validation, or where the process loads its own data."""
        self._text("sample", name)

    def loss(self, value: float, micro: int | None = None) -> None:
        """Write the loss of a micro-batch, of the newest where none is named."""
        record = self.count
        while record and micro is not None and self.wholes[self.slot(record) + MICRO] != micro:
            record = record - 1 if record > self.count - self.slots + 1 else 0
        if record:
            i = self.slot(record)
            self.floats[i + LOSS + 1] = value
            self.wholes[i + LOSS] = 1

    def micro(self) -> int:
        """Return the number of the newest micro-batch, -1 before the first one."""
        return self.wholes[self.slot(self.count) + MICRO] if self.count else -1

    def newest_loss(self) -> float | None:
        """Return the loss of the newest micro-batch, None where none has come."""
        i = self.slot(self.count) if self.count else 0
        return self.floats[i + LOSS + 1] if i and self.wholes[i + LOSS] else None

    def saved(self, side: int, micro: int, number: int) -> None:
        """Write that snapshot a (0) or b (1) of this start is whole, and before which micro-batch it was taken."""
        at = NOW + SAVED_AT + 32 * side
        SAVED.pack_into(self.page, at, 0, micro, number)
        self.page[at] = 1

    def close(self) -> None:
        """Give the file back; what it says stays."""
        with contextlib.suppress(BufferError, ValueError):
            self._sum()
            for view in (self.floats, self.wholes, self.bytes):
                view.release()
            self.page.close()

    def _text(self, name: str, text: str) -> None:
        offset, size = TEXTS[name]
        raw = text.encode(errors="replace")[: size - 1]
        selector = NOW + offset
        side = 1 - self.page[selector]
        at = selector + 1 + side * size
        self.page[at : at + 1 + len(raw)] = COUNTS[len(raw)] + raw
        self.page[selector] = side  # one byte: either the old text or the new one holds, never a half


@dataclass
class Told:
    """States of generators as records hold them."""

    still: Mapping[str, State]  # what of them stays
    raw: bytes
    more: int  # bytes behind them that move
    oldest: int  # of the blocks that it names


def mapped(path: Path | str, size: int) -> mmap.mmap:
    """Return a new file of zeros in memory, mode 0600; a full disk refuses now, and not by SIGBUS later."""
    path = Path(path)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        zeros, left = bytes(1 << 20), size
        while left > 0:  # not posix_fallocate: some file systems only promise
            left -= os.write(descriptor, zeros[:left] if left < len(zeros) else zeros)
        page = mmap.mmap(descriptor, size)
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    finally:
        os.close(descriptor)
    return page


def create(folder: Path | str, *, rank: int = 0, slots: int = 256) -> tuple[Writer, int]:
    """Make the ring of a new start in `folder` and drop the oldest ones; returns it and the number of the start.

    Raises OSError.
    """
    folder = Path(folder)
    there = [path for path in find(folder) if name_of(path)[0] == rank]
    start = 1 + max((name_of(path)[1] for path in there), default=-1)
    for old in there[KEPT - 1 :]:
        old.unlink(missing_ok=True)
        for page in folder.glob(f"worker-{rank}-{name_of(old)[1]}-*.bin"):
            page.unlink(missing_ok=True)
    path = folder / f"ring-{rank}-{start}.bin"
    return Writer(path, slots=slots, rank=rank, start=start), start
