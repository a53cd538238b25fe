"""The clock of silence, with a made-up time."""

from __future__ import annotations

import os
import time

import pytest

from ocrlab.debug.watch import progress_counters, stack_sampling
from ocrlab.debug.watch.hang_detector import HangDetector, without_launcher
from ocrlab.hardware.processes.process_tree import Process
from ocrlab.run_folder import heartbeat


@pytest.fixture
def quiet(tmp_path, monkeypatch):
    """A silence of ten seconds that nothing breaks."""
    monkeypatch.setattr(progress_counters, "moved", lambda *_: "")
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
    hangs = [now for now in range(1000, 1016) if look(quiet, float(now))]
    assert hangs == [1010, 1011, 1012, 1013, 1014, 1015]


def test_output_ends_the_silence(quiet):
    for now in range(1000, 1009):
        look(quiet, float(now))
    quiet.moved(1009.0, "output")
    assert not look(quiet, 1015.0)
    assert look(quiet, 1019.5)
    assert (quiet.since, quiet.what) == (1009.0, "output")


@pytest.mark.parametrize("what", ["writing", "a compiler"])
def test_counters_end_it(what, quiet, monkeypatch):
    look(quiet, 1002.0)
    monkeypatch.setattr(progress_counters, "moved", lambda *_: what)
    assert not look(quiet, 1010.5)
    assert (quiet.since, quiet.what) == (1010.5, what)


def test_frames_end_it(quiet, monkeypatch):
    monkeypatch.setattr(stack_sampling, "moved", lambda samples: True)
    assert not look(quiet, 1010.5)
    assert quiet.what == "frames"


def test_frames_are_looked_at_from_a_quarter_of_the_limit_on(quiet, monkeypatch):
    looked = []
    monkeypatch.setattr(stack_sampling, "sample", lambda *_: looked.append(clock[0]))
    clock = [0.0]
    for tenth in range(0, 100, 5):
        clock[0] = 1000 + tenth / 10
        look(quiet, clock[0])
    assert looked[0] == 1002.5
    assert 10 <= len(looked) <= 16


def test_a_heartbeat_ends_it_and_makes_it_certain(quiet, tmp_path):
    quiet.since = time.monotonic() - 60
    writer = heartbeat.Writer(tmp_path / "1")
    writer.beat(step=1)
    assert not look(quiet, time.monotonic())
    assert quiet.has_heartbeat and quiet.what == "heartbeat"
    assert look(quiet, time.monotonic() + 11), "the same beat counts once"


def test_the_next_look_comes_in_time_but_not_all_the_time(quiet):
    assert quiet.wait(1000.0) == quiet.step == 0.5
    assert quiet.wait(2000.0) == 0.02
    assert HangDetector(300.0, quiet.heartbeats).step == 1.0


def test_who_belongs_to_it_is_remembered(quiet):
    look(quiet, 1002.0)
    assert os.getpid() in quiet.roles and quiet.names


def test_a_launcher_that_chatters_does_not_move_its_ranks():
    agent, rank, worker = Process(1, role="main"), Process(2, 1, role="rank"), Process(3, 2, role="worker")
    assert without_launcher([agent, rank, worker]) == [rank, worker]
    alone = [Process(1, role="main"), Process(2, 1, role="worker")]
    assert without_launcher(alone) == alone
