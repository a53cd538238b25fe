"""What a program tells its watcher."""

from __future__ import annotations

import os
from pathlib import Path

from ocrlab.run_folder import watcher_link


def test_the_watcher_reads_where_runs_are_created(tmp_path, monkeypatch):
    monkeypatch.setenv(watcher_link.FOLDER, str(tmp_path))
    assert watcher_link.watched()
    watcher_link.report_runs("some/runs")
    assert watcher_link.read_runs(tmp_path) == Path.cwd() / "some" / "runs"
    monkeypatch.setenv(watcher_link.FOLDER, str(tmp_path / "gone"))
    watcher_link.report_runs("runs")
    assert watcher_link.read_runs(tmp_path / "gone") is None
    monkeypatch.delenv(watcher_link.FOLDER)
    assert not watcher_link.watched()
    watcher_link.report_runs("runs")


def test_a_folder_may_have_a_name_of_any_bytes(tmp_path, monkeypatch):
    monkeypatch.setenv(watcher_link.FOLDER, str(tmp_path))
    runs = tmp_path / os.fsdecode(b"caf\xe9") / "runs"
    watcher_link.report_runs(runs)
    assert watcher_link.read_runs(tmp_path) == runs


def test_the_watcher_hears_where_the_flight_record_lies(tmp_path, monkeypatch):
    monkeypatch.setenv(watcher_link.FOLDER, str(tmp_path))
    assert watcher_link.read_record(tmp_path) is None
    watcher_link.report_record("runs/mine")
    assert watcher_link.read_record(tmp_path) == Path.cwd() / "runs" / "mine"
