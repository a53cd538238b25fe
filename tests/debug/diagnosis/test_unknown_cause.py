"""What is left to do, and what is said where no cause is known."""

import pytest

from ocrlab.debug.diagnosis import catalogue
from ocrlab.debug.diagnosis.classify import classify
from ocrlab.debug.diagnosis.next_steps import own_error
from ocrlab.debug.diagnosis.verdict_files import markdown, sentence
from ocrlab.records import Incident, Verdict

TRACED = 'Traceback (most recent call last):\n  File "/p/fit.py", line 3, in best\n    f()\n'
SHADOW = (
    'Traceback (most recent call last):\n  File "/p/train.py", line 2, in <module>\n    import torch\n'
    '  File "/v/lib/python3.11/site-packages/torch/__init__.py", line 69, in <module>\n    import tempfile\n'
    '  File "/v/lib/python3.11/tempfile.py", line 45, in <module>\n    from random import Random\n'
    '  File "/p/random.py", line 2, in <module>\n    print(torch.rand(2))\n'
    "AttributeError: partially initialized module 'torch' has no attribute 'rand' (most likely due to a circular"
    " import)\n"
)


def judge(log: str, code: int | None = 1) -> Verdict:
    verdict = classify(Incident("failed", code, texts={"log_tail.txt": log}))
    assert verdict.causes == []
    return verdict


def test_an_error_of_the_program_itself_is_in_the_first_sentence_only():
    verdict = judge(f"{TRACED}KeyError: 'val'\n")
    assert own_error(verdict) == "`KeyError: 'val'` in best (fit.py:3) (log_tail.txt line 4)"
    assert sentence(verdict).endswith(f"with exit status 1; it is an error of its own: {own_error(verdict)}.")
    assert "make it certain" not in markdown(verdict)


def test_an_error_that_something_outside_may_have_caused_is_not_called_the_programs_own():
    verdict = judge(f"{TRACED}acme.PoolProcessError: a child has ended abruptly\n")
    assert own_error(verdict) == ""
    assert verdict.missing[0].startswith("what caused its error, `acme.PoolProcessError: a child")


@pytest.mark.parametrize("line", [
    "2026-11-22 20:35:59 ERROR trainer: Training failed: 'polygons'",
    "ERROR: no pages found in /data/x",
    "[2026-11-22][trainer][CRITICAL] - giving up",
])  # fmt: skip
def test_last_words_without_a_traceback_are_quoted(line):
    verdict = judge(f"epoch 1 loss 0.5\n{line}\n")
    assert verdict.missing[0].startswith(f"its traceback: the program says only `{line}` (log_tail.txt line 2)")


@pytest.mark.parametrize("output", [
    "usage: fit.py [-h]\nfit.py: error: argument --lr: invalid float value: '1x'\n",
    "Usage: fit.py [OPTIONS]\nTry 'fit.py --help' for help.\n\nError: Missing option '--lr'.\n",
    "ERROR: The function received no value for the required argument: lr\nUsage: fit.py LR\n",
], ids=["argparse", "click", "fire"])  # fmt: skip
def test_wrong_words_on_the_command_line_are_the_programs_own_error(output):
    verdict = judge(output, 2)
    (line,) = [line for line in output.splitlines() if "rror: " in line or "ERROR" in line]
    number = output.splitlines().index(line) + 1
    assert own_error(verdict) == f"`{line}` (log_tail.txt line {number}), of the words that it was called with"


def test_the_message_of_our_own_commands_is_the_error():
    message = "pages is not a data set. Given: 3 files. Needed: images and annotations. Choose another folder."
    assert own_error(judge(f"training starts\nocrlab: {message}\n", 2)) == f"`{message}` (log_tail.txt line 2)"


def test_a_program_that_ended_itself_in_silence():
    missing = judge("step 1\nstep 2\n", 3).missing[0]
    assert missing.startswith("no error in this log; it ended itself with status 3")
    assert missing.endswith("after `step 2`")


def test_a_file_that_hides_a_module_is_named():
    verdict = classify(Incident("failed", 1, texts={"log_tail.txt": SHADOW}))
    assert "random.py hides the standard library's `random`" in (verdict.causes[0].explanation or "")


@pytest.mark.parametrize("message", [
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with exit code 1",
    "acme.UnexpectedStatusException: Failed. Reason: AlgorithmError: ExecuteUserScriptError:",
])  # fmt: skip
def test_a_launchers_error_is_not_the_programs_own(message):
    verdict = judge(f"{TRACED}{message}\n  exitcode  : 1 (pid: 78)\n")
    assert own_error(verdict) == ""
    assert verdict.missing[0].startswith(f"the traceback of the program itself: `{message}` (log_tail.txt line 4) only")


FACTS = {"main_pid": 4100, "pids": [4100], "exits": [], "kernel_log_read": True, "oom_kills": 0}


def test_a_bare_kill_that_was_watched_asks_who_sent_it() -> None:
    verdict = classify(Incident("killed", None, "SIGKILL", {"log_tail.txt": "epoch 1\n"}, facts=FACTS))
    best = verdict.causes[0]
    assert best.id == "ext.signal"
    assert "ocrlab watch" not in best.experiment
    assert len(best.experiment.partition("    ")[0]) < 80, "one step that can be read"
    assert "--explain ext.signal" in best.experiment
    assert "signal_generate" in catalogue.explain("ext.signal")
    assert not any("counter" in thing for thing in verdict.missing)
    assert any("who sent" in thing for thing in verdict.missing)


@pytest.mark.parametrize("status", ["log", "failed"])
def test_a_bare_log_asks_for_a_watched_run(status: str) -> None:
    log = "RuntimeError: DataLoader worker (pid 8554) is killed by signal: Killed."
    verdict = classify(Incident(status, texts={"log_tail.txt": log}))
    assert "ocrlab watch" in verdict.causes[0].experiment
    assert any("counter" in thing for thing in verdict.missing)
