"""From what is known to a verdict on disk, in a run folder, and a few words."""

import json
import subprocess
import sys
import threading
import time

import pytest

from ocrlab import run_folder
from ocrlab.debug.diagnosis import catalogue
from ocrlab.debug.flight_record import ring_format, ring_writer
from ocrlab.debug.watch import incident, incident_evidence, incident_folder
from ocrlab.debug.watch.child_process import Child
from ocrlab.debug.watch.hang_detector import HangDetector
from ocrlab.debug.watch.io_loop import Session
from ocrlab.debug.watch.memory_tracker import OomKillCounters
from ocrlab.errors import ConfigError, RunError
from ocrlab.records import Cause, Evidence, Incident, Verdict


@pytest.fixture
def child():
    child = Child(pid=2**22 + 1, guard=None, control=None, started=time.monotonic() - 5)
    child.code, child.ended = -9, time.monotonic() - 1
    child.exits = [{"pid": 2**22 + 2, "role": "other", "exit_code": None, "signal": "SIGBUS"}]
    return child


def gather(child, quiet, status, log=""):
    session = Session(quiet)
    session.child = child
    session.ring.add(1, log.encode())
    return incident_evidence.gather(session, OomKillCounters(), quiet.heartbeats, status, None)


def test_the_facts_of_a_death(child, tmp_path):
    quiet = HangDetector(300, tmp_path, roles={2**22 + 2: "worker"})
    case = gather(child, quiet, "killed", "the log\n")
    assert (case.status, case.exit_code, case.signal) == ("killed", None, "SIGKILL")
    assert case.texts["log_tail.txt"] == "the log\n"
    assert case.facts["exits"][0]["role"] == "worker"
    assert case.facts["pids"] == [2**22 + 1, 2**22 + 2]
    assert 3.9 <= case.facts["run_seconds"] <= 4.2
    assert "ended_by" not in case.facts and "heartbeat" not in case.facts
    json.dumps(case.facts)


def test_a_verdict_is_written_even_where_its_words_fail(tmp_path, monkeypatch):
    from ocrlab.debug.diagnosis import verdict_files as words

    def broken(*_):
        raise KeyError("no such title")

    monkeypatch.setattr(words, "write_verdict", broken)
    incident.write(tmp_path, Verdict(status="failed", exit_code=3), Incident("failed", 3, texts={"log_tail.txt": "x"}))
    assert json.loads((tmp_path / "verdict.json").read_text())["exit_code"] == 3
    assert (tmp_path / "log_tail.txt").read_text() == "x"
    assert "unknown" in (tmp_path / "verdict.md").read_text()


def test_a_summary_says_what_why_where_and_what_next(tmp_path):
    best = Cause("host.oom_kill", 0.93, [Evidence("kernel_log.txt", 12, "oom-kill: ...")], "measure it", "less memory")
    (tmp_path / "verdict.md").touch()
    summary = incident.summary("train.py was killed", Verdict(causes=[best]), tmp_path)
    for text in ("train.py was killed", "host.oom_kill, 93 % sure", "kernel_log.txt:12", "verdict.md", "less memory"):
        assert text in summary
    unsure = Verdict(causes=[Cause("native.segv", 0.5, [], "measure it", "less memory")])
    assert "measure it" in incident.summary("x", unsure, tmp_path)
    (tmp_path / "flight").mkdir()
    (tmp_path / "flight" / "ring-0-0.bin").touch()
    assert f"  replay   ocrlab replay {tmp_path}" in incident.summary("x", unsure, tmp_path / "incident")
    assert "ocrlab replay" not in summary and "  record " not in summary
    writer = ring_writer.Writer(tmp_path / "flight" / "ring-0-0.bin", slots=4)
    writer.begin(ring_format.Step(22, 22, phase="forward", samples=["page_3.png"]))
    writer.close()
    summary = incident.summary("x", unsure, tmp_path / "incident")
    assert "  record   ends at step 22, forward; sample page_3.png\n" in summary
    assert "unknown (missing: kernel log)" in incident.summary("x", Verdict(missing=["kernel log"]), tmp_path)


def test_the_rank_to_look_at_has_a_line_of_its_own(tmp_path):
    rank = "rank 1 of 2 (process 12) was killed by SIGKILL"
    lines = [Evidence("ranks.txt", 2, rank), Evidence("facts", None, "the process died of SIGKILL")]
    text = incident.summary("torchrun ended", Verdict(causes=[Cause("ext.signal", 0.45, lines)]), tmp_path)
    assert text.splitlines()[:2] == ["ocrlab watch: torchrun ended", f"  rank     {rank}"]
    assert "  evidence facts: the process died of SIGKILL" in text
    own = "nothing from outside: this is the program's own error, `KeyError: 'x'`"
    text = incident.summary("torchrun ended", Verdict(missing=[rank, own]), tmp_path)
    assert text.splitlines()[1:] == [f"  rank     {rank}", "  cause    the program's own error, `KeyError: 'x'`"]


def test_stacks_are_taken_after_the_look_that_goes_on(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        child, quiet, ended = Child(process.pid, None, None), HangDetector(60.0, tmp_path), []
        quiet.sampler = threading.Thread(target=lambda: (time.sleep(0.4), ended.append(True)))
        quiet.sampler.start()
        try:
            case = gather(child, quiet, "suspected")
        finally:
            process.kill()
    assert ended and "stacks.txt" in case.texts


@pytest.mark.parametrize(("command", "name"), [
    (["python", "-u", "src/train.py", "--lr", "1"], "train"),
    (["python3.11", "-m", "pkg.train"], "train"),
    (["python", "-c", "import x"], "python"),
    (["torchrun", "--nproc-per-node=2", "fine tune.py"], "fine tune"),
    (["torchrun", "--nproc-per-node", "2", "my/train.py", "--lr", "1"], "train"),
    (["torchrun", "--nproc-per-node", "2", "-m", "pkg.train"], "train"),
    (["/usr/bin/sleep", "5"], "sleep"),
    (["bash", "run.sh"], "sh"),
])  # fmt: skip
def test_the_name_of_a_command(command, name):
    assert incident_folder.slug(command) == name


def test_a_link_that_leads_nowhere_is_named_as_such(tmp_path):
    (tmp_path / "dead").symlink_to(tmp_path / "gone")
    with pytest.raises(RunError, match="a link that leads nowhere"):
        incident_folder.open_folder(tmp_path / "dead", ["true"])


def test_a_program_that_died_without_a_word_gets_its_sentinel(tmp_path):
    folder = run_folder.create(tmp_path, "x")
    (folder.flight / "process.json").write_text(json.dumps({"schema": 1, "pid": 2**22 + 1, "started": 1}))
    incident_folder.failed(folder.path, {"type": "Killed", "message": "SIGKILL", "pid": 2**22 + 1}, "host.oom_kill")
    record = run_folder.status(folder.path)
    assert (record.status, record.verdict, record.error["type"]) == ("failure", "host.oom_kill", "Killed")
    assert record.started == folder.started


def test_what_the_program_wrote_itself_stays_and_gets_the_cause(tmp_path):
    folder = run_folder.create(tmp_path, "x")
    folder.fail(ValueError("its own words"))
    incident_folder.failed(folder.path, {"type": "Failed", "message": "exit status 1"}, "user.shape")
    record = run_folder.status(folder.path)
    assert (record.error["message"], record.verdict) == ("its own words", "user.shape")


@pytest.mark.parametrize("name", [".SUCCESS", ".FAILURE", ".RUNNING"])
@pytest.mark.parametrize("text", ["", "done", "[1]", '{"schema": 1, "mine": true}'])
def test_a_sentinel_of_somebody_else_is_never_replaced(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match="was not written by ocrlab"):
        incident_folder.open_folder(tmp_path, ["x"])
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, text)]


def test_a_folder_incident_of_the_user_stays(tmp_path):
    (tmp_path / "incident").mkdir()
    (tmp_path / "incident" / "notes.txt").write_text("mine")
    incident_folder.open_folder(tmp_path, ["x"])
    assert (tmp_path / "incident" / "notes.txt").read_text() == "mine"


ENTRIES = catalogue.load().entries


def fitted(experiment: str, command: list[str], run: str = "") -> str:
    verdict = Verdict(causes=[Cause("x", 0.5, [], experiment, "")])
    return incident.fit_experiments(verdict, command, run).causes[0].experiment


def test_the_command_and_the_run_stand_in_the_experiment() -> None:
    experiment = fitted(ENTRIES["kernel.illegal_address"].experiment, ["python", "my train.py"], "runs/a b")
    assert experiment.startswith(
        "ocrlab replay 'runs/a b' ; ocrlab watch --debug-cuda -- python 'my train.py', three times"
    )
    assert "the first: it names module" in experiment
    for command in ([], ["python", "-c", "a\nb"], ["python", *["--page=x.jpg"] * 20]):
        assert fitted("PYTHONFAULTHANDLER=1 COMMAND", command) == "PYTHONFAULTHANDLER=1 COMMAND", "it makes no line"
