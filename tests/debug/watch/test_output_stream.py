"""Rings that keep head and tail, and sinks that never make the watcher wait."""

from __future__ import annotations

import os

import pytest

from ocrlab.debug.watch.output_stream import PENDING, LogBuffer, Sink


def test_a_line_that_the_other_stream_interrupts_is_ended():
    ring = LogBuffer()
    ring.add(1, b"50 %")
    ring.add(2, b"Traceback\n")
    ring.add(1, b"done\n")
    assert ring.text() == "50 %\nTraceback\ndone\n"


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_head_and_tail_of_much(size):
    ring, data = LogBuffer(head=10, tail=20), bytes(range(97, 123)) * 100
    for start in range(0, len(data), size):
        ring.add(1, data[start : start + size])
    head, _, rest = ring.text().partition("\n... ")
    gap, _, tail = rest.partition(" bytes left out ...\n")
    assert (head, tail) == (data[:10].decode(), data[-20:].decode())
    assert int(gap) == len(data) - 30
    assert len(ring.tail) <= 2 * 20 + size


def test_a_sink_does_not_wait_for_its_reader():
    reading, writing = os.pipe()
    sink = Sink(writing)
    sink.put(bytes(3_000_000))
    assert sink.pending and not sink.full
    sink.put(bytes(3_000_000))
    assert sink.full and len(sink.pending) > PENDING
    got = 0
    while got < 6_000_000:
        got += len(os.read(reading, 1 << 20))
        sink.flush()
    assert not sink.pending
    assert os.get_blocking(writing), "what others share stays as it was"
    for descriptor in (reading, writing):
        os.close(descriptor)
    sink.close()


def test_a_reader_that_went_away_is_noticed():
    reading, writing = os.pipe()
    sink = Sink(writing)
    os.close(reading)
    sink.put(b"x")
    assert sink.gone and not sink.pending
    sink.put(b"y")
    os.close(writing)
    sink.close()


def test_a_file_is_written_where_it_stood(tmp_path):
    with open(tmp_path / "log", "wb", buffering=0) as file:
        file.write(b"before ")
        Sink(file.fileno()).put(b"x" * 1_000_000)
        file.write(b" after")
    assert (tmp_path / "log").read_bytes() == b"before " + b"x" * 1_000_000 + b" after"
