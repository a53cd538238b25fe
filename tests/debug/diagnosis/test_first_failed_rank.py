"""The rank that failed first is named, and judged by its own words."""

from typing import Any

import pytest

from ocrlab.debug.diagnosis import first_failed_rank
from ocrlab.debug.diagnosis.classify import classify
from ocrlab.debug.diagnosis.verdict_files import sentence
from ocrlab.records import Incident
from tests.run_folder.test_launcher import summary

LOST = "[pair.cc:545] Read error [127.0.0.1]:17831: Connection reset by peer"
LOG = """2 ranks: 2 x batch_size 2
[default1]:now: sigkill
ocrlab: Rank 0 was ended by another one: the connection to another rank broke.
E1122 10:24:42 27784 elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 12)
ocrlab: rank 1 (process 12) was killed by SIGKILL; the other ranks were ended
"""


def row(rank: int, **more: Any) -> dict[str, Any]:
    plain = {"rank": rank, "world": 2, "pid": 11 + rank, "pids": [], "end": None, "state": "", "signal": None}
    return {**plain, "step": 3, "phase": "train", "sample": "p4", **more}


def ended(number: int, message: str, when: float, kind: str = "RuntimeError", **more: Any) -> dict[str, Any]:
    error = {"type": kind, "message": message, **more}
    return row(number, end={"how": "failed", "time": when, "error": error}, exit_code=1)


def failed(*rows: dict[str, Any], log: str = LOG, **facts: Any) -> Incident:
    return Incident("failed", 1, None, {"log_tail.txt": log}, "", {"ranks": list(rows), **facts})


KILLED = row(1, exit_code=-9, signal="SIGKILL")


def test_a_killed_rank_is_named_and_the_lost_connection_is_not_the_cause():
    incident = failed(ended(0, LOST, 5.0), KILLED, oom_kills=0)
    rank = first_failed_rank.find_failed_rank(incident)
    assert (rank.rank, rank.how, rank.line) == (1, "killed", 2)
    assert rank.why.startswith(
        "rank 1 of 2 (process 12) was killed by SIGKILL, at step 3 (train, p4); rank 0 then lost"
    )
    verdict = classify(incident)
    assert verdict.causes[0].id == "ext.signal"
    assert verdict.causes[0].evidence[0].text == rank.why
    assert not any(cause.id.startswith("dist.") for cause in verdict.causes)


def test_the_end_of_another_rank_is_no_evidence_about_a_silent_rank():
    """Somebody's `kill -9`: no line is marked, and "killed or ended by itself" are the words of the other rank."""
    log = f"""2 ranks: 2 x batch_size 2
W1123 04:24:19 elastic/multiprocessing/api.py:1028] Sending process 11 closing signal SIGTERM
ocrlab: Rank 0 was ended by another one: the connection to another rank broke. Given: {LOST}. \
A rank that left no word was killed or ended by itself; the launcher says which.
E1123 04:24:25 elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 12)
ocrlab: rank 1 (process 12) was killed by SIGKILL; the other ranks were ended
"""
    verdict = classify(failed(ended(0, LOST, 5.0, "ocrlab.errors.RunError"), KILLED, log=log, oom_kills=0))
    assert verdict.causes[0].id == "ext.signal"
    assert [line.text for line in verdict.causes[0].evidence if line.file == first_failed_rank.LOG] == []
    assert "native.segv" not in [cause.id for cause in verdict.causes]


def test_the_error_that_came_first_is_named_whatever_the_order_of_ranks():
    for rows in ([ended(0, LOST, 5.0), ended(1, "no corner", 4.0)], [ended(0, "no corner", 4.0), ended(1, LOST, 5.0)]):
        rank = first_failed_rank.find_failed_rank(failed(*rows))
        assert "failed first: RuntimeError: no corner" in rank.why
    both = [ended(0, "late", 9.0), ended(1, "early", 4.0)]
    assert first_failed_rank.find_failed_rank(failed(*both)).rank == 1


def test_the_error_of_a_record_is_not_missed_in_a_log_without_its_traceback():
    log = """2 ranks: 2 x batch_size 2
[default1]:ocrlab: ValueError: this page has no corner
[default1]:  OCRLAB_TRACEBACK=1 shows the whole way there.
ocrlab: rank 1 (process 12) ended with exit status 1; the other ranks were ended
"""
    raised = ended(1, "this page has no corner", 4.0, "ValueError", your_code="/p/pages.py:14 load")
    verdict = classify(failed(ended(0, LOST, 5.0), raised, log=log))
    assert verdict.causes == []
    assert "rank 1 of 2 (process 12) failed first: ValueError: this page has no corner" in verdict.missing[0]
    assert verdict.missing[1].endswith("own error, `ValueError: this page has no corner` at /p/pages.py:14 load")
    assert not [thing for thing in verdict.missing if thing.startswith("no error in this log")]


@pytest.mark.parametrize("culprit", [0, 1])
def test_the_traceback_of_the_sentinel_is_that_of_rank_0(culprit):
    """`ocrlab diagnose RUN` reads it: how rank 0 lost the others is not why rank 1 failed."""
    lost = f'Traceback (most recent call last):\n  File "/p/fit.py", line 5, in fit\nRuntimeError: {LOST}\n'
    raised = 'Traceback (most recent call last):\n  File "/p/p.py", line 4, in load\nValueError: no corner\n'
    rows = [ended(culprit, "no corner", 4.0, "ValueError"), ended(1 - culprit, LOST, 5.0)]
    incident = failed(*sorted(rows, key=lambda row: row["rank"]), log="")
    incident.texts["traceback.txt"] = lost if culprit else raised
    verdict = classify(incident)
    assert verdict.causes == []
    assert f"rank {culprit} of 2" in verdict.missing[0]
    assert "own error, `ValueError: no corner`" in verdict.missing[1]


def test_a_cuda_error_is_judged_by_the_lines_of_its_rank():
    log = (
        "[default1]:torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity "
        "of 11.76 GiB of which 1.00 GiB is free.\nRuntimeError: NCCL communicator was aborted on rank 0.\n"
    )
    verdict = classify(
        failed(ended(0, "NCCL communicator was aborted", 5.0), ended(1, "CUDA out of memory", 4.0), log=log)
    )
    assert verdict.causes[0].id.startswith("gpumem.")
    assert verdict.causes[0].evidence[0].text.startswith("rank 1 of 2")
    assert verdict.causes[0].evidence[1].line == 1, "numbers are those of the whole log"


def test_a_rank_that_ends_without_a_word_or_too_early_has_left_the_others():
    for other in (row(1, exit_code=3), row(1, end={"how": "success", "time": 1.0, "error": None})):
        verdict = classify(failed(ended(0, LOST, 5.0), other, log="x\n"))
        assert verdict.causes[0].id == "dist.timeout_desync"
        assert verdict.causes[0].evidence[0].text.startswith("rank 1 of 2 (process 12)")


TORCHRUN = """[rank{0}]: Traceback (most recent call last):
[rank{0}]:   File "/p/train.py", line 7, in <module>
[rank{0}]:     dist.barrier()
[rank{0}]: RuntimeError: [pair.cc:561] Connection closed by peer [127.0.0.1]:54160.
[rank{1}]: Traceback (most recent call last):
[rank{1}]:   File "/p/train.py", line 4, in log_best
[rank{1}]:     return m["val/hmean"]
[rank{1}]: KeyError: 'val/hmean'
E1122 10:24:42 27784 elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 12)
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""


@pytest.mark.parametrize("culprit", [0, 1])
def test_a_rank_without_a_record_is_judged_by_the_lines_that_are_marked_as_its_own(culprit):
    rows = [row(number, exit_code=1) for number in range(2)]
    verdict = classify(failed(*rows, log=TORCHRUN.format(1 - culprit, culprit)))
    assert verdict.causes == []
    assert f"rank {culprit} of 2 (process {11 + culprit}) failed first: KeyError: 'val/hmean'" in verdict.missing[0]
    assert "in log_best (train.py:4)" in verdict.missing[1]


@pytest.mark.parametrize(("state", "what"), [("T", "is stopped"), ("", "is gone, and the others wait for it")])
def test_a_stopped_or_missing_rank_is_named_in_a_hang(state, what):
    rows = [row(0, state="S", pids=[11]), row(1, state=state, pids=[12])]
    incident = Incident("hung", None, None, {"log_tail.txt": ""}, "", {"ranks": rows})
    assert what in first_failed_rank.find_failed_rank(incident).why
    assert first_failed_rank.find_failed_rank(incident).rank == 1


def test_a_killed_rank_has_no_words_and_those_of_the_others_are_not_its_own():
    """What torch marks is the traceback of rank 0, which only lost rank 1: no line speaks of a link or of GPUs."""
    log = f"epoch 0 loss 1.3\n[rank0]: Traceback (most recent call last):\n[rank0]: RuntimeError: {LOST}. This is "
    log += "typically caused by a remote worker hanging or bugs in the application.\n"
    log += "E1122 10:24:42 27784 elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 12)\n"
    log += "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    assert first_failed_rank.own_lines(log, 1).split("\n")[0] == "epoch 0 loss 1.3"
    assert not any(first_failed_rank.own_lines(log, 1).split("\n")[1:])
    verdict = classify(failed(row(0, exit_code=-15, signal="SIGTERM"), KILLED, log=log, oom_kills=0))
    assert verdict.causes[0].id == "ext.signal"
    assert verdict.causes[0].evidence[0].text.startswith("rank 1 of 2 (process 12) was killed by SIGKILL")
    assert not any(cause.id.startswith(("dist.", "hang.")) for cause in verdict.causes)


def test_a_rank_that_is_gone_without_a_word_has_no_collective_as_its_cause():
    """Plain torchrun: only the records of the ranks are there, and what the others say of the one that they lost."""
    rows = [ended(0, LOST, 5.0), row(1, phase="forward")]
    incident = Incident("failed", None, None, {"traceback.txt": f"RuntimeError: {LOST}\n"}, "", {"ranks": rows})
    incident.facts["gpu"] = False
    verdict = classify(incident)
    assert [cause.id for cause in verdict.causes[:3]] == ["host.oom_kill", "native.segv", "ext.signal"]
    assert all(cause.confidence <= 0.5 for cause in verdict.causes)
    assert not any(cause.id.startswith(("dist.", "hw.gpu", "hang.gpu")) for cause in verdict.causes)
    assert "how rank 1 ended" in verdict.missing[0]
    text = sentence(verdict)
    assert text.startswith("Rank 1 of 2 (process 12) died without a word: killed, crashed, or ended by os._exit, at ")
    assert "step 3 (forward, p4); rank 0 then lost the connection to it; possible cause: killed by the kernel" in text


def test_ranks_that_the_launcher_ended_are_no_cause():
    stopped = row(0, end={"how": "stopped", "time": 5.0, "error": None})
    raised = (
        f"RuntimeError: {LOST}\n\nDuring handling of the above exception, another one occurred:\n\nSystemExit: 143\n"
    )
    incident = Incident("failed", None, None, {"traceback.txt": raised}, "", {"ranks": [stopped, row(1)]})
    assert first_failed_rank.find_failed_rank(incident).why.endswith("(train, p4); rank 0 was then stopped")
    assert (
        "traceback.txt"
        not in first_failed_rank.restrict_to_rank(incident, first_failed_rank.find_failed_rank(incident)).texts
    )


def test_a_watchdog_that_aborts_who_waits_is_no_death_of_its_own():
    """NCCL's: it ends the rank whose collective failed by SIGABRT, because another rank has raised."""
    aborted = row(0, exit_code=-6, signal="SIGABRT")
    assert first_failed_rank.find_failed_rank(failed(aborted, ended(1, "no corner", 4.0))).rank == 1
    marked = "[rank1]: Traceback (most recent call last):\n[rank1]: KeyError: 'hmean'\n"
    assert first_failed_rank.find_failed_rank(failed(aborted, row(1, exit_code=1), log=marked)).rank == 1
    assert (
        first_failed_rank.find_failed_rank(failed(aborted, row(1, exit_code=-15, signal="SIGTERM"), log="")).rank == 0
    )


def pasted(*codes: int, before: str) -> Incident:
    return Incident(texts={"train.log": before + summary(*codes)})


def test_a_pasted_log_of_torchrun_names_the_rank_that_was_killed():
    before = f"step 11 loss 0.3\n[rank0]: Traceback (most recent call last):\n[rank0]: RuntimeError: {LOST}\n"
    verdict = classify(pasted(1, -9, before=before))
    assert (verdict.status, verdict.causes[0].id) == ("log", "host.oom_kill")
    assert verdict.causes[0].evidence[0].line == 19
    assert not any(cause.id.startswith("dist.") for cause in verdict.causes)
    assert sentence(verdict).startswith("Rank 1 of 2 (process 41) was killed by SIGKILL; possible cause: killed by")


def test_a_pasted_log_of_torchrun_names_the_rank_that_raised():
    before = f"[rank0]: RuntimeError: {LOST}\n[rank1]: Traceback (most recent call last):\n"
    before += "[rank1]:   File \"/p/train.py\", line 4, in load\n[rank1]: KeyError: 'hmean'\n"
    verdict = classify(pasted(1, 1, before=before))
    assert verdict.causes == []
    expected = (
        "Rank 1 of 2 (process 41) failed first: KeyError: 'hmean'; it is an error of its own, in load (train.py:4)"
    )
    assert sentence(verdict) == f"{expected} (train.log line 4)."


@pytest.mark.parametrize(("codes", "before"), [
    ((-9, 1), "[rank1]: ValueError: no corner\n"),  # killed by whom, and when?
    ((1, 1), "[rank0]: ValueError: no corner\n[rank1]: ValueError: no corner\n"),
    ((1, -15), "ValueError: no corner\n"),  # anybody's
    ((-6, -6), "[rank0]:[E ProcessGroupNCCL.cpp:630] Watchdog caught collective operation timeout\n"),
])  # fmt: skip
def test_an_ambiguous_pasted_log_names_no_rank(codes, before):
    incident = pasted(*codes, before=before)
    assert first_failed_rank.find_failed_rank(incident) is None
    assert not first_failed_rank.rank_sentence(classify(incident))
