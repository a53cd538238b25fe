"""Ranks: which one a process is, what they say of their ends, torchrun's summary, and heartbeats."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ocrlab.debug.flight_record import last_position, ring_format, ring_writer
from ocrlab.errors import ConfigError, DataError
from ocrlab.run_folder import heartbeat, launcher, watcher_link
from ocrlab.run_folder.launcher import RankRecord, Ranks, detect_ranks

TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
SRUN = {"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "1", "SLURM_NNODES": "3"}


def test_the_rank_of_torchrun_and_srun():
    assert detect_ranks(TORCHRUN) == Ranks(3, 4, 1, 2, "torchrun")
    assert detect_ranks(SRUN) == detect_ranks({**SRUN, "SLURM_TASKS_PER_NODE": "2(x3)"}) == Ranks(5, 6, 1, 2, "srun")
    assert (detect_ranks(TORCHRUN).nodes, detect_ranks(SRUN).nodes, detect_ranks(SRUN).first) == (2, 3, False)
    assert detect_ranks({**TORCHRUN, **SRUN}).launcher == "torchrun", "srun torchrun ...: the inner one counts"


@pytest.mark.parametrize("environment", [
    {},
    {"RANK": "0", "WORLD_SIZE": "2"},  # of somebody else's program around us
    {**SRUN, "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},
    {**SRUN, "SLURM_JOB_NAME": "interactive"},
    {**TORCHRUN, "OCRLAB_REPLAY": "job.json"},
])  # fmt: skip
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


BLOCK = """[{number}]:
  time      : 2026-01-02_03:04:05
  host      : localhost
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: {pid})
  error_file: <N/A>
"""


def summary(*codes: int) -> str:
    blocks = [BLOCK.format(number=n, rank=n, code=code, pid=40 + n) for n, code in enumerate(codes)]
    head, rule = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n", "-" * 60 + "\n"
    return f"{head}{rule}train.py FAILED\n{rule}Failures:\n{''.join(blocks)}{rule}"


def test_each_rank_of_a_summary_is_read_with_its_line():
    log = summary(1, -9)
    first, second = launcher.torchrun_failures(log)
    assert first == {"rank": 0, "pid": 40, "exit_code": 1, "line": 10}
    assert (second["rank"], second["exit_code"], second["line"]) == (1, -9, 16)
    assert log.split("\n")[second["line"] - 1].strip() == "exitcode  : -9 (pid: 41)"
    marked = "".join(f"[default0]:{line}\n" for line in log.splitlines())
    assert launcher.torchrun_failures(marked) == [first, second], "of an agent below another one"
    assert launcher.torchrun_failures("rank 1 is ready\n") == []


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
