"""The flight recorder's ring: the last steps of a training in a file that outlives SIGKILL.

One writer, in the training process; `ring_reader` looks at it from outside, at any moment.
"""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from pathlib import Path
from typing import Any

from ocrlab.debug.flight_record import ring_format as ring
from ocrlab.debug.flight_record.ring_format import States, Step
from ocrlab.debug.flight_record.ring_reader import find_rings, parse_name
from ocrlab.run_folder import shared_file

LARGE_BYTES = 16 * 1024  # some hundred sample ids
PHASES = ("data", "forward", "loss", "backward", "optimiser", "validation")  # the first words
FORWARD = 1 + PHASES.index("forward")
MOST = (ring.FIRST - ring.WORDS) // ring.WORD_BYTES  # number of words that fit
CHANGING = 8  # of them, which are written over where there are more
SIDES = 16  # micro-batches' worth of states that are not written again while they stay the same
OLD = ring.BLOCKS * SIDES  # blocks filled since, from which on a state is written again into a new one
STORED_RINGS = 3  # rings of earlier starts of a run, this one included


class Writer:
    """The ring of this process, in a new file; raises OSError, also for a disk that has no room for all of it."""

    def __init__(
        self, path: Path | str, *, slots: int = 256, rank: int = 0, start: int = 0, room: int = LARGE_BYTES
    ) -> None:
        self.slots, self.room = slots, -(-room // ring.PAGE) * ring.PAGE
        self.blocks_at, self.blocks = ring.FIRST + slots * ring.SLOT_BYTES, (slots + ring.MARGIN) * ring.BLOCKS
        self.large_at = self.blocks_at + self.blocks * ring.BLOCK_BYTES
        self.page = shared_file.create(path, self.large_at + slots * self.room)
        header = ring.HEADER.pack(ring.MAGIC, slots, self.room, os.getpid(), rank, start, time.time())
        self.page[: ring.HEADER.size] = header
        self.count = self.block = 0  # records written, blocks filled
        self.number = self.micro = -1  # of the newest record
        self.newest_loss: float | None = None  # of the newest record, where one has come
        self.newest_words: dict[tuple[Any, str], tuple[bytes, int]] = {}  # newest words, and their blocks
        self.words: dict[str, int] = {"": 0}  # and their numbers
        self.turned = 0  # words that have replaced others
        for name in PHASES:
            self.word(name)
        self.has_op = False

    def word(self, name: str) -> int:
        """Return the number of a phase or a stage; of more than there is room for, the last ones change."""
        number = self.words.get(name)
        if number is None:
            number = len(self.words)
            if number > MOST:
                number = 1 + MOST - CHANGING + self.turned % CHANGING
                self.turned += 1
                del self.words[next(word for word, other in self.words.items() if other == number)]
            at, text = ring.WORDS + (number - 1) * ring.WORD_BYTES, ring.encode_text(name, ring.WORD_BYTES)
            self.page[at : at + len(text)] = text
            self.words[name] = number
        return number

    def begin(self, step: Step, position: int = -1) -> None:
        """Write the record of a micro-batch that now begins, in place of the oldest one; `position` is in its walk."""
        random = self.states(step.random)
        same = step.loaded is step.random or step.loaded == step.random
        text = ring.encode_step(
            step, self.room, random, None if same else self.states(step.loaded, step.order.get("worker"))
        )
        flags = (step.lr is not None) | (step.loss_before is not None) << 1 | same << 2
        figures = ring.FIGURES.pack(
            step.number, step.micro, step.epoch, step.walk, step.lr or 0.0, step.loss_before or 0.0, step.time, flags,
            position, len(text),
        )  # fmt: skip
        page, record = self.page, self.count + 1
        at = self._slot(record)
        # One store each: a record that was being written when the process died has two numbers.
        page[at : at + 8] = ring.NUMBER.pack(record)
        start = (
            at + ring.SLOT.size if len(text) <= ring.SMALL else self.large_at + (record - 1) % self.slots * self.room
        )
        page[start : start + len(text)] = text
        check = ring.NUMBER.pack(zlib.crc32(text, zlib.crc32(figures)))
        page[at + 16 : at + ring.SLOT.size] = check + bytes(16) + figures
        page[at + ring.AGAIN_AT : at + ring.AGAIN_AT + 8] = ring.NUMBER.pack(record)
        self.count, self.number, self.micro, self.newest_loss = record, step.number, step.micro, None
        if self.has_op:
            ring.OP.write(self.page, ring.encode_text(""))
        page[ring.STAGE_AT] = 0
        page[ring.PHASE_AT] = FORWARD if step.phase in ("", "forward") else self.word(step.phase)

    def start_again(self) -> None:
        """Discard the records written so far."""
        self.page[ring.FIRST : ring.FIRST + self.count * ring.SLOT_BYTES] = bytes(self.count * ring.SLOT_BYTES)
        self.count, self.number, self.micro, self.newest_loss = 0, -1, -1, None

    def _slot(self, record: int) -> int:
        """Return where the slot of a record begins."""
        return ring.FIRST + (record - 1) % self.slots * ring.SLOT_BYTES

    def states(self, states: States, whose: Any = "") -> dict[str, tuple[int, str]]:
        """Return what stands for states in the text of a record: the number of the block with the words, 0 for none,
        and the rest in hex.

        `whose` tells processes apart: words that are the same as the ones before are not written again.
        """
        named: dict[str, tuple[int, str]] = {}
        for name, state in states.items():
            if len(state) < ring.WORDS_BYTES:
                named[name] = 0, state.hex()
                continue
            end = min(len(state) // ring.WORDS_BYTES, 2) * ring.WORDS_BYTES
            words, previous = state[:end], self.newest_words.get((whose, name))
            if previous is None or previous[0] != words or self.block - previous[1] >= OLD:
                self.newest_words[whose, name] = previous = words, self._block(words)
            named[name] = previous[1], state[end:].hex()
        return named

    def _block(self, words: bytes) -> int:
        """Write the words of a generator into the next block, and return its number."""
        number = self.block + 1
        at = self.blocks_at + number % self.blocks * ring.BLOCK_BYTES
        block = ring.BLOCK.pack(number, len(words), zlib.crc32(words)) + words
        self.page[at : at + len(block)] = block
        self.block = number
        return number

    def phase(self, name: str) -> None:
        """Write which part of the step begins, mostly a word of PHASES."""
        self.page[ring.PHASE_AT] = self.word(name)

    def stage(self, name: str) -> None:
        """Write which stage of the model is entered."""
        self.page[ring.STAGE_AT] = self.word(name)

    def op(self, name: str) -> None:
        """Write which operator begins (a replay does)."""
        self.has_op = True
        ring.OP.write(self.page, ring.encode_text(name))

    def sample(self, name: str) -> None:
        """Write which sample is used outside of a step: in validation, or where the process loads its own data."""
        ring.SAMPLE.write(self.page, ring.encode_text(name))

    def loss(self, value: float, micro: int | None = None) -> None:
        """Write the loss of a micro-batch, of the newest where none is named."""
        back = 0 if micro is None else self.micro - micro
        if not 0 <= back < min(self.count, self.slots):
            return
        at = self._slot(self.count - back) + ring.LOSS_AT
        self.page[at : at + ring.LOSS.size] = ring.LOSS.pack(1, value)
        if not back:
            self.newest_loss = value

    def saved(self, side: int, micro: int, number: int) -> None:
        """Write that snapshot a (0) or b (1) of this start is whole, and before which micro-batch it was taken."""
        at = ring.NOW + ring.SAVED_AT + 32 * side
        self.page[at : at + ring.SAVED.size] = ring.SAVED.pack(0, micro, number)
        self.page[at] = 1

    def close(self) -> None:
        """Close the file; its content stays."""
        with contextlib.suppress(BufferError, ValueError):
            self.page.close()


def create(folder: Path | str, *, rank: int = 0, slots: int = 256) -> tuple[Writer, int]:
    """Make the ring of a new start in `folder` and drop the oldest ones; returns it and the number of the start.

    Raises OSError.
    """
    folder = Path(folder)
    there = [path for path in find_rings(folder) if parse_name(path)[0] == rank]
    start = 1 + max((parse_name(path)[1] for path in there), default=-1)
    for old in there[STORED_RINGS - 1 :]:
        old.unlink(missing_ok=True)
        for page in folder.glob(f"worker-{rank}-{parse_name(old)[1]}-*.bin"):
            page.unlink(missing_ok=True)
    path = folder / f"ring-{rank}-{start}.bin"
    return Writer(path, slots=slots, rank=rank, start=start), start
