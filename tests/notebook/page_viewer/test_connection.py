"""The line to the detector's child: answers, errors as sentences, deaths with their cause, no wait without an end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ocrlab.errors import DataError, RunError
from ocrlab.notebook import child_runner
from ocrlab.notebook.page_viewer import connection
from ocrlab.notebook.page_viewer.connection import Link

PROGRAM = """
import os, sys, time, types
from multiprocessing.connection import Client
from ocrlab.errors import DataError
from ocrlab.run_folder import watcher_link as handover
from ocrlab.notebook.page_viewer import connection
line, runs = sys.argv.pop(), sys.argv.pop()
handover.report_runs(runs)
opened = []
def refuse(): raise DataError("page.png is empty", got="0 bytes", need="an image", do="Copy it again")
def stumble(): raise KeyError("a\\nb")
answers = {"open": opened.append, "opened": lambda: opened, "add": lambda a, b: a + b, "sleep": time.sleep,
           "pid": os.getpid, "die": lambda n: os.kill(os.getpid(), n), "refuse": refuse, "stumble": stumble}
connection.serve(Client(line), types.SimpleNamespace(**answers))
"""


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Link]:
    monkeypatch.setattr(connection, "PROGRAM", PROGRAM)
    started = Link(("open", "receipts"), tmp_path / "runs")
    yield started
    started.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def gone(pid: int, seconds: float = 20) -> bool:
    """Return whether a process leaves in time."""
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not alive(pid)


def test_questions_are_answered_by_a_single_child_that_was_prepared_once(link: Link) -> None:
    assert link.ask("add", 2, 3) == 5
    assert link.ask("opened") == ["receipts"]
    pid = link.ask("pid")
    assert link.ask("pid") == pid != os.getpid()
    link.close()
    assert gone(pid)
    assert not link.runs.exists()  # a child that did well leaves nothing behind


def test_a_child_that_computes_when_its_notebook_is_closed_leaves_nothing_behind(link: Link) -> None:
    pid = link.ask("pid")
    assert link.connection is not None
    link.connection.send(("sleep", 1.5))
    link.close()
    assert gone(pid)
    assert link.child.ended.wait(5) and not link.runs.exists()


def test_an_error_comes_back_as_what_it_was(link: Link) -> None:
    with pytest.raises(DataError) as caught:
        link.ask("refuse")
    assert str(caught.value) == "page.png is empty. Given: 0 bytes. Needed: an image. Copy it again."
    with pytest.raises(RunError, match=r"could not answer.*KeyError"):
        link.ask("stumble")
    assert link.ask("add", 1, 1) == 2


def test_a_death_is_reported_with_its_signal_and_the_next_question_starts_anew(link: Link) -> None:
    pid = link.ask("pid")
    with pytest.raises(child_runner.ChildFailed, match="SIGSEGV") as caught:
        link.ask("die", int(signal.SIGSEGV))
    assert caught.value.ended.status == "killed"
    assert [path.name for path in link.runs.glob("*/incident/verdict.json")] == ["verdict.json"]
    assert link.ask("pid") != pid
    assert link.ask("opened") == ["receipts"]


def test_silence_has_an_end(link: Link) -> None:
    pid = link.ask("pid")
    began = time.monotonic()
    with pytest.raises(RunError, match=r"no answer for 0\.3 s"):
        link.ask("sleep", 60, seconds=0.3)
    assert time.monotonic() - began < 10
    assert not alive(pid)
    assert link.ask("add", 1, 1) == 2


def test_an_interrupt_ends_the_child_and_no_late_answer_is_taken_for_another(link: Link) -> None:
    pid = link.ask("pid")
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    with pytest.raises(child_runner.Stopped):
        link.ask("sleep", 60)
    assert not alive(pid)
    assert link.ask("add", 1, 1) == 2


def test_a_child_that_never_connects_is_reported(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PROGRAM", "import no_such_module")
    with pytest.raises(child_runner.ChildFailed, match="exit status 1"):
        link.ask("add", 1, 1)
    monkeypatch.setattr(connection, "PROGRAM", "import time; time.sleep(60)")
    monkeypatch.setattr(connection, "START", 0.5)
    with pytest.raises(RunError, match=r"no answer for 0\.5 s"):
        link.ask("add", 1, 1)


def test_the_child_leaves_when_the_kernel_is_killed(tmp_path: Path) -> None:
    code = "from pathlib import Path; from ocrlab.notebook.page_viewer import connection\n"
    code += f"connection.PROGRAM = {PROGRAM!r}\nlink = connection.Link(('open', 1), Path({str(tmp_path)!r}))\n"
    code += "print(link.ask('pid'), flush=True); import time; time.sleep(60)"
    kernel = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert kernel.stdout is not None
    pid = int(kernel.stdout.readline())
    assert alive(pid)
    kernel.kill()
    kernel.wait()
    kernel.stdout.close()
    assert gone(pid)
