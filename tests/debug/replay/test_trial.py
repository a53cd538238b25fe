"""What a child has left, read: whose loading failed and how, and how it ended."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from ocrlab.debug.flight_record import ring_format, ring_writer
from ocrlab.debug.replay import replay_summary, trial, variants
from ocrlab.debug.watch.supervisor import Ended
from ocrlab.run_folder import atomic_files, launcher


def test_a_broken_pipe_is_reported_as_the_end_of_the_worker_behind_it() -> None:
    pipe = {"type": "ConnectionResetError", "message": "[Errno 104] Connection reset by peer"}
    text = "a worker of the DataLoader "
    assert trial._dead_worker(pipe, {"statuses": [-9]}) == f"{text}was killed by SIGKILL"
    assert trial._dead_worker(pipe, {"statuses": [7]}) == f"{text}ended with 7"
    assert trial._dead_worker(pipe, {"statuses": [1, -11]}) == f"{text}was killed by SIGSEGV"
    assert trial._dead_worker(pipe, {"statuses": []}) == ""
    assert trial._dead_worker({**pipe, "type": "KeyError"}, {"statuses": [-9]}) == ""
    unexpected = {"type": "RuntimeError", "message": "DataLoader worker (pid(s) 3) exited unexpectedly"}
    assert trial._dead_worker(unexpected, {"statuses": [-11]}) == f"{text}was killed by SIGSEGV"
    torchs = {**pipe, "type": "EOFError", "message": "DataLoader worker (pid 3) is killed by signal: Killed."}
    assert trial._dead_worker(torchs, {"statuses": [-9]}) == ""


def test_an_exception_of_a_worker_is_reported_as_it_was_there() -> None:
    # torch raises in a handler of signals
    ours = '\n  File "/x/ocrlab/run_folder/atomic_files.py", line 41, in write_bytes'
    inner = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\nOSError: image file is truncated'
    message = f"Caught OSError in DataLoader worker process 1.\nOriginal {inner}"
    error = trial._describe_error({"type": "OSError", "message": message, "traceback": inner + ours}, "data")
    assert error == {"exception": "OSError: image file is truncated", "line": "a.py:3 f", "surfaced": "a.py:3 f"}


CHAIN = """Traceback (most recent call last):
  File "data.py", line 7, in load
OSError: torn

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "train.py", line 3, in run
RuntimeError: aborted
"""


def test_an_exception_that_was_with_a_cause_is_reported_with_the_line_of_the_cause() -> None:
    error = {"type": "RuntimeError", "message": "aborted", "traceback": CHAIN, "your_code": "x.py:1 f"}
    text = trial._describe_error(error, "data")
    assert text["exception"] == "OSError: torn, raised again as RuntimeError: aborted"
    assert (text["line"], text["surfaced"]) == ("data.py:7 load", "train.py:3 run")
    assert trial._describe_error({**error, "traceback": ""}, "data")["line"] is None


def test_a_step_is_called_hung_only_if_it_lasts_longer_than_a_step_may(tmp_path) -> None:
    assert not trial.is_still(tmp_path, 0.0), "it has begun none"
    writer = ring_writer.Writer(tmp_path / "ring.bin", slots=4)
    writer.begin(ring_format.Step(3, 3, time=time.time()))
    assert not trial.is_still(tmp_path, 60.0)
    time.sleep(0.2)
    assert trial.is_still(tmp_path, 0.1)
    writer.close()


@pytest.mark.parametrize(("output", "wanted", "words"), [
    (
        "ProcessExitedException: process 1 terminated with signal SIGSEGV\n",
        {"signal": "SIGSEGV"},
        "killed by SIGSEGV",
    ),
    ("process 1 terminated with exit code 7\n", {"status": 7}, "the process ended itself there, with status 7"),
    ("", {"status": None}, "the process ended there"),
])  # fmt: skip
def test_how_a_started_process_ended_is_not_how_its_program_did(tmp_path, output, wanted, words):
    (tmp_path / "output.txt").write_text(output)
    ended = Ended("killed", None, "SIGKILL", None, None, 137)
    started, first = (trial._Child(SimpleNamespace(process_path=path), tmp_path, ended, None) for path in ([2], []))  # type: ignore[arg-type]
    assert started.end() == wanted
    assert first.end() == {"signal": "SIGKILL"}
    assert replay_summary._what({"kind": "crash", **wanted}) == [words]


@pytest.mark.parametrize(("raised", "recorded", "world", "wanted"), [
    ("ValueError: not enough values", "IndexError: Target 3 is out of bounds.", 2, True),
    ("IndexError: Target 3 is out of bounds.", "IndexError: Target 3 is out of bounds.", 2, False),
    ("ValueError: not enough values", "RuntimeError: Connection closed by peer", 2, False),
    ("ValueError: not enough values", "", 2, False),
    ("ValueError: not enough values", "IndexError: Target 3 is out of bounds.", 1, False),
    ("RunError: Rank 1 of 2 waits for a tensor, and a replay holds one rank only", "", 2, True),
])  # fmt: skip
def test_an_error_that_depends_on_other_ranks_is_not_named_as_the_fault(tmp_path, raised, recorded, world, wanted):
    fault = {"kind": "exception", "exception": raised}
    atomic_files.write_json(tmp_path / "trace.json", {"schema": 1, "fault": fault})
    flight = SimpleNamespace(steps=[], rank=1)
    subject: Any = SimpleNamespace(world=world, on_gpu=True, from_start=False, error=(recorded, ""), flight=flight)
    outcome = trial.TrialResult(variants.AS_IT_WAS)
    trial._Child(subject, tmp_path, Ended("failure", 1, None, None, None, 1), SimpleNamespace()).fill(outcome)  # type: ignore[arg-type]
    assert (outcome.fault is None) is wanted and bool(outcome.error_text) is wanted
    assert not wanted or launcher.HOLDS in outcome.error_text


@pytest.mark.parametrize(("world", "awaits", "error", "last", "wanted"), [
    (2, "train.py:3 f", "", 4, "rank 1 waits at step 4 in `train.py:3 f`, for another process, and a replay holds"),
    (2, "", "ValueError: a torn page", 4, "rank 1 waits at step 4, where it went on in the run, maybe for another"),
    (2, "", "", 5, "rank 1 waits at step 4, where it went on in the run"),
    (2, "", "", 4, ""),
    (2, "", "KeyboardInterrupt: ", 4, ""),
    (1, "train.py:3 f", "ValueError: a torn page", 5, ""),
])  # fmt: skip
def test_a_rank_that_may_wait_for_another_rank_is_not_blamed_for_it(tmp_path, world, awaits, error, last, wanted):
    record = SimpleNamespace(rank=1, steps=[SimpleNamespace(number=last)])
    subject: Any = SimpleNamespace(world=world, error=(error, ""), flight=record)
    guard: Any = SimpleNamespace(awaits=awaits, frame=awaits)
    child = trial._Child(subject, tmp_path, Ended("hung", None, None, None, None, 124), guard)
    text = child.depends_on_ranks({"kind": "hang", "step": 4})
    assert text.startswith(wanted) if wanted else not text


def test_checkpoints_of_a_replay_do_not_fill_the_disk(tmp_path) -> None:
    users, folder = tmp_path / "users.pt", tmp_path / "aside" / "deep"
    folder.mkdir(parents=True)
    for path in (users, folder / "last.pt"):
        path.write_bytes(bytes(trial.LARGE + 1))
    (folder / "log.csv").write_text("0,1")
    (folder / "renamed.pt").symlink_to(users)
    trial._remove_checkpoints(tmp_path / "aside")
    assert users.exists() and sorted(path.name for path in folder.iterdir()) == ["log.csv", "renamed.pt"]
