"""Heartbeats: read from outside, kept after death, one a process; torn and foreign files are not heartbeats."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from ocrlab.run_folder import heartbeat


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(heartbeat.FOLDER, str(tmp_path))
    monkeypatch.setattr(heartbeat, "_mine", (0, None))
    return tmp_path


def test_a_beat_is_read_back(folder):
    before = time.monotonic()
    heartbeat.beat(step=7, phase="train", sample="page é.jpg")
    heartbeat.beat(step=8)  # what is not given stays
    record = heartbeat.newest(folder)
    assert before <= record.pop("time") <= time.monotonic()
    assert record == {"pid": os.getpid(), "count": 2, "step": 8, "phase": "train", "sample": "page é.jpg"}


def test_long_texts_are_cut(folder):
    heartbeat.beat(phase="p" * 99, sample="s" * 999)
    record = heartbeat.newest(folder)
    assert (len(record["phase"]), len(record["sample"])) == (16, 200)


def test_a_file_name_may_hold_any_bytes(folder):
    heartbeat.beat(sample=os.fsdecode(b"caf\xe9.png"))
    assert heartbeat.newest(folder)["sample"] == "caf\\udce9.png"


def test_a_folder_that_is_gone_is_no_error(monkeypatch, tmp_path):
    monkeypatch.setenv(heartbeat.FOLDER, str(tmp_path / "none"))
    monkeypatch.setattr(heartbeat, "_mine", (0, None))
    heartbeat.beat(step=1)
    assert heartbeat.newest(tmp_path / "none") is None


def test_a_fork_has_its_own_and_the_dead_keep_their_last_word(folder):
    heartbeat.beat(step=1)
    pid = os.fork()
    if pid == 0:
        heartbeat.beat(step=2)
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    assert {record["pid"]: record["step"] for record in heartbeat.everyone(folder)} == {os.getpid(): 1, pid: 2}
    assert heartbeat.newest(folder)["pid"] == pid


@pytest.mark.parametrize("spoil", ["torn", "foreign", "short", "empty", "never given"])
def test_what_is_no_whole_heartbeat_is_not_believed(folder, spoil):
    heartbeat.beat(step=1)
    path = folder / str(os.getpid())
    data = bytearray(path.read_bytes())
    if spoil == "torn":
        data[8] += 1  # the first count is ahead of the second
    changed = {"foreign": b"x" * 4096, "short": bytes(data[:100]), "empty": b"", "never given": bytes(4096)}
    path.write_bytes(changed.get(spoil, bytes(data)))
    assert heartbeat.read(path) is None
    assert heartbeat.newest(folder) is None


def test_a_beat_that_is_being_written_is_never_half(folder, root):
    """A writer at full speed and a reader that looks a thousand times: step and sample always belong together."""
    code = "from ocrlab.run_folder import heartbeat as h\nprint(1, flush=True)\nn = 0\nwhile True:\n n += 1\n"
    code += " h.beat(step=n, sample=str(n))"
    writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=root)
    try:
        writer.stdout.readline()
        deadline, records = time.monotonic() + 60, [heartbeat.read(folder / str(writer.pid)) for _ in range(1000)]
        while not any(records) and time.monotonic() < deadline:  # on a busy machine it may be a while mid-word
            records += [heartbeat.read(folder / str(writer.pid)) for _ in range(1000)]
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
    whole = [record for record in records if record]
    assert whole
    assert all(str(record["step"]) == record["sample"] for record in whole)
