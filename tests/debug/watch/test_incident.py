"""From what is known to a verdict on disk and a few words."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import pytest

from ocrlab.debug.flight_record import ring_format, ring_writer
from ocrlab.debug.watch import incident, incident_evidence
from ocrlab.debug.watch.child_process import Child
from ocrlab.debug.watch.hang_detector import HangDetector
from ocrlab.debug.watch.io_loop import Session
from ocrlab.debug.watch.memory_tracker import OomKillCounters
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


def test_a_counter_counts_only_where_somebody_was_killed(child, tmp_path, monkeypatch):
    monkeypatch.setattr(OomKillCounters, "count", lambda self: 2)
    quiet = HangDetector(300, tmp_path)
    assert gather(child, quiet, "killed").facts["oom_kills"] == 2
    child.code, child.exits = 1, []
    assert "oom_kills" not in gather(child, quiet, "failed").facts
    text = "DataLoader worker (pid 7) is killed by signal: Killed."
    assert gather(child, quiet, "failed", text).facts["oom_kills"] == 2


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


def test_the_words_name_the_place_in_the_program(tmp_path):
    line = Evidence("log_tail.txt", 4, '  File "/data/x/train.py", line 61 in decode')
    text = incident.summary("x", Verdict(causes=[Cause("native.segv", 0.86, [line])]), tmp_path)
    assert "decode (train.py:61)" in text


def test_the_rank_to_look_at_has_a_line_of_its_own(tmp_path):
    rank = "rank 1 of 2 (process 12) was killed by SIGKILL"
    lines = [Evidence("ranks.txt", 2, rank), Evidence("facts", None, "the process died of SIGKILL")]
    text = incident.summary("torchrun ended", Verdict(causes=[Cause("ext.signal", 0.45, lines)]), tmp_path)
    assert text.splitlines()[:2] == ["ocrlab watch: torchrun ended", f"  rank     {rank}"]
    assert "  evidence facts: the process died of SIGKILL" in text
    own = "nothing from outside: this is the program's own error, `KeyError: 'x'`"
    text = incident.summary("torchrun ended", Verdict(missing=[rank, own]), tmp_path)
    assert text.splitlines()[1:] == [f"  rank     {rank}", "  cause    the program's own error, `KeyError: 'x'`"]


def test_a_sentence_of_ocrlab_that_stands_above_is_not_repeated(tmp_path):
    sentence = "No page of split 'train' can be used. Needed: one good page."
    own = f"nothing from outside: this is the program's own error, `{sentence}` (log_tail.txt line 2)"
    verdict = Verdict(missing=[own])
    assert sentence in incident.summary("python ended", verdict, tmp_path), "where nobody can know what stands above"
    (tmp_path / "log_tail.txt").write_text(f"making pages\nocrlab: {sentence}\n")
    text = incident.summary("python ended", verdict, tmp_path)
    assert "  cause    the program's own error, as it says above (log_tail.txt line 2)" in text and sentence not in text
    (tmp_path / "log_tail.txt").write_text(f"ocrlab: {sentence}\nmore\n")
    assert sentence in incident.summary("python ended", verdict, tmp_path)


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
