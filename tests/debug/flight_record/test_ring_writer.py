"""The ring: what was written is read back after any death, what was torn is seen, a full disk refuses at the start."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from ocrlab.debug.flight_record import ring_format, ring_reader, ring_writer
from ocrlab.debug.flight_record.ring_format import (
    BLOCK_BYTES,
    BLOCKS,
    FIRST,
    MARGIN,
    SLOT_BYTES,
    TornRecord,
    decode_slot,
    encode_step,
)
from ocrlab.errors import DataError


def step(i: int, **more) -> ring_format.Step:
    states = {"python": bytes([i % 256]) * 2509, "torch": b"t" * 5056}
    return ring_format.Step(
        i // 2, i, samples=[f"page_{i}.png", "b"], lr=0.1, random=states, order={"indices": f"[{i}]"}, **more
    )


def test_what_was_written_is_read_back_oldest_first(tmp_path):
    writer = ring_writer.Writer(tmp_path / "ring-0-0.bin", slots=8)
    for i in range(20):
        writer.begin(step(i, loss_before=i / 3 if i else None))
        writer.loss(i / 7)
    writer.phase("backward")
    writer.stage("decoder.fusion")
    writer.op("aten::convolution_backward")
    flight = ring_reader.read_ring(tmp_path / "ring-0-0.bin")
    assert [s.micro for s in flight.steps] == list(range(12, 20))
    assert [s.loss for s in flight.steps] == [i / 7 for i in range(12, 20)]
    assert (flight.steps[0].loss_before, flight.steps[3].random) == (12 / 3, step(15).random)
    assert (flight.torn, flight.pid) == (0, os.getpid())
    now = flight.now
    assert (now.number, now.phase, now.stage, now.op) == (9, "backward", "decoder.fusion", "aten::convolution_backward")
    assert now.samples == ["page_19.png", "b"]
    assert (tmp_path / "ring-0-0.bin").stat().st_mode & 0o777 == 0o600


def test_a_skipped_state_is_filled_in_between_equal_states(tmp_path):
    writer = ring_writer.Writer(tmp_path / "ring-0-0.bin", slots=16)
    read = [b"a", b"a", None, None, b"a", None, b"b", None]
    for i, state in enumerate(read):
        writer.begin(ring_format.Step(i // 4, i, random={"torch": b"t%d" % i} | ({"numpy": state} if state else {})))
    states = [s.random.get("numpy") for s in ring_reader.read_ring(tmp_path / "ring-0-0.bin").steps]
    assert states == [b"a"] * 5 + [None, b"b", None]


def test_a_new_step_forgets_the_stage_and_keeps_an_unknown_loss_unknown(tmp_path):
    writer = ring_writer.Writer(tmp_path / "ring-0-0.bin", slots=4)
    writer.begin(step(0))
    writer.loss(1.5)
    writer.stage("head")
    writer.begin(step(1))
    now = ring_reader.read_ring(tmp_path / "ring-0-0.bin").now
    assert (now.stage, now.phase, now.loss) == ("", "forward", None)
    writer.loss(2.5, micro=0)  # one that arrives late from a device
    assert ring_reader.read_ring(tmp_path / "ring-0-0.bin").steps[0].loss == 2.5


@pytest.mark.parametrize("cut", [0, 8, 44, 116, "block"])
def test_a_torn_record_is_counted_and_the_others_stay(tmp_path, cut):
    path = tmp_path / "ring-0-0.bin"
    writer = ring_writer.Writer(path, slots=4)
    for i in range(4):
        writer.begin(step(i))
    writer.close()
    data = bytearray(path.read_bytes())
    large = writer.blocks_at + 3 * BLOCK_BYTES + 500
    at = large if cut == "block" else FIRST + 2 * SLOT_BYTES + cut
    data[at : at + 4] = b"\xff\xfe\xfd\xfc"
    path.write_bytes(data)
    flight = ring_reader.read_ring(path)
    assert (len(flight.steps), flight.torn) == (3, 1)


def test_states_that_stay_the_same_are_written_once_and_read_with_each_step(tmp_path):
    """Also when steps name a block that is older than all that the others have filled since."""
    path, slots = tmp_path / "ring-0-0.bin", 8
    writer = ring_writer.Writer(path, slots=slots)
    still, moving = bytes(range(208)) * 12, [bytes([i % 251]) * 2496 for i in range(3 * (slots + MARGIN) * BLOCKS)]
    for i, state in enumerate(moving):
        states = {"python": still + b"p", "torch": state + b"t%d" % i, "numpy": b"n" * 7}
        loaded = {"python": still + b"before", "torch": state + b"before"}
        writer.begin(ring_format.Step(i, i, random=states, loaded=loaded))
        if i % 97 == 0 or i > len(moving) - 40:
            flight = ring_reader.read_ring(path)
            assert flight.torn == 0 and len(flight.steps) == min(i + 1, slots)
            for s in flight.steps:
                torch_now = moving[s.micro] + b"t%d" % s.micro
                assert s.random == {"python": still + b"p", "torch": torch_now, "numpy": b"n" * 7}
                assert s.loaded == {"python": still + b"before", "torch": moving[s.micro] + b"before"}
    assert writer.block < 2.1 * len(moving)


def test_a_step_too_large_for_its_slot_keeps_its_numbers(tmp_path):
    big = step(3)
    big.samples = [f"/a/long/path/of/page_{i}.png" for i in range(5000)]
    big.order = {"indices": repr(list(range(5000)))}
    assert len(encode_step(big, 20_000, {}, None)) <= 20_000
    writer = ring_writer.Writer(tmp_path / "ring-0-0.bin", slots=2)
    writer.begin(big)
    read = ring_reader.read_ring(tmp_path / "ring-0-0.bin").steps[0]
    assert (read.number, read.micro, len(read.samples)) == (1, 3, 16)
    assert "order" in read.left_out
    assert read.random == big.random


def test_a_step_that_was_never_finished_is_torn(tmp_path):
    """Its number stands at the beginning, and the one before at the end of what a record writes."""
    writer = ring_writer.Writer(tmp_path / "ring-0-0.bin", slots=4)
    for i in range(5):
        writer.begin(step(i))
    writer.page[FIRST] = 9
    flight = ring_reader.read_ring(tmp_path / "ring-0-0.bin")
    assert ([s.micro for s in flight.steps], flight.torn) == ([1, 2, 3], 1)


def test_more_words_than_there_is_room_for(tmp_path):
    """The first ones stay, the last ones change: each is right until eight more were said."""
    writer = ring_writer.Writer(tmp_path / "ring-0-0.bin", slots=4)
    writer.begin(step(0))
    first = writer.word("encoder.layer1")
    for i in range(300):
        writer.stage(name := f"{'block.' * 50}"[: i % 290] + str(i))
        now = ring_reader.read_ring(tmp_path / "ring-0-0.bin").now
        assert (now.stage, now.phase) == (name[:255], "forward")
    assert writer.word("encoder.layer1") == first and len(writer.words) <= 1 + ring_writer.MOST
    writer.stage("encoder.layer1")
    assert ring_reader.read_ring(tmp_path / "ring-0-0.bin").now.stage == "encoder.layer1"


@pytest.mark.parametrize("data", [b"", b"OCRLABR1", b"\0" * 9000, b"OCRLABR1" + b"\xff" * 9000, b"OCRLABR3"])
def test_what_is_no_ring_or_one_of_another_ocrlab_is_refused_in_words(tmp_path, data):
    other = data == b"OCRLABR3"
    (tmp_path / "ring-0-0.bin").write_bytes(data + bytes(9 * 4096) * other)
    with pytest.raises(DataError, match="Replay it with the ocrlab that recorded it" if other else "is not a ring"):
        ring_reader.read_ring(tmp_path / "ring-0-0.bin")


def test_random_bytes_in_the_slots_never_raise_anything_else(tmp_path):
    path = tmp_path / "ring-0-0.bin"
    ring_writer.Writer(path, slots=4).close()
    head = path.read_bytes()[:FIRST]
    path.write_bytes(head + random.Random(0).randbytes(4 * SLOT_BYTES))
    assert ring_reader.read_ring(path).torn == 4
    with pytest.raises(TornRecord):
        decode_slot(b"\x01" + bytes(1023), b"", bytes)


def test_starts_are_counted_and_bounded(tmp_path):
    flight = tmp_path / "flight"
    flight.mkdir()
    for expected in range(5):
        writer, start = ring_writer.create(flight, slots=2)
        writer.close()
        assert start == expected
    assert [ring_reader.parse_name(path) for path in ring_reader.find_rings(tmp_path)] == [(0, 4), (0, 3), (0, 2)]


PROGRAM = """
import os, signal, sys, threading, time
from ocrlab.debug.flight_record import ring_format, ring_writer
writer = ring_writer.Writer(sys.argv[1], slots=8)
i = 0
def die():
    time.sleep(float(sys.argv[3]))
    os._exit(3) if sys.argv[2] == "exit" else os.kill(os.getpid(), getattr(signal, sys.argv[2]))
threading.Thread(target=die).start()
while True:
    writer.begin(ring_format.Step(i, i, samples=[str(i)], random={"torch": str(i).encode() * 1000}))
    writer.stage(f"stage.{i}")
    writer.loss(float(i))
    i += 1
"""


@pytest.mark.parametrize("way", ["SIGKILL", "SIGSEGV", "exit"])
def test_a_death_at_any_moment_leaves_a_ring_that_is_right(tmp_path, way):
    path = tmp_path / "ring-0-0.bin"
    for attempt in range(3):
        done = subprocess.run([sys.executable, "-c", PROGRAM, path, way, str(0.05 + 0.013 * attempt)], check=False)
        assert done.returncode == (3 if way == "exit" else -getattr(signal, way))
        flight = ring_reader.read_ring(path)
        assert flight.torn <= 1
        micros = [s.micro for s in flight.steps]
        assert micros == list(range(micros[0], micros[0] + len(micros)))
        assert all(
            s.samples == [str(s.micro)] and s.random["torch"] == str(s.micro).encode() * 1000 for s in flight.steps
        )
        assert all(s.loss == s.micro for s in flight.steps[:-1])
        assert flight.now.stage in (
            "", f"stage.{flight.now.micro}", f"stage.{flight.now.micro - 1}",
            f"stage.{flight.now.micro + 1}",
        )  # fmt: skip
        assert flight.time <= time.time()
