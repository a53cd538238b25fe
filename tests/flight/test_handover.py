"""What a program tells its watcher."""

from __future__ import annotations

import os
from pathlib import Path

from ocrlab.flight import handover


def test_the_watcher_hears_where_runs_are_made(tmp_path, monkeypatch):
    monkeypatch.setenv(handover.FOLDER, str(tmp_path))
    assert handover.watched()
    handover.tell_runs("some/runs")
    assert handover.runs_told(tmp_path) == Path.cwd() / "some" / "runs"


def test_a_folder_may_have_a_name_of_any_bytes(tmp_path, monkeypatch):
    monkeypatch.setenv(handover.FOLDER, str(tmp_path))
    runs = tmp_path / os.fsdecode(b"caf\xe9") / "runs"
    handover.tell_runs(runs)
    assert handover.runs_told(tmp_path) == runs


def test_nobody_watches(tmp_path, monkeypatch):
    monkeypatch.delenv(handover.FOLDER, raising=False)
    assert not handover.watched()
    handover.tell_runs("runs")
    assert handover.runs_told(tmp_path) is None


def test_a_handover_folder_that_is_gone_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setenv(handover.FOLDER, str(tmp_path / "none"))
    handover.tell_runs("runs")
    assert handover.runs_told(tmp_path / "none") is None


def test_the_watcher_hears_where_the_flight_record_lies(tmp_path, monkeypatch):
    monkeypatch.setenv(handover.FOLDER, str(tmp_path))
    assert handover.record_told(tmp_path) is None
    handover.tell_record("runs/mine")
    assert handover.record_told(tmp_path) == Path.cwd() / "runs" / "mine"
