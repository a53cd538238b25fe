"""What is known of each rank of a watched training, from its own record, the launcher, heartbeats and /proc."""

import os
import subprocess
import sys
import time
from pathlib import Path

from ocrlab.debug.watch import rank_status
from ocrlab.hardware.processes.process_tree import Process
from ocrlab.run_folder import heartbeat, launcher, watcher_link

SUMMARY = """
[default1]:boom
train.py FAILED
Root Cause (first observed failure):
[0]:
  time      : 2026-01-02_03:04:05
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 42)
  error_file: <N/A>
"""


def test_records_heartbeats_and_processes_are_put_together(tmp_path, monkeypatch):
    monkeypatch.setenv(watcher_link.FOLDER, str(tmp_path))
    monkeypatch.setattr("ocrlab.run_folder.launcher.os.getpid", lambda: 77)
    member = launcher.RankRecord(launcher.Ranks(1, 2, 1, 2, "torchrun"))
    member.begin()
    beats = tmp_path / "heartbeat"
    beats.mkdir()
    heartbeat.Writer(beats / "77").beat(step=4, phase="train", sample="p1")
    family = [Process(5), Process(77, 5, state="T"), Process(78, 77), Process(79, 5)]
    (row,) = rank_status.gather(tmp_path, beats, family, "")
    assert (row["rank"], row["world"], row["state"], row["step"], row["sample"]) == (1, 2, "T", 4, "p1")
    assert row["pids"] == [77, 78]
    assert rank_status.line(row).startswith("rank 1 of 2 (process 77), is stopped, at step 4 (train, p1)")
    member.end("failed", error=ValueError("no corner\nin line 2"))
    assert "failed: ValueError: no corner, at step 4" in rank_status.table(rank_status.gather(tmp_path, beats, [], ""))


def test_living_ranks_without_records_are_read_from_their_environment(tmp_path):
    variables = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    started = []
    for rank in ("0", "1"):
        mine = {**os.environ, **variables, "RANK": rank, "LOCAL_RANK": rank}
        started.append(subprocess.Popen([sys.executable, "-c", "input()"], env=mine, stdin=subprocess.PIPE))
    odd = subprocess.Popen(
        [sys.executable, "-c", "input()"], env={**os.environ, **variables, "RANK": "x"}, stdin=subprocess.PIPE
    )
    try:
        for process in (*started, odd):  # the kernel shows no environment until the new program is loaded
            while not Path(f"/proc/{process.pid}/environ").read_bytes():
                time.sleep(0.01)
        family = [Process(process.pid, os.getpid(), state="S", role="rank") for process in started]
        family.append(Process(odd.pid, os.getpid(), state="S", role="main"))
        rows = rank_status.gather(tmp_path, tmp_path, family, "")
        assert [(process["rank"], process["world"], process["pid"], process["pids"]) for process in rows] == [
            (rank, 2, process.pid, [process.pid]) for rank, process in enumerate(started)
        ]
        blocked = [Process(process.pid, os.getpid(), state="D", role="rank") for process in started]
        assert rank_status.gather(tmp_path, tmp_path, blocked, "") == []
    finally:
        for process in (*started, odd):
            process.communicate(b"\n")


def test_exits_of_ranks_are_written_to_their_run_folder(tmp_path, monkeypatch):
    run, scratch = tmp_path / "run", tmp_path / "scratch"
    rows = [{"rank": 0, "pid": 41, "exit_code": 1, "state": ""}, {"rank": 1, "pid": 42, "exit_code": -9, "state": ""}]
    rank_status.keep(scratch, rows)
    (run / "flight").mkdir(parents=True)
    scratch.mkdir()
    monkeypatch.setenv(watcher_link.FOLDER, str(scratch))
    watcher_link.report_run(run)
    rank_status.keep(scratch, [{"rank": 0, "pid": 41, "state": "S"}])
    assert launcher.exits(run / "flight") == [], "they live"
    rank_status.keep(scratch, rows)
    assert [row["exit_code"] for row in launcher.exits(run / "flight")] == [1, -9]
