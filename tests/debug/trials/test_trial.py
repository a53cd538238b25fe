from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ocrlab.debug.trials import trial
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


def test_a_worker_that_ended_is_the_same_whoever_says_so() -> None:
    first = raised("RuntimeError: DataLoader worker (pid(s) 11, 12) exited unexpectedly")
    late = "RuntimeError: DataLoader worker (pid 9) exited unexpectedly with exit code 1. Details are lost due to it."
    assert first == raised("RuntimeError: DataLoader worker (pid(s) 16) exited unexpectedly") == raised(late)


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


def test_a_long_text_is_cut_visibly() -> None:
    head = 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    x()\n'
    log = f"{head}ValueError: {'y' * 300}\n"
    text = trial.fingerprint(Verdict(status="failed", exit_code=1), Incident("failed", texts={"log_tail.txt": log}))[1]
    assert len(text) <= trial.LONGEST and text.endswith("…")


REPLAY = Evidence("replay.json", None, f"first fault at step 1, forward, {'input (2, 64), ' * 8}; goes away with less.")


@pytest.mark.parametrize(
    "lines, line",
    [
        ([REPLAY, Evidence("log_tail.txt", 9, "FloatingPointError:  loss is nan")], "FloatingPointError: loss is nan"),
        ([REPLAY, Evidence("log_tail.txt", 9, "loss nan")], "loss nan"),
        ([Evidence("facts", None, "x"), Evidence("traceback.txt", 1, "ValueError: y")], "ValueError: y"),
        ([Evidence("log_tail.txt", 1, "e" * 200)], "e" * 119 + "…"),
        ([], ""),
    ],
)
def test_a_failure_is_described_by_the_line_of_its_exception(lines: list[Evidence], line: str) -> None:
    assert trial.evidence_line(Cause("num.nonfinite", 0.9, lines)) == line


def test_a_replays_line_alone_is_cut_between_words_and_marked() -> None:
    place = Verdict(status="failed", causes=[Cause("num.nonfinite", 0.9, [REPLAY])])
    what, text = trial.fingerprint(place, Incident("failed"))
    assert what == "num.nonfinite" and text.startswith("num.nonfinite: first fault at step 1, forward, input")
    assert text.endswith(" …") and "  " not in f"{text} comes from" and len(text) <= 120 + len("num.nonfinite: ")


def test_a_hang_is_a_failure_and_being_slow_is_none() -> None:
    hung = Verdict(status="hung", causes=[Cause("hang.lock", 0.8)])
    assert ended("", hung, ended_by="limit", silent_seconds=30.0) == trial.HANG
    assert ended("", hung, ended_by="limit", silent_seconds=0.5) == trial.SLOW


def test_a_crash_of_a_worker_is_the_same_in_the_main_process() -> None:
    assert trial.is_same_failure("loader.worker_crash", "native.segv")
    assert trial.is_same_failure("x", "x")
    assert not trial.is_same_failure("native.segv", "hang")


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


def test_variables_are_set_and_unset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCRLAB_TEST_GONE", "1")
    code = "import os; raise SystemExit(not (os.environ['SET'] == '2' and 'OCRLAB_TEST_GONE' not in os.environ))"
    words = [sys.executable, "-S", "-c", code]
    done = trial.run_trial(lambda _: (words, {"SET": "2", "OCRLAB_TEST_GONE": ""}), tmp_path / "one", timeout=30)
    assert done.fingerprint == ""


def test_a_program_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    done = trial.run_trial(lambda _: (["no-such-program"], {}), tmp_path / "one", timeout=30)
    assert done.fingerprint


def test_a_folder_without_a_failure_holds_none(tmp_path: Path) -> None:
    assert trial.recorded_failure(tmp_path) is None
