"""The flight recorder's ring: the last steps of a training in a mapped file that outlives SIGKILL; the door to it.

One writer, in the training process; `read` and `find` look at it from outside, at any moment.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from ocrlab.flight.ring_layout import (
    BLOCK,
    BLOCK_BYTES,
    BLOCKS,
    COUNTS,
    END,
    FIRST,
    HEADER,
    LOSS,
    MAGIC,
    MARGIN,
    NOW,
    PAGE,
    RESULT,
    RESULT_AT,
    ROOM,
    SAVED,
    SAVED_AT,
    SLOT,
    SUM,
    TEXTS,
    State,
    Step,
    encoded,
    pack,
)
from ocrlab.flight.ring_read import Flight, Snapshot, find, name_of, read
from ocrlab.flight.ring_worker import Worker

__all__ = ["Flight", "Snapshot", "Step", "Worker", "Writer", "create", "find", "name_of", "read"]

SLOT_BYTES = 24 * 1024  # some hundred sample ids, and two sets of random states where they are no words and rest
TOGETHER = 16  # records whose checksums are written at a time
FRESH = MARGIN * BLOCKS // 2  # blocks behind the newest, from where on words are written again: steps still name them
PHASES = ("data", "forward", "loss", "backward", "optimiser", "validation")
KEPT = 3  # rings of earlier starts of a run, this one included


class Writer:
    """The ring of this process, in a new file; raises OSError, also for a disk that has no room for all of it."""

    def __init__(
        self, path: Path | str, *, slots: int = 256, rank: int = 0, start: int = 0, slot_bytes: int = SLOT_BYTES
    ) -> None:
        self.slots, self.slot_bytes = slots, -(-slot_bytes // PAGE) * PAGE
        self.blocks_at, self.blocks = FIRST + slots * self.slot_bytes, (slots + MARGIN) * BLOCKS
        size = self.blocks_at + self.blocks * BLOCK_BYTES
        self.page = mapped(path, size)
        HEADER.pack_into(self.page, 0, MAGIC, slots, self.slot_bytes, os.getpid(), rank, start, time.time())
        view = memoryview(self.page)
        self.floats, self.wholes = view.cast("d"), view.cast("q")  # in a loss's moment struct would be read anew
        self.count = self.block = 0
        self.told: tuple[dict[str, tuple[State, int, bytes]], ...] = ({}, {})  # of each side: a state, block, its bytes
        self.kept: dict[tuple[int, str], tuple[bytes, int]] = {}  # words of a generator, and the block that has them
        self.places: dict[int, int] = {}  # offset of the slot of each micro-batch that is kept
        self.order = [0] * slots
        self.room = self.slot_bytes - ROOM
        self.unsummed: list[tuple[int, bytes]] = []  # where the checksum of a payload goes
        self.together = min(TOGETHER, slots)
        self.words: dict[str, bytes] = {}
        self.clear = self.entry("")
        self.phases = {name: self.entry(name, "phase") for name in PHASES}
        self.said = ""  # the phase
        self.has_op = False

    def begin(self, step: Step) -> None:
        """Write the record of the step that now begins, in place of the oldest one."""
        self.put(step.micro, pack(step, self.room, self.states))
        if step.phase and step.phase != "forward":
            self.phase(step.phase)

    def put(self, micro: int, payload: bytes) -> None:
        """Write the payload of a step that now begins, of at most `room` bytes."""
        page, place = self.page, self.count % self.slots
        self.count = number = self.count + 1
        at = FIRST + place * self.slot_bytes
        start = at + SLOT.size + LOSS.size
        SLOT.pack_into(page, at, number, len(payload), 0)
        page[start - 1] = 0  # no loss yet
        page[start : start + len(payload)] = payload
        END.pack_into(page, start + len(payload), number)
        self.unsummed.append((at + SLOT.size - SUM.size, payload))
        if len(self.unsummed) == self.together:
            self._sum()
        if number > self.slots:
            self.places.pop(self.order[place], None)
        self.places[micro], self.order[place] = at, micro
        if self.has_op:
            self._text("op", "")
        self.clear()
        if self.said != "forward":
            self.phase("forward")

    def _sum(self) -> None:
        """Write the checksums of the records that have none yet."""
        for at, payload in self.unsummed:
            SUM.pack_into(self.page, at, zlib.crc32(payload))
        self.unsummed.clear()

    def states(self, side: int, states: Mapping[str, State]) -> bytes:
        """Return the states of the generators, after (0) or before (1) the batch was loaded, as a record holds them."""
        told, oldest, parts = self.told[side], self.block - FRESH, [COUNTS[len(states)]]
        for name, state in states.items():
            known = told.get(name)
            if known is None or known[0] is not state or known[1] <= oldest:
                block = 0 if isinstance(state, bytes) else self.keep(side, name, state[0])
                known = told[name] = state, block, encoded(name, state, block)
            parts.append(known[2])
        return b"".join(parts)

    def keep(self, side: int, name: str, words: bytes) -> int:
        """Write the words of a generator, unless the block of last time has them; returns the number of their block."""
        known = self.kept.get((side, name))
        if known is None or known[0] is not words:
            known = self.kept.get((1 - side, name))
        if known is None or known[0] is not words or known[1] <= self.block - FRESH:
            self.block = number = self.block + 1
            at = self.blocks_at + number % self.blocks * BLOCK_BYTES
            BLOCK.pack_into(self.page, at, number, len(words), zlib.crc32(words))
            self.page[at + BLOCK.size : at + BLOCK.size + len(words)] = words
            known = words, number
        self.kept[side, name] = known
        return known[1]

    def phase(self, name: str) -> None:
        """Say which part of the step begins, in a word of PHASES; any other word will do as well."""
        if name != self.said:
            self.said = name
            enter = self.phases.get(name)
            if enter is not None:
                enter()
            else:
                self._text("phase", name)

    def stage(self, name: str) -> None:
        """Say which stage of the model is entered."""
        self._text("stage", name)

    def place(self, name: str, field: str = "stage") -> tuple[bytes, int, tuple[slice, slice]]:
        """Return what is to be written where a word is said: its bytes, the place of the selector, its two places."""
        offset, size = TEXTS[field]
        raw = name.encode(errors="replace")[: size - 1]
        selector, data = NOW + offset, bytes((len(raw),)) + raw
        first, second = (slice(at, at + len(data)) for at in (selector + 1, selector + 1 + size))
        return data, selector, (first, second)

    def entry(self, name: str, field: str = "stage") -> Callable[[], None]:
        """Return what says a word, with all that can be made ready beforehand made ready."""
        page, (data, selector, places) = self.page, self.place(name, field)

        def enter() -> None:
            side = 1 - page[selector]
            page[places[side]] = data
            page[selector] = side

        return enter

    def op(self, name: str) -> None:
        """Say which operator begins (a replay does)."""
        self.has_op = True
        self._text("op", name)

    def sample(self, name: str) -> None:
        """Say which sample is looked at outside of a step: in validation, or where the process loads its own data."""
        self._text("sample", name)

    def loss(self, value: float, micro: int | None = None) -> None:
        """Write the loss of a micro-batch, of the newest where none is named."""
        if not self.count:
            return
        if micro is None:
            micro = self.order[(self.count - 1) % self.slots]
        page, floats, at = self.page, self.floats, self.places.get(micro)
        if at is not None:
            floats[at + SLOT.size >> 3] = value
            page[at + SLOT.size + 8] = 1
        side = 1 - page[NOW + RESULT_AT]
        at = NOW + RESULT_AT + 8 + side * RESULT.size >> 3
        self.wholes[at], floats[at + 1] = micro, value
        page[NOW + RESULT_AT] = side
        page[NOW + RESULT_AT + 1] = 1  # one of the two is filled

    def saved(self, side: int, micro: int, number: int) -> None:
        """Write that snapshot a (0) or b (1) of this start is whole, and before which micro-batch it was taken."""
        at = NOW + SAVED_AT + 32 * side
        SAVED.pack_into(self.page, at, 0, micro, number)
        self.page[at] = 1

    def close(self) -> None:
        """Give the file back; what it says stays."""
        with contextlib.suppress(BufferError, ValueError):
            self._sum()
            self.floats.release()
            self.wholes.release()
            self.page.close()

    def _text(self, name: str, text: str) -> None:
        data = self.words.get(text)
        if data is None:
            if len(self.words) > 4096:
                self.words.clear()
            raw = text.encode(errors="replace")[:249]
            data = self.words[text] = bytes((len(raw),)) + raw
        offset, size = TEXTS[name]
        if len(data) > size:
            data = bytes((size - 1,)) + data[1:size]
        page = self.page
        selector = NOW + offset
        side = 1 - page[selector]
        at = selector + 1 + side * size
        page[at : at + len(data)] = data
        page[selector] = side  # one byte: either the old word or the new one holds, never a half


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


def create(folder: Path | str, *, rank: int = 0, slots: int = 256, slot_bytes: int = SLOT_BYTES) -> tuple[Writer, int]:
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
    return Writer(path, slots=slots, rank=rank, start=start, slot_bytes=slot_bytes), start
