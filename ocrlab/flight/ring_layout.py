"""What a ring file holds, byte by byte, and the record of a step; writer and reader stand on it.

    page 0   header: magic, slots, bytes of a slot, process, rank, start
    page 1   where the step is now: five fields, each written beside its last value and then switched to
    then     slots: number, length, checksum, loss, payload ... number again

A process that dies leaves the pages to the kernel, so that nothing of this needs a sync. What it was writing when it
died is seen by the numbers at both ends and by the checksum.
"""

from __future__ import annotations

import contextlib
import functools
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MAGIC = b"OCRLABR1"
HEADER = struct.Struct("<8sIIqIId")  # magic, slots, bytes of a slot, pid, rank, start, seconds since 1970
PAGE = 4096
NOW, FIRST = PAGE, 2 * PAGE  # offset of the page of now, of the first slot
SLOT = struct.Struct("<QII")  # number of the record, bytes of the payload, its CRC-32
LOSS = struct.Struct("<dB")  # outside of the checksum, because it comes later; the byte says that it has come
END = struct.Struct("<Q")
NUMBERS = struct.Struct("<qqqqdddBI")  # number, micro, epoch, walk, lr, loss before, time, which are known, JSON bytes
LENGTH = struct.Struct("<I")
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


class Torn(ValueError):
    """A record that was being written when its process ended, or that is damaged."""


@dataclass
class Step:
    """One micro-batch as it was when its batch had been loaded, and how far it came.

    `number` counts optimiser steps from 0 (the step that is being made), `micro` the micro-batches of the run, `walk`
    the walks over the loader. `random` holds the states of the generators by name, `loaded` those before the batch was
    loaded where it was loaded. `order` is what rebuilds the batch.
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
    random: dict[str, bytes] = field(default_factory=dict)
    loaded: dict[str, bytes] = field(default_factory=dict)
    order: dict[str, Any] = field(default_factory=dict)
    time: float = 0.0
    left_out: list[str] = field(default_factory=list)  # what did not fit into the slot


def pack(step: Step, room: int) -> bytes:
    """Return a step as at most `room` bytes; what does not fit is left out and said so: samples, order, states."""
    same = bool(step.loaded) and step.loaded == step.random
    loaded = {} if same else step.loaded
    payload = _packed(step, step.samples, step.order, loaded, same, [])
    if len(payload) <= room:
        return payload
    payload = _packed(step, step.samples[:16], step.order, loaded, same, ["samples"])
    if len(payload) <= room:
        return payload
    short = [name[:60] for name in step.samples[:16]]
    return _packed(step, short, {}, {}, same, ["samples", "order", "loaded"])[:room]


def _packed(
    step: Step, samples: list[str], order: dict[str, Any], loaded: dict[str, bytes], same: bool, left_out: list[str]
) -> bytes:
    texts: dict[str, Any] = {"samples": samples, "memory": step.memory, "order": order}
    if same:
        texts["same"] = True
    if left_out:
        texts["left_out"] = left_out
    text = ENCODE(texts).encode()
    known = (step.lr is not None) | (step.loss_before is not None) << 1
    numbers = (step.number, step.micro, step.epoch, step.walk, step.lr or 0.0, step.loss_before or 0.0, step.time)
    parts = [NUMBERS.pack(*numbers, known, len(text)), text]
    for states in (step.random, loaded):
        parts.append(bytes((len(states),)))
        for name, state in states.items():
            parts += [_titled(name, len(state)), state]
    return b"".join(parts)


@functools.cache
def _titled(name: str, size: int) -> bytes:
    """Return what stands before a state: its name and its length."""
    word = name.encode()
    return bytes((len(word),)) + word + LENGTH.pack(size)


def unpack(payload: bytes) -> Step:
    """Return the step of a payload; raises Torn."""
    try:
        number, micro, epoch, walk, rate, before, when, known, size = NUMBERS.unpack_from(payload)
        at = NUMBERS.size
        texts = json.loads(payload[at : at + size])
        random, at = _states(payload, at + size)
        loaded, _ = _states(payload, at)
    except (struct.error, ValueError, IndexError) as error:
        raise Torn(str(error)) from error
    step = Step(number, micro, epoch, walk, samples=texts["samples"], random=random, order=texts["order"], time=when)
    step.lr, step.loss_before = (rate if known & 1 else None), (before if known & 2 else None)
    step.memory, step.left_out = texts["memory"], texts.get("left_out", [])
    step.loaded = dict(random) if texts.get("same") else loaded
    return step


def _states(payload: bytes, at: int) -> tuple[dict[str, bytes], int]:
    states, count = {}, payload[at]
    at += 1
    for _ in range(count):
        size = payload[at]
        name = payload[at + 1 : at + 1 + size].decode()
        at += 1 + size
        (length,) = LENGTH.unpack_from(payload, at)
        at += LENGTH.size
        states[name] = payload[at : at + length]
        at += length
    return states, at


def read_slot(slot: bytes) -> tuple[int, Step] | None:
    """Return the number and the step of a slot, None for one that was never used; raises Torn."""
    number, size, check = SLOT.unpack_from(slot)
    (end,) = END.unpack_from(slot, len(slot) - END.size)
    if not number and not end:
        return None
    start = SLOT.size + LOSS.size
    payload = slot[start : start + size]
    if number != end or size > len(slot) - ROOM or zlib.crc32(payload) != check:
        raise Torn(f"record {number} ends as {end}")
    step = unpack(payload)
    loss, known = LOSS.unpack_from(slot, SLOT.size)
    step.loss = loss if known else None
    return number, step
