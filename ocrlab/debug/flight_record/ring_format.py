"""What a ring file holds, byte by byte, and the record of a step; writer and reader stand on it.

    page 0       header: magic, slots, bytes of a slot, process, rank, start
    page 1       where the step is now: the numbers of two words, phase and stage, in a byte each; how many records
                 there are, how many of them have a checksum, and how many blocks were filled; the operator and the
                 sample, each written beside its last value and then switched to
    pages 2..7   the words: names of phases and stages
    then         slots: number, number again, checksum, loss, the step's numbers, a payload that is small enough
    then         blocks: number, length, checksum, the words of a random generator
    then         the payloads of slots that are too large for them

A process that dies leaves the pages to the kernel, so that nothing of this needs a sync. A slot's number is written
first, and again last: what was being written when the process died is seen by that. Checksums, which tell a damaged
file, come some records later, and the words of a generator are written once for all steps in which they stay the same:
by the next step the ring, and code that is used once in each, have left the caches. Slots are small, so that several
share a page: the kernel writes the file to the disk every half minute, and the first write to each page after that
costs 10 to 50 microseconds. Numbers lie at multiples of eight bytes, where a memoryview writes them without struct,
whose first use in a step costs as much as ten of them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAGIC = b"OCRLABR3"
HEADER = struct.Struct("<8sIIqIId")  # magic, slots, bytes of a slot, pid, rank, start, seconds since 1970
PAGE = 4096
NOW, WORDS, FIRST = PAGE, 2 * PAGE, 8 * PAGE  # offset of the page of now, of the words, of the first slot
WORD_BYTES = 256  # of one: its length, and then it
PHASE_AT, STAGE_AT = NOW, NOW + 1  # the number of a word, 0 for none
COUNT_AT, BLOCK_AT = NOW + 8, NOW + 24  # two numbers, and one
# What lies where in a slot, in numbers of eight bytes. Number of the record, and again; checksum of all that follows
# the loss (0: not there yet); whether a loss has come, and it; optimiser step, micro-batch, epoch, walk, learning rate,
# loss before, time, which of these are known, place in the walk (-1: nobody knows), bytes of the text and of the
# payload: the text and then the states.
SLOT = struct.Struct("<QQQQdqqqqdddQqQQ")
SLOT_BYTES = 1024
SMALL = SLOT_BYTES - SLOT.size  # bytes of a payload that lies in its slot
CHECK, LOSS, SUMMED = 2, 3, 5  # where the checksum, the loss, and what is checked begin
MICRO, SIZE = 6, 15
BLOCK = struct.Struct("<QII")  # number, bytes, CRC-32
BLOCK_BYTES = 2560  # of one
BLOCKS = 6  # that a step may fill: three generators, before its batch was loaded and after it
MARGIN = 64  # steps whose blocks are kept beyond those of the slots, for a reader whose writer goes on
STATE = struct.Struct("<QI")  # the block with the words of a state, 0 for none, and the bytes of its rest

TEXTS = {"op": (704, 250), "sample": (1216, 250)}  # offset, bytes of one value
SAVED = struct.Struct("<Bqq")  # whether it is there, micro and number of the step that it was taken before
SAVED_AT = 1792  # snapshot a, and b 32 bytes behind it


ENCODER = json.JSONEncoder(separators=(",", ":"), default=str, check_circular=False)


def _encoding() -> Callable[[Any], str]:
    """Return `ENCODER.encode`, without the encoder in C that it makes anew each time where there is one."""
    made: Any = getattr(json.encoder, "c_make_encoder", None)
    with contextlib.suppress(Exception):
        in_c = made(None, str, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, True)
        probe = {"a": ["\u00e9\n", 1, None, True, 0.5]}
        if "".join(in_c(probe, 0)) == ENCODER.encode(probe):
            return lambda told: "".join(in_c(told, 0))
    return ENCODER.encode


ENCODE = _encoding()


State = bytes | tuple[bytes, bytes]  # the words, the same object for as long as they are the same, and the rest
# The states of the generators, and the rest of the last one by itself: that moves in each step with a dropout.
States = tuple[Mapping[str, State], bytes]
Encode = Callable[[States], bytes]  # states as a record holds them


class Torn(ValueError):
    """A record that was being written when its process ended, or that is damaged."""


@dataclass
class Step:
    """One micro-batch as it was when its batch had been loaded, and how far it came.

    `number` counts optimiser steps from 0 (the step that is being made), `micro` the micro-batches of the run, `walk`
    the walks over the loader. `random` holds the states of the generators by name, `loaded` those before the batch was
    loaded where it was loaded: bytes, or the words and the rest of a state, which are read back as one. `order` is what
    rebuilds the batch.
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
    random: Mapping[str, State] = field(default_factory=dict)
    loaded: Mapping[str, State] = field(default_factory=dict)
    order: dict[str, Any] = field(default_factory=dict)
    time: float = 0.0
    left_out: list[str] = field(default_factory=list)  # what did not fit into the slot


@dataclass
class Payload:
    """What a record holds besides numbers: its text and the states of the generators, as many as fit."""

    text: bytes
    states: bytes
    same: bool  # the states before loading are those after it


def fitting(step: Step, room: int, encode: Encode | None = None) -> Payload:
    """Return what of a step fits into `room` bytes; what does not is left out and said so: samples, order, states."""
    encode = encode or in_one_piece
    text = text_of(step.samples, step.memory, step.order)
    made = Payload(text.encode(), *both((step.random, b""), (step.loaded, b""), encode))
    if len(made.text) + len(made.states) <= room:
        return made
    few = step.samples[:16]
    made.text = text_of(few, step.memory, step.order, ["samples"]).encode()
    if len(made.text) + len(made.states) <= room:
        return made
    text = text_of([name[:60] for name in few], step.memory, {}, ["samples", "order", "loaded"])
    states, same = both((step.random, b""), ({}, b""), encode)
    return Payload(text.encode(), states[: room - len(text.encode())], same)


def text_of(samples: list[str], memory: dict[str, int], order: dict[str, Any], left_out: Sequence[str] = ()) -> str:
    """Return what a record holds as JSON."""
    left = f'"left_out":{ENCODE(left_out)},' if left_out else ""
    return f"{head_of(memory)}{left}{batch_of(samples, order)}}}"


def head_of(memory: dict[str, int]) -> str:
    """Return how the text of a record begins, before what it says of its batch."""
    return f'{{"memory":{ENCODE(memory)},'


def batch_of(samples: list[str], order: dict[str, Any]) -> str:
    """Return what the text of a record says of its batch, up to the brace that ends it."""
    return batch_text(samples, ENCODE(order))


def batch_text(samples: list[str], order: str) -> str:
    """Return the same where the order is JSON already."""
    return f'"samples":{ENCODE(samples)},"order":{order}'


def both(random: States, loaded: States, encode: Encode) -> tuple[bytes, bool]:
    """Return the states after (`random`) and before (`loaded`) a batch was loaded, and whether they are the same."""
    if loaded is random or (loaded[0] and loaded == random):
        return encode(random), True
    return encode(random) + encode(loaded), False


def in_one_piece(states: States) -> bytes:
    """Return states as a record holds them that names no blocks."""
    still, moving = states
    last = last_of(still)
    parts = [encoded(name, state, more=len(moving) if name == last else 0) for name, state in still.items()]
    return COUNTS[len(parts)] + b"".join(parts) + moving


def last_of(states: Mapping[str, State]) -> str:
    """Return the name of the last state, behind which lies what moves; '' for none."""
    return [*states][-1] if states else ""


def encoded(name: str, state: State, block: int = 0, more: int = 0) -> bytes:
    """Return one state as a record holds it: with its words, or with the number of the block that has them.

    `more` bytes of its rest are put behind it later.
    """
    if block:
        return _title(name) + STATE.pack(block, len(state[1]) + more) + state[1]  # type: ignore[arg-type, operator]
    state = state if isinstance(state, bytes) else b"".join(state)
    return _title(name) + STATE.pack(0, len(state) + more) + state


COUNTS = [bytes((count,)) for count in range(256)]


@functools.cache
def _title(name: str) -> bytes:
    word = name.encode()
    return bytes((len(word),)) + word


def no_block(number: int) -> bytes:
    """Return the words of a block where there are none; raises Torn."""
    raise Torn(f"no block {number}")


def _states(payload: bytes, at: int, block: Callable[[int], bytes]) -> tuple[dict[str, State], int]:
    states: dict[str, State] = {}
    count = payload[at]
    at += 1
    for _ in range(count):
        size = payload[at]
        name = payload[at + 1 : at + 1 + size].decode()
        at += 1 + size
        number, length = STATE.unpack_from(payload, at)
        at += STATE.size
        states[name] = (block(number) if number else b"") + payload[at : at + length]
        at += length
    return states, at


def read_slot(slot: bytes, large: bytes = b"", block: Callable[[int], bytes] = no_block) -> tuple[int, Step] | None:
    """Return the number and the step of a slot, None for one that was never used; raises Torn.

    `large` is where its payload lies if that is too large for the slot.
    """
    number, again, check, known, loss, *numbers, told, position, text, size = SLOT.unpack_from(slot)
    if not number and not again:
        return None
    held = slot[SLOT.size :] if size <= SMALL else large
    if number != again or not text <= size <= len(held):
        raise Torn(f"record {number} ends as {again}, with {size} bytes")
    payload = held[:size]
    if check and zlib.crc32(payload, zlib.crc32(slot[8 * SUMMED : SLOT.size])) != check:
        raise Torn(f"record {number} is damaged")
    step, rate, before, when = Step(*numbers[:4]), *numbers[4:]
    try:
        texts = json.loads(payload[:text])
        step.samples, step.memory, step.order = texts["samples"], texts["memory"], texts["order"]
        step.left_out = texts.get("left_out", [])
        if position >= 0 and "order" not in step.left_out:
            step.order |= {"walk": step.walk, "position": position}
        random, at = _states(payload, text, block)
        step.loaded = dict(random) if told & 4 else _states(payload, at, block)[0]
    except (struct.error, ValueError, LookupError, TypeError) as error:
        raise Torn(str(error)) from error
    step.random, step.time, step.loss = random, when, loss if known else None
    step.lr, step.loss_before = (rate if told & 1 else None), (before if told & 2 else None)
    return number, step


def block_of(blocks: bytes, number: int) -> bytes:
    """Return the words in a block; raises Torn where it is another one, or damaged."""
    at = (number % (len(blocks) // BLOCK_BYTES)) * BLOCK_BYTES if len(blocks) >= BLOCK_BYTES else 0
    found, size, check = BLOCK.unpack_from(blocks, at) if blocks else (0, 0, 0)
    words = blocks[at + BLOCK.size : at + BLOCK.size + size]
    if found != number or zlib.crc32(words) != check:
        raise Torn(f"block {number} holds {found}")
    return words
