"""torchrun under watch: a rank that dies, hangs or diverges is named, and no process remains."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from ocrlab import run_folder
from ocrlab.debug.diagnosis import load_input
from ocrlab.debug.diagnosis.classify import classify
from ocrlab.debug.diagnosis.verdict_files import sentence
from ocrlab.debug.watch.lifecycle import Ended
from ocrlab.debug.watch.supervisor import Options, watch
from ocrlab.errors import DataError
from ocrlab.records import Incident
from ocrlab.run_folder import launcher, watcher_link
from ocrlab.training.distributed import launch
from tests.training.forked_ranks import TINY, draw

PROGRAM = Path(__file__).parents[1].joinpath("faulty_ranks.py")
SILENCE = 25.0  # seconds; more than what importing and compiling take between two signs of life


def failure(local: int, code: int) -> ProcessFailure:
    return ProcessFailure(local_rank=local, pid=40 + local, exitcode=code, error_file="")


@pytest.mark.parametrize(("failures", "status", "message"), [
    ({0: failure(0, 1), 1: failure(1, -9)}, 137, "rank 1 (process 41) was killed by SIGKILL"),
    ({1: failure(1, 2)}, 2, "rank 1 (process 41) ended with exit status 2"),
    ({0: failure(0, 143), 1: failure(1, 143)}, 143, "rank 0"),
])  # fmt: skip
def test_the_exit_status_is_that_of_the_rank(failures, status, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(watcher_link.FOLDER, str(tmp_path))
    assert launch.report_failures(failures) == status
    assert message in capsys.readouterr().err
    assert {record["rank"]: record["exit_code"] for record in launcher.exits(tmp_path)} == {
        rank: record.exitcode for rank, record in failures.items()
    }


@pytest.mark.parametrize("count", [2, 12])
def test_every_rank_but_the_first_marks_its_lines(count, tmp_path):
    config, _, args = launch.configure_launch(count, str(tmp_path), ["crop=64"])
    logs = config.logs_specs.reify({rank: {"LOCAL_RANK": str(rank)} for rank in range(count)})
    assert set(logs.tee_stdouts) == set(logs.tee_stderrs) == set(range(1, count))
    assert (config.nproc_per_node, args[-4:]) == (count, ["-m", "ocrlab", "train", "crop=64"])


def test_of_ranks_that_raise_the_same_error_the_rank_that_it_is_about_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(watcher_link.FOLDER, str(tmp_path))
    error = DataError("Rank 1 got a batch of another shape")
    error.rank = 1
    for rank in (0, 1):
        member = launcher.RankRecord(launcher.Ranks(rank, 2, rank, 2, "torchrun"))
        member.begin()
        member.end("failed", error=error)
    assert launch.report_failures({0: failure(0, 1), 1: failure(1, 1)}) == 1
    assert "rank 1 (process 41) ended with exit status 1" in capsys.readouterr().err


def words(tmp_path: Path, *more: str) -> list[str]:
    data = draw(tmp_path / "pages")
    return [*TINY, f"data={data}", f"runs={tmp_path / 'runs'}", "trainer.max_steps=6", *more]


def left(mark: str) -> list[int]:
    """Return the processes that still have this mark in their environment."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                pids.append(int(path.parent.name))
        except OSError:
            continue
    return pids


def faulty(tmp_path: Path, fault: str, *more: str, rank: int = 1) -> tuple[Ended, str, float]:
    """Train with two ranks of which one goes wrong; return how it ended, the words, and the seconds since it did."""
    mark = f"OCRLAB_TEST_MARK={tmp_path}"
    environment = {**os.environ, "OCRLAB_TEST_MARK": str(tmp_path), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[3])
    stdout, when = bytearray(), 0.0

    def output(_stream: int, data: bytes) -> None:
        nonlocal when
        stdout.extend(data)
        if not when and b"now: " in stdout:
            when = time.monotonic()

    command = [sys.executable, str(PROGRAM), fault, str(rank), "2", str(tmp_path / "logs"), *words(tmp_path, *more)]
    ended = watch(command, Options(own_folder=True, silence=SILENCE), output=output, env=environment)
    assert left(mark) == []
    return ended, stdout.decode(errors="replace"), time.monotonic() - when


DIES = {
    "sigkill": ("was killed by SIGKILL", ("ext.signal", "host.oom_kill")),
    "sigsegv": ("was killed by SIGSEGV", None),
    "exception": ("failed first: ValueError: this page has no corner", None),
    "bare": ("failed first: AssertionError", None),
    "memory": ("failed first: MemoryError", None),
    "exit": ("ended with exit status 3", ("dist.timeout_desync",)),
    "shape": ("Rank 1 got a batch of another shape", None),
}
HANGS = {"hang": "rank 1 of 2", "sigstop": "rank 1 of 2 (process", "barrier": "rank "}


@pytest.mark.slow
@pytest.mark.parametrize("fault", DIES)
def test_a_rank_that_dies_is_named_and_the_others_end(fault, tmp_path):
    ended, output, seconds = faulty(tmp_path, fault)
    assert ended.verdict is not None and ended.folder is not None
    why, causes = DIES[fault]
    first = ended.verdict.causes[0].evidence[0].text if ended.verdict.causes else ended.verdict.missing[0]
    assert why in first, (first, output)
    assert "rank 1 of 2" in first
    assert sentence(ended.verdict).startswith("Rank 1 of 2 (process ")
    if causes:
        assert ended.verdict.causes[0].id in causes
    assert seconds < 30
    assert run_folder.status(ended.folder).status == "failure"
    assert json.loads((ended.folder / "incident" / "verdict.json").read_text())["schema"] == 1
    assert "rank 1 of 2" in (ended.folder / "incident" / "ranks.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("fault", HANGS)
def test_a_rank_that_hangs_is_named_and_all_are_ended(fault, tmp_path):
    ended, output, seconds = faulty(tmp_path, fault)
    assert ended.verdict is not None
    first = ended.verdict.causes[0].evidence[0].text if ended.verdict.causes else ended.verdict.missing[0]
    assert HANGS[fault] in first, (first, output)
    assert "rank " in sentence(ended.verdict).partition(";")[0].lower()
    assert (ended.exit_status == 124) == (fault != "barrier" or ended.status == "hung")
    assert seconds < SILENCE + 30


@pytest.mark.slow
def test_without_a_watcher_the_records_name_the_rank_and_the_launchers_log_how_it_died(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
    for name in (watcher_link.FOLDER, "OCRLAB_HEARTBEAT"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(PROGRAM)]
    command += ["sigkill", "1", *words(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1
    (run,) = (tmp_path / "runs").iterdir()
    alone = classify(load_input.read_run_folder(run))
    assert sentence(alone).startswith("Rank 1 of 2 (process ") and "died without a word" in sentence(alone)
    log = classify(Incident(texts={"train.log": done.stdout + done.stderr}))
    assert sentence(log).startswith("Rank 1 of 2 (process ") and "was killed by SIGKILL" in sentence(log)
    for verdict in (alone, log):
        assert {"host.oom_kill", "ext.signal"} <= {cause.id for cause in verdict.causes}
        assert not any(cause.id.startswith(("dist.", "hw.", "hang.")) for cause in verdict.causes)


@pytest.mark.slow
def test_two_agents_of_torchrun_are_two_machines(tmp_path):
    """Two nodes with a rendezvous at localhost, a rank each; the run folder is one."""
    shared = words(tmp_path)
    own = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-id", "x"]
    own += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:29517", "--local-addr", "127.0.0.1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
    agents = [subprocess.Popen([*own, "-m", "ocrlab", "train", *shared], env=environment) for _ in range(2)]
    assert [agent.wait(250) for agent in agents] == [0, 0]
    ((folder, record),) = run_folder.list_runs(tmp_path / "runs")
    assert record.status == "success"
    assert json.loads((folder / "environment.json").read_text())["ranks"]["on_node"] == 1
    assert len(launcher.read(folder / "flight")) == 2


@pytest.mark.slow
def test_sigterm_to_the_command_stops_every_rank_at_a_single_step(tmp_path):
    """As a scheduler preempts: the watcher passes it on to torchrun, and torchrun to the ranks."""
    command = [sys.executable, "-m", "ocrlab", "train", "--nproc", "2", *words(tmp_path, "trainer.max_steps=4000")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
    for name in (watcher_link.FOLDER, "OCRLAB_HEARTBEAT"):
        environment.pop(name, None)
    program = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 200
    while not list((tmp_path / "runs").glob("*/metrics.csv")):
        assert time.monotonic() < end and program.poll() is None
        time.sleep(0.5)
    program.send_signal(signal.SIGTERM)
    _, stderr = program.communicate(timeout=60)
    assert program.returncode == 143, stderr
    ((folder, record),) = run_folder.list_runs(tmp_path / "runs")
    assert record.status == "failure"
    ends = [rank_record["end"] for rank_record in launcher.read(folder / "flight")]
    assert [end["how"] for end in ends] == ["stopped", "stopped"]
    assert (folder / "checkpoints" / "last.ckpt").is_file()
