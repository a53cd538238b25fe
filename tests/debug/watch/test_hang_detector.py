"""The clock of silence, with a made-up time: what ends it, and what does not."""

import os
import time

import pytest

from ocrlab.debug.watch import hang_detector, stack_sampling
from ocrlab.debug.watch.hang_detector import HangDetector, without_launcher
from ocrlab.hardware.processes.process_tree import Process
from ocrlab.run_folder import heartbeat


@pytest.fixture
def quiet(tmp_path, monkeypatch):
    """A silence of ten seconds that nothing breaks."""
    monkeypatch.setattr(hang_detector, "what_moved", lambda *_: "")
    monkeypatch.setattr(stack_sampling, "sample", lambda *_: None)
    monkeypatch.setattr("ocrlab.debug.watch.hang_detector.stack_dumps.take", lambda *_: [])
    return HangDetector(10.0, tmp_path, since=1000.0)


def look(quiet, now):
    quiet.look(now, os.getpid())
    if quiet.sampler:
        quiet.sampler.join()
        quiet.look(now, os.getpid())
    return quiet.hangs(now)


def test_silence_is_a_hang_at_the_limit_and_not_before(quiet):
    assert [now for now in range(1000, 1013) if look(quiet, float(now))] == [1010, 1011, 1012]
    quiet.moved(1013.0, "output")
    assert not look(quiet, 1020.0) and look(quiet, 1023.5)


@pytest.mark.parametrize("what", ["writing", "frames"])
def test_counters_and_frames_end_it(what, quiet, monkeypatch):
    look(quiet, 1002.0)
    monkeypatch.setattr(hang_detector, "what_moved", lambda *_: "" if what == "frames" else what)
    monkeypatch.setattr(stack_sampling, "moved", lambda _samples: what == "frames")
    assert not look(quiet, 1010.5)
    assert (quiet.since, quiet.what) == (1010.5, what)


def test_a_heartbeat_ends_it_and_makes_it_certain(quiet, tmp_path):
    quiet.since = time.monotonic() - 60
    heartbeat.Writer(tmp_path / "1").beat(step=1)
    assert not look(quiet, time.monotonic())
    assert quiet.has_heartbeat and quiet.what == "heartbeat"
    assert look(quiet, time.monotonic() + 11), "the same beat counts once"


def test_a_launcher_that_chatters_does_not_move_its_ranks():
    agent, rank, worker = Process(1, role="main"), Process(2, 1, role="rank"), Process(3, 2, role="worker")
    assert without_launcher([agent, rank, worker]) == [rank, worker]
    alone = [Process(1, role="main"), Process(2, 1, role="worker")]
    assert without_launcher(alone) == alone
