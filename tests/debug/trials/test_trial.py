"""How a program failed, in words that two failures of one cause share; and a command that is run again."""

import sys
from pathlib import Path

import pytest

from ocrlab.debug.trials import trial
from ocrlab.debug.trials.trial import rerun_command
from ocrlab.debug.watch.supervisor import Options, watch
from ocrlab.records import Cause, Evidence, Incident, Verdict


def ended(log: str, verdict: Verdict, **facts: object) -> str:
    return trial.fingerprint(verdict, Incident(verdict.status, texts={"log_tail.txt": log}, facts=dict(facts)))[0]


def raised(text: str) -> str:
    log = f'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    step()\n{text}\n'
    return ended(log, Verdict(status="failed", exit_code=1))


def test_an_exception_is_the_same_with_other_numbers_and_paths() -> None:
    first = raised("ValueError: expected input[4, 3, 512, 512] at 0x7f01, file '/a/b/x.png'")
    second = raised("ValueError: expected input[1, 3, 256, 256] at 0x8a00, file '/c/y.png'")
    assert first == second
    assert raised("ValueError: something else") != first
    assert raised("TypeError: expected input[4, 3, 512, 512] at 0x7f01, file '/a/b/x.png'") != first


def test_a_cause_goes_before_the_text_and_a_signal_where_nothing_else_speaks() -> None:
    cause = Cause("native.segv", 0.8, [Evidence("facts", None, "x")])
    verdict = Verdict(status="killed", signal="SIGSEGV", causes=[cause])
    assert ended("", verdict) == "native.segv"
    assert ended("", Verdict(status="killed", signal="SIGKILL")) == "SIGKILL"
    assert ended("", Verdict(status="failed", exit_code=7)) == "exit status 7"


def test_a_program_that_ends_itself_is_reported_with_its_last_words() -> None:
    incident = Incident("failed", texts={"log_tail.txt": "loading\nno device 0:cpu\n\n"})
    text = trial.fingerprint(Verdict(status="failed", exit_code=1), incident)
    assert text == ("exit status 1", "exit status 1 after `no device 0:cpu`")


REPLAY = Evidence("replay.json", None, f"first fault at step 1, forward, {'input (2, 64), ' * 8}; goes away with less.")


@pytest.mark.parametrize("lines, line", [
    ([REPLAY, Evidence("log_tail.txt", 9, "FloatingPointError:  loss is nan")], "FloatingPointError: loss is nan"),
    ([REPLAY, Evidence("log_tail.txt", 9, "loss nan")], "loss nan"),
    ([Evidence("facts", None, "x"), Evidence("traceback.txt", 1, "ValueError: y")], "ValueError: y"),
    ([Evidence("log_tail.txt", 1, "e" * 200)], "e" * 119 + "…"),
    ([], ""),
])  # fmt: skip
def test_a_failure_is_described_by_the_line_of_its_exception(lines: list[Evidence], line: str) -> None:
    assert trial.evidence_line(Cause("num.nonfinite", 0.9, lines)) == line


def test_a_hang_is_a_failure_and_being_slow_is_none() -> None:
    hung = Verdict(status="hung", causes=[Cause("hang.lock", 0.8)])
    assert ended("", hung, ended_by="limit", silent_seconds=30.0) == trial.HANG
    assert ended("", hung, ended_by="limit", silent_seconds=0.5) == trial.SLOW


@pytest.mark.parametrize(
    "code, what", [("print('well')", ""), ("import sys; sys.exit(5)", "exit status 5"), ("{}['a']", "KeyError: 'a'")]
)
def test_a_run_is_watched_and_cleaned_up(tmp_path: Path, code: str, what: str) -> None:
    place = tmp_path / "one"

    def start(where: Path) -> tuple[list[str], dict[str, str]]:
        (where / "weights.pt").write_bytes(b"large")
        return [sys.executable, "-S", "-c", code], {}

    done = trial.run_trial(start, place, timeout=30)
    assert done.fingerprint == what
    left = {path.name for path in place.iterdir()}
    assert left == ({"output.txt", "run"} if what else {"output.txt"})


def failed(tmp_path: Path, source: str) -> tuple[Path, list[str]]:
    (tmp_path / "mine.py").write_text(source)
    command = [sys.executable, str(tmp_path / "mine.py")]
    watch(command, Options(tmp_path / "run"), output=lambda _stream, _data: None)
    return tmp_path / "run", command


def test_the_same_failure_comes_or_another_or_none(tmp_path: Path) -> None:
    run, command = failed(tmp_path, "x = {}\nx['boxes of page 12']\n")
    answer = rerun_command(run, command, str(tmp_path), count=2, timeout=60)
    assert answer["same"] == 2 and [rerun["same"] for rerun in answer["runs"]] == [True, True]
    (tmp_path / "mine.py").write_text("raise ValueError('something else')\n")
    assert rerun_command(run, command, str(tmp_path), count=1, timeout=60)["same"] == 0
    (tmp_path / "mine.py").write_text("import os; open('here', 'w').close()\n")
    answer = rerun_command(run, command, str(tmp_path), count=1, timeout=60)
    assert answer["same"] == 0 and answer["runs"][0]["told"] == "passed" and (tmp_path / "here").exists()


def test_what_hangs_is_ended(tmp_path: Path) -> None:
    run, command = failed(tmp_path, "raise KeyError('x')\n")
    (tmp_path / "mine.py").write_text("import time; time.sleep(600)\n")
    answer = rerun_command(run, command, str(tmp_path), count=1, timeout=2)
    assert answer["same"] == 0 and answer["runs"][0]["seconds"] < 30


def test_why_it_cannot_be_run(tmp_path: Path) -> None:
    run, command = failed(tmp_path, "raise KeyError('x')\n")
    assert "is not there" in rerun_command(run, command, str(tmp_path / "gone"), count=1, timeout=5)["why"]
    (tmp_path / "empty").mkdir()
    assert "no failure" in rerun_command(tmp_path / "empty", command, None, count=1, timeout=5)["why"]
