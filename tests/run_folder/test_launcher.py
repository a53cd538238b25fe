"""Which rank a process is, by the environment of its launcher, and what ranks say of their ends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ocrlab.debug.flight_record import last_position, ring_format, ring_writer
from ocrlab.errors import ConfigError, DataError, RunError
from ocrlab.run_folder import launcher, watcher_link
from ocrlab.run_folder.launcher import RankRecord, Ranks, detect_ranks

TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
SRUN = {"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "1", "SLURM_NNODES": "3"}


def test_the_rank_of_torchrun_and_srun():
    assert detect_ranks(TORCHRUN) == Ranks(3, 4, 1, 2, "torchrun")
    assert detect_ranks(SRUN) == detect_ranks({**SRUN, "SLURM_TASKS_PER_NODE": "2(x3)"}) == Ranks(5, 6, 1, 2, "srun")
    assert (detect_ranks(TORCHRUN).nodes, detect_ranks(SRUN).nodes, detect_ranks(SRUN).first) == (2, 3, False)
    assert detect_ranks({**TORCHRUN, **SRUN}).launcher == "torchrun", "srun torchrun ...: the inner one counts"


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"RANK": "0", "WORLD_SIZE": "2"},  # of somebody else's program around us
        {**SRUN, "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},
        {**SRUN, "SLURM_JOB_NAME": "interactive"},
        {**TORCHRUN, "OCRLAB_REPLAY": "job.json"},
    ],
)
def test_without_a_launcher_a_process_is_alone(environment):
    assert detect_ranks(environment) == Ranks()


@pytest.mark.parametrize(
    "wrong", [{"RANK": "4"}, {"RANK": "-1"}, {"RANK": "two"}, {"LOCAL_WORLD_SIZE": "3"}, {"WORLD_SIZE": ""}]
)
def test_an_environment_that_cannot_be_is_refused(wrong):
    with pytest.raises(ConfigError):
        detect_ranks({**TORCHRUN, **wrong})


def test_the_first_rank_that_failed_by_itself_is_blamed(tmp_path, monkeypatch):
    monkeypatch.setenv(watcher_link.FOLDER, str(tmp_path / "watcher"))
    members = [RankRecord(Ranks(rank, 3, rank, 3, "torchrun")) for rank in range(3)]
    for member in members:
        member.begin()
        member.keep(tmp_path / "flight")
    members[0].end("failed", error=RuntimeError("[pair.cc:545] Connection closed by peer [127.0.0.1]:1"))
    assert launcher.others_word(tmp_path / "flight", 0) is None
    assert launcher.blamed(launcher.read(tmp_path / "flight")) == 1, "without a word"
    members[2].end("failed", error=DataError("page.jpg is not an image"))
    members[1].end("failed", error=DataError("later"))
    members[2].end("success")  # the first word is the last one
    for folder in (tmp_path / "flight", tmp_path / "watcher"):
        records = launcher.read(folder)
        assert [record["rank"] for record in records] == [0, 1, 2]
        assert launcher.blamed(records) == 2
    word = str(launcher.others_word(tmp_path / "flight", 0))
    assert "rank 2: ocrlab.errors.DataError: page.jpg is not an image" in word


def test_an_error_that_all_raise_names_the_rank_that_it_is_about(tmp_path):
    error = RunError("Rank 1 was given another batch")
    error.rank = 1
    for rank in (0, 1):
        member = RankRecord(Ranks(rank, 2, rank, 2, "torchrun"))
        member.begin()
        member.keep(tmp_path)
        member.end("failed", error=error)
    assert launcher.blamed(launcher.read(tmp_path)) == 1


def test_a_process_alone_keeps_no_record_and_a_record_that_cannot_be_written_is_no_error(tmp_path):
    alone = RankRecord(Ranks())
    alone.begin()
    alone.keep(tmp_path)
    alone.end("success")
    assert launcher.read(tmp_path) == [] and not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    member = RankRecord(Ranks(0, 2, 0, 2, "torchrun"))
    member.begin()
    member.keep(tmp_path / "file")
    member.end("failed", error=ValueError())


def test_an_end_is_written_also_when_the_launcher_ends_this_rank_meanwhile(tmp_path, monkeypatch):
    """torchrun sends SIGTERM to all as soon as one is gone: it arrives while a rank writes why it failed itself."""
    member = RankRecord(Ranks(0, 2, 0, 2, "torchrun"))
    member.begin()
    member.keep(tmp_path)
    write, come = launcher.write_json, [True]

    def interrupted(*words, **more):
        if come.pop() if come else False:
            raise SystemExit(143)
        write(*words, **more)

    monkeypatch.setattr(launcher, "write_json", interrupted)
    with pytest.raises(SystemExit):
        member.end("failed", error=RuntimeError("Connection closed by peer"))
    (record,) = launcher.read(tmp_path)
    assert (record["end"]["how"], record["end"]["error"]["message"]) == ("failed", "Connection closed by peer")


def test_exits_are_reported_to_the_watcher(tmp_path, monkeypatch):
    monkeypatch.delenv(watcher_link.FOLDER, raising=False)
    launcher.report_exits([])
    monkeypatch.setenv(watcher_link.FOLDER, str(tmp_path))
    assert launcher.exits(tmp_path) == []
    ended = [{"rank": 1, "pid": 7, "exit_code": -9}]
    launcher.report_exits(ended)
    assert launcher.exits(tmp_path) == ended
    (tmp_path / "ranks" / "exits.json").write_text("{")
    assert launcher.exits(tmp_path) == []


def test_a_download_or_a_pipe_that_breaks_is_a_cause_of_its_own():
    for kind, lost in (
        ("RuntimeError", True),
        ("torch.distributed.DistBackendError", True),
        ("BrokenPipeError", False),
    ):
        assert launcher.secondary({"type": kind, "message": "[Errno 32] Broken pipe"}) is lost
    refused = "Weights cannot be fetched. Given: <urlopen error [Errno 111] Connection refused>."
    assert not launcher.secondary({"type": "ocrlab.errors.WeightsError", "message": refused})


def test_a_record_tells_whether_its_machine_has_a_gpu(tmp_path):
    member = RankRecord(Ranks(1, 2, 1, 2, "torchrun"))
    member.begin(gpu=False)
    member.keep(tmp_path)
    (record,) = launcher.read(tmp_path)
    assert record["gpu"] is False
    assert launcher.title(record) == f"rank 1 of 2 (process {record['pid']})"
    assert launcher.title({**record, "world": 1}).startswith("rank 1 (process"), "of at least two"


@pytest.mark.parametrize(("phase", "sample"), [("forward", "p1, p2"), ("data", ""), ("validation", "page 7")])
def test_where_a_rank_was_is_read_from_its_ring(phase, sample, tmp_path):
    (tmp_path / "flight").mkdir()
    writer = ring_writer.Writer(tmp_path / "flight" / "ring-1-0.bin", slots=2, rank=1)
    writer.begin(ring_format.Step(12, 24, samples=["p1", "p2", "p3"], phase="forward"))
    writer.sample("page 7")
    writer.phase(phase)
    (tmp_path / "flight" / "ring-0-0.bin").write_bytes(b"torn")
    assert last_position.rank_positions(tmp_path) == {os.getpid(): {"step": 12, "phase": phase, "sample": sample}}


def test_a_launched_process_that_failed_is_noted_by_its_launcher(tmp_path: Path) -> None:
    for number in (0, 1):
        member = launcher.RankRecord(launcher.Ranks(number, 2))
        member.begin(watched=False)
        member.keep(tmp_path)
    error = RuntimeError("\n\n-- Process 1 terminated with the following error:\nTraceback ...\nIndexError: Target 9\n")
    launcher.note_launched(tmp_path, error)
    assert all(record["end"] is None for record in launcher.read(tmp_path)), "it says of no process"
    error.error_index = 1  # type: ignore[attr-defined]
    launcher.note_launched(tmp_path, error)
    assert launcher.blamed(launcher.read(tmp_path)) == 1
    failure = launcher.read(tmp_path)[1]["end"]["error"]
    assert (failure["type"], failure["message"]) == ("IndexError", "Target 9")
    error.error_index = 7  # type: ignore[attr-defined]
    launcher.note_launched(tmp_path, error)
