"""What a ring file holds, byte by byte, and the record of a step; writer and reader stand on it.

    page 0   header: magic, slots, bytes of a slot, process, rank, start
    page 1   where the step is now: five fields, each written beside its last value and then switched to
    then     slots: number, length, checksum, loss, payload, number again
    then     blocks: number, length, checksum, the words of a random generator

A process that dies leaves the pages to the kernel, so that nothing of this needs a sync. What it was writing when it
died is seen by the numbers at both ends. Checksums, which tell a damaged file, come some records later, and the words
of a generator are written once for all steps in which they stay the same: by the next step the ring, and code that is
used once in each, have left the caches, and a kB or a checksum costs some microseconds.
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

MAGIC = b"OCRLABR2"
HEADER = struct.Struct("<8sIIqIId")  # magic, slots, bytes of a slot, pid, rank, start, seconds since 1970
PAGE = 4096
NOW, FIRST = PAGE, 2 * PAGE  # offset of the page of now, of the first slot
SLOT = struct.Struct("<QII")  # number of the record, bytes of the payload, its CRC-32 (0: not there yet)
LOSS = struct.Struct("<dB")  # outside of the checksum, because it comes later; the byte says that it has come
END = struct.Struct("<Q")
SUM = struct.Struct("<I")
NUMBERS = struct.Struct("<qqqqdddBI")  # number, micro, epoch, walk, lr, loss before, time, which are known, JSON bytes
STATE = struct.Struct("<QI")  # the block with the words of a state, 0 for none, and the bytes of its rest
BLOCK = struct.Struct("<QII")  # number, bytes, CRC-32
BLOCK_BYTES = 2560  # of one
BLOCKS = 6  # that a step may fill: three generators, before its batch was loaded and after it
MARGIN = 64  # steps whose blocks are kept beyond those of the slots, for a reader whose writer goes on
ROOM = SLOT.size + LOSS.size + END.size  # of a slot, besides the payload

TEXTS = {"phase": (64, 24), "stage": (192, 250), "op": (704, 250), "sample": (1216, 250)}  # offset, bytes of one value
RESULT = struct.Struct("<qd")  # micro, loss
RESULT_AT = 1728  # selector, then two of them
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


State = bytes | tuple[bytes, bytes]
Encode = Callable[[int, Mapping[str, State]], bytes]  # states as a record holds them, 0 after loading, 1 before


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


def pack(step: Step, room: int, encode: Encode | None = None) -> bytes:
    """Return a step as at most `room` bytes; what does not fit is left out and said so: samples, order, states."""
    payload = packed(step, text_of(step.samples, step.memory, step.order), step.loaded, encode)
    if len(payload) <= room:
        return payload
    few = step.samples[:16]
    payload = packed(step, text_of(few, step.memory, step.order, ["samples"]), step.loaded, encode)
    if len(payload) <= room:
        return payload
    text = text_of([name[:60] for name in few], step.memory, {}, ["samples", "order", "loaded"])
    return packed(step, text, {}, encode)[:room]


def text_of(samples: list[str], memory: dict[str, int], order: dict[str, Any], left_out: Sequence[str] = ()) -> str:
    """Return what a record holds as JSON."""
    texts: dict[str, Any] = {"samples": samples, "memory": memory, "order": order}
    return ENCODE(texts | {"left_out": left_out} if left_out else texts)


def packed(step: Step, text: str, loaded: Mapping[str, State], encode: Encode | None) -> bytes:
    """Return the payload of a record, with `text` in place of what a step says in words."""
    numbers = (step.number, step.micro, step.epoch, step.walk, step.lr, step.loss_before, step.time)
    return payload(*numbers, text, step.random, loaded, encode)


def payload(
    number: int,
    micro: int,
    epoch: int,
    walk: int,
    lr: float | None,
    loss_before: float | None,
    when: float,
    text: str,
    random: Mapping[str, State],
    loaded: Mapping[str, State],
    encode: Encode | None,
) -> bytes:
    """Return the payload of a record from what it is made of, as in a Step."""
    raw = text.encode()
    same = loaded is random or (bool(loaded) and loaded == random)
    known = (lr is not None) | (loss_before is not None) << 1 | same << 2
    parts = [NUMBERS.pack(number, micro, epoch, walk, lr or 0.0, loss_before or 0.0, when, known, len(raw)), raw]
    encode = encode or in_one_piece
    parts.append(encode(0, random))
    if not same:
        parts.append(encode(1, loaded))
    return b"".join(parts)


def in_one_piece(_side: int, states: Mapping[str, State]) -> bytes:
    """Return states as a record holds them that names no blocks."""
    return COUNTS[len(states)] + b"".join(encoded(name, state) for name, state in states.items())


def encoded(name: str, state: State, block: int = 0) -> bytes:
    """Return one state as a record holds it: with its words, or with the number of the block that has them."""
    if block:
        return _title(name) + STATE.pack(block, len(state[1])) + state[1]  # type: ignore[arg-type, operator]
    state = state if isinstance(state, bytes) else b"".join(state)
    return _title(name) + STATE.pack(0, len(state)) + state


COUNTS = [bytes((count,)) for count in range(256)]


@functools.cache
def _title(name: str) -> bytes:
    word = name.encode()
    return bytes((len(word),)) + word


def no_block(number: int) -> bytes:
    """Return the words of a block where there are none; raises Torn."""
    raise Torn(f"no block {number}")


def unpack(payload: bytes, block: Callable[[int], bytes] = no_block) -> Step:
    """Return the step of a payload, the words of its states from `block`; raises Torn."""
    try:
        number, micro, epoch, walk, rate, before, when, known, size = NUMBERS.unpack_from(payload)
        at = NUMBERS.size
        texts = json.loads(payload[at : at + size])
        random, at = _states(payload, at + size, block)
        loaded = dict(random) if known & 4 else _states(payload, at, block)[0]
    except (struct.error, ValueError, IndexError) as error:
        raise Torn(str(error)) from error
    step = Step(number, micro, epoch, walk, samples=texts["samples"], random=random, order=texts["order"], time=when)
    step.lr, step.loss_before = (rate if known & 1 else None), (before if known & 2 else None)
    step.memory, step.left_out = texts["memory"], texts.get("left_out", [])
    step.loaded = loaded
    return step


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


def read_slot(slot: bytes, block: Callable[[int], bytes] = no_block) -> tuple[int, Step] | None:
    """Return the number and the step of a slot, None for one that was never used; raises Torn."""
    number, size, check = SLOT.unpack_from(slot)
    start = SLOT.size + LOSS.size
    if not number and not size:
        return None
    payload = slot[start : start + size]
    end = END.unpack_from(slot, start + size)[0] if size <= len(slot) - ROOM else None
    if number != end or (check and zlib.crc32(payload) != check):
        raise Torn(f"record {number} ends as {end}")
    step = unpack(payload, block)
    loss, known = LOSS.unpack_from(slot, SLOT.size)
    step.loss = loss if known else None
    return number, step


def block_of(blocks: bytes, number: int) -> bytes:
    """Return the words in a block; raises Torn where it is another one, or damaged."""
    at = (number % (len(blocks) // BLOCK_BYTES)) * BLOCK_BYTES if len(blocks) >= BLOCK_BYTES else 0
    found, size, check = BLOCK.unpack_from(blocks, at) if blocks else (0, 0, 0)
    words = blocks[at + BLOCK.size : at + BLOCK.size + size]
    if found != number or zlib.crc32(words) != check:
        raise Torn(f"block {number} holds {found}")
    return words
