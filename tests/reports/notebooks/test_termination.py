"""How a notebook ended, in a word, a sentence and an exit status."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ocrlab.records import Reading
from ocrlab.reports.notebooks import termination
from ocrlab.reports.notebooks.jupyter_kernel import Kernel


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    process = Kernel()
    yield process
    process.close()


def gone(kernel: Kernel, code: int | None) -> Kernel:
    kernel.process = SimpleNamespace(poll=lambda: code, pid=12345)
    return kernel


@pytest.mark.parametrize(
    ("code", "word", "status", "part"),
    [
        (-11, "CRASHED", 139, "died of SIGSEGV in cell [3]; usually native code touched memory"),
        (-9, "CRASHED", 137, "died of SIGKILL in cell [3]; usually it was killed from outside"),
        (3, "FAIL", 3, "ended in cell [3] with exit status 3"),
        (0, "FAIL", 1, "ended in cell [3] with exit status 0"),
        (139, "CRASHED", 139, "died of SIGSEGV in cell [3]"),
        (None, "CRASHED", 1, "died in cell [3], cause unknown"),
    ],
)
def test_a_kernel_that_is_gone(kernel: Kernel, code: int | None, word: str, status: int, part: str) -> None:
    ended = termination.died(gone(kernel, code), 3, "")
    assert (ended.word, ended.exit_status, ended.cell) == (word, status, 3)
    assert part in ended.sentence
    assert ended.verdict is not None
    assert ended.verdict.signal == ended.signal


def test_a_kernel_that_never_reached_a_cell(kernel: Kernel) -> None:
    ended = termination.died(gone(kernel, 1), None, "ModuleNotFoundError: No module named 'ipykernel'")
    assert "before its first cell" in ended.sentence
    assert ended.texts["log_tail.txt"].startswith("ModuleNotFoundError")


def test_a_neighbours_trouble_in_the_kernel_log_is_no_evidence(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["[1.0] Out of memory: Killed process 777 (python)", "[2.0] python[12345]: segfault at 0 ip 0 sp 0 error 4"]
    monkeypatch.setattr(termination.kernel_log, "lines", lambda _since: Reading("kernel_log", lines))
    ended = termination.died(gone(kernel, -11), 3, "")
    assert ended.texts["kernel_log.txt"] == lines[1]


def test_a_diagnosis_that_fails_costs_nothing_else(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    from ocrlab.debug.diagnosis import classify

    def broken(_incident: Any) -> None:
        raise RuntimeError("no catalogue")

    monkeypatch.setattr(classify, "classify", broken)
    ended = termination.died(gone(kernel, -6), 3, "")
    assert ended.word == "CRASHED"
    assert ended.verdict is not None
    assert ended.verdict.causes == []
    assert "no catalogue" in ended.verdict.missing[0]


def test_an_exception_and_a_stop() -> None:
    ended = termination.failed(
        4, "ValueError: \x1b[31mno\x1b[0m", "", "Traceback (most recent call last):\nValueError: no"
    )
    assert (ended.word, ended.exit_status, ended.sentence) == ("FAIL", 1, "It stopped in cell [4]. ValueError: no")
    assert termination.stopped(4, KeyboardInterrupt()).sentence.startswith("It was stopped by SIGINT in cell [4]")
    ended = termination.stopped(None, SystemExit(143))
    assert (ended.word, ended.exit_status) == ("INCOMPLETE", 143)
    assert "SIGTERM before its first cell" in ended.sentence
