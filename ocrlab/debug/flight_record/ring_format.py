"""What a ring file holds, byte by byte, and the record of a step; writer and reader stand on it.

    page 0       header: magic, slots, bytes of a slot, process, rank, start
    page 1       where the step is now: the numbers of two words, phase and stage, in a byte each; the operator and the
                 sample, each written beside its last value and then switched to
    pages 2..7   the words: names of phases and stages
    then         slots: one for each micro-batch. Number, number again, checksum, loss, the step's numbers, and a text
                 (JSON) that is small enough
    then         blocks: number, length, checksum, the 624 words of a random generator
    then         the texts of slots that are too large for them

A process that dies leaves the pages to the kernel, so that nothing of this needs a sync. A slot's number is written
first, and again last: what was being written when the process died is seen by that. The micro-batches of one optimizer
step follow each other in slots with the same step number; what belongs to the step, its memory and learning rate, is in
the first of them. The words of a generator, with which its state begins, are written once for all records in which
they stay the same: a draw moves only what comes after them, until all words are used up. Slots are small, so that
several share a page: the kernel writes the file to the disk every half minute, and the first write to each page after
that costs 10 to 50 microseconds.
"""

from __future__ import annotations

import contextlib
import json
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ocrlab.run_folder.shared_file import DoubleBuffer

MAGIC = b"OCRLABR4"
HEADER = struct.Struct("<8sIIqIId")  # magic, slots, bytes of a slot, pid, rank, start, seconds since 1970
PAGE = 4096
NOW, WORDS, FIRST = PAGE, 2 * PAGE, 8 * PAGE  # offset of the status page, of the words, of the first slot
WORD_BYTES = 256  # of one: its length, and then it
PHASE_AT, STAGE_AT = NOW, NOW + 1  # the number of a word, 0 for none
# Number of the record, and again; checksum of all that follows the loss; whether a loss has come, and it; optimizer
# step, micro-batch, epoch, walk, learning rate, loss before, time, which of these are known (1 rate, 2 loss before,
# 4 the states before loading are those after it), place in the pass (-1: unknown), bytes of the text.
SLOT = struct.Struct("<QQQQdqqqqdddQqQ")
NUMBER, LOSS, FIGURES = struct.Struct("<Q"), struct.Struct("<Qd"), struct.Struct("<qqqqdddQqQ")
AGAIN_AT, LOSS_AT, FIGURES_AT = 8, 24, 40  # offsets in a slot
SLOT_BYTES = 1024
SMALL = SLOT_BYTES - SLOT.size  # bytes of a text that fits into its slot
BLOCK = struct.Struct("<QII")  # number, bytes, CRC-32
BLOCK_BYTES = 5120  # of one
WORDS_BYTES = 2496  # or twice as many: with what the state of a Mersenne Twister begins
BLOCKS = 6  # that a micro-batch may fill: three generators, before its batch was loaded and after it
MARGIN = 64  # micro-batches whose blocks outlive their slots, for a reader beside a running writer
TEXT_BYTES = 250  # of one: its length, and then it
OP, SAMPLE = (DoubleBuffer(NOW + offset, NOW + offset + 1, TEXT_BYTES) for offset in (704, 1216))
SAVED = struct.Struct("<Bqq")  # whether it is there, micro and number of the step that it was taken before
SAVED_AT = 1792  # snapshot a, and b 32 bytes after it

ENCODER = json.JSONEncoder(separators=(",", ":"), default=str, check_circular=False)


def _make_encoder() -> Callable[[Any], str]:
    """Return `ENCODER.encode`, with one encoder in C instead of a new one for each call, where Python has it."""
    make_c_encoder: Any = getattr(json.encoder, "c_make_encoder", None)
    with contextlib.suppress(Exception):
        in_c = make_c_encoder(None, str, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, True)
        probe = {"a": ["\u00e9\n", 1, None, True, 0.5]}
        if "".join(in_c(probe, 0)) == ENCODER.encode(probe):
            return lambda value: "".join(in_c(value, 0))
    return ENCODER.encode


ENCODE = _make_encoder()
COUNTS = [bytes((count,)) for count in range(256)]
States = Mapping[str, bytes]  # of the random generators, by name


class TornRecord(ValueError):
    """A record that was being written when its process ended, or that is damaged."""


@dataclass
class Step:
    """One micro-batch as it was when its batch had been loaded, and how far it came.

    `number` counts optimizer steps from 0 (the step that is being made), `micro` the micro-batches of the run, `walk`
    the walks over the loader. `random` holds the states of the generators by name, `loaded` those before the batch was
    loaded where it was loaded. `order` is what rebuilds the batch. `lr`, `loss_before` and `memory` are those of the
    first micro-batch of an optimizer step.
    """

    number: int
    micro: int
    epoch: int = 0
    walk: int = 0
    samples: list[str] = field(default_factory=list)
    phase: str = ""
    stage: str = ""
    op: str = ""
    lr: float | None = None
    loss_before: float | None = None
    loss: float | None = None
    memory: dict[str, int] = field(default_factory=dict)
    random: States = field(default_factory=dict)
    loaded: States = field(default_factory=dict)
    order: dict[str, Any] = field(default_factory=dict)
    time: float = 0.0
    left_out: list[str] = field(default_factory=list)  # what did not fit into the slot


def encode_step(step: Step, room: int, random: Mapping[str, Any], loaded: Mapping[str, Any] | None) -> bytes:
    """Return the text of a record in at most `room` bytes, with what stands for its states.

    What does not fit is left out and named: samples, order, states. `loaded` None: those are the same as `random`.
    """
    content: dict[str, Any] = {"samples": step.samples, "order": step.order, "random": random}
    if loaded:
        content["loaded"] = loaded
    if step.memory:
        content["memory"] = step.memory
    text = ENCODE(content).encode()
    if len(text) <= room:
        return text
    content |= {"samples": step.samples[:16], "left_out": ["samples"]}
    text = ENCODE(content).encode()
    if len(text) > room:
        few = [name[:60] for name in step.samples[:16]]
        content |= {"samples": few, "order": {}, "left_out": ["samples", "order", "loaded"]}
        content.pop("loaded", None)
        text = ENCODE(content).encode()[:room]
    return text


def encode_text(text: str, size: int = TEXT_BYTES) -> bytes:
    """Return the length of a text and the text, as far as it fits into `size` bytes."""
    raw = text.encode(errors="replace")[: size - 1]
    return COUNTS[len(raw)] + raw


def decode_slot(slot: bytes, large: bytes, block: Callable[[int], bytes]) -> tuple[int, Step] | None:
    """Return the number and the step of a slot, None for one that was never used; raises TornRecord.

    `large` is where its text lies if that is too large for the slot; `block` returns the words of a numbered block.
    """
    if len(slot) < SLOT.size:
        raise TornRecord("the file ends within a record")
    number, again, check, has_loss, loss, *numbers, flags, position, size = SLOT.unpack_from(slot)
    if not number and not again:
        return None
    data = slot[SLOT.size :] if size <= SMALL else large
    if number != again or size > len(data):
        raise TornRecord(f"record {number} ends as {again}, with {size} bytes")
    text = data[:size]
    if zlib.crc32(text, zlib.crc32(slot[FIGURES_AT : SLOT.size])) != check:
        raise TornRecord(f"record {number} is damaged")
    step, rate, before, when = Step(*numbers[:4]), *numbers[4:]
    try:
        texts = json.loads(text)
        step.samples, step.memory, step.order = texts["samples"], texts.get("memory", {}), texts["order"]
        step.left_out = texts.get("left_out", [])
        if position >= 0 and "order" not in step.left_out:
            step.order |= {"walk": step.walk, "position": position}
        step.random = _states(texts["random"], block)
        step.loaded = dict(step.random) if flags & 4 else _states(texts.get("loaded", {}), block)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise TornRecord(str(error)) from error
    step.time, step.loss = when, loss if has_loss else None
    step.lr, step.loss_before = (rate if flags & 1 else None), (before if flags & 2 else None)
    return number, step


def _states(named: Mapping[str, Any], block: Callable[[int], bytes]) -> dict[str, bytes]:
    return {name: (block(number) if number else b"") + bytes.fromhex(rest) for name, (number, rest) in named.items()}


def read_block(blocks: bytes, number: int) -> bytes:
    """Return the words in a block; raises TornRecord where it is another one, or damaged."""
    at = (number % (len(blocks) // BLOCK_BYTES)) * BLOCK_BYTES if len(blocks) >= BLOCK_BYTES else 0
    stored, size, check = BLOCK.unpack_from(blocks, at) if blocks else (0, 0, 0)
    words = blocks[at + BLOCK.size : at + BLOCK.size + size]
    if stored != number or zlib.crc32(words) != check:
        raise TornRecord(f"block {number} holds {stored}")
    return words
