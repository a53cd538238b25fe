"""Stacks of real processes: with the lock held, stopped, gone, silent, of another user, and without py-spy."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ocrlab.hardware.processes import kernel_threads, process_tree, pyspy, stack_dumps

Start = Callable[[str], process_tree.Process]
AMPLE = 30.0  # seconds; no test waits for as long unless the machine is very busy


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a Python program that says when it is ready; it is killed, and known as tree.Process."""
    started: list[subprocess.Popen[str]] = []

    def run(code: str) -> process_tree.Process:
        script = tmp_path / f"program{len(started)}.py"
        script.write_text(code)
        child = subprocess.Popen(
            [sys.executable, str(script)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
        )
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.1)  # from the word to the place where it stays
        [process] = process_tree.descendants(child.pid)
        return process

    yield run
    for child in started:
        child.kill()
        child.communicate()


@pytest.fixture
def spy() -> None:
    """Skip where py-spy may not read the memory of a child process."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        time.sleep(0.2)
        threads, reason = pyspy.dump(process_tree.descendants(child.pid)[0], time.monotonic() + AMPLE)
        child.kill()
    if not threads:
        pytest.skip(reason)


SLEEPS = "import time\ndef waits():\n    print('ready', flush=True)\n    time.sleep(600)\nwaits()\n"


@pytest.mark.usefixtures("spy")
def test_a_python_program(start: Start) -> None:
    [stack] = stack_dumps.take([start(SLEEPS)], AMPLE)
    assert stack.how == "py-spy"
    [main] = stack.threads
    assert [(frame.function, frame.line) for frame in main.frames] == [("waits", 4), ("<module>", 5)]
    assert main.frames[0].file.endswith("program0.py")
    assert (main.id, main.name, main.active) == (stack.process.pid, "MainThread", False)


@pytest.mark.usefixtures("spy")
def test_a_program_that_holds_the_gil_in_native_code(start: Start) -> None:
    code = "import ctypes\ndef keeps():\n    print('ready', flush=True)\n    ctypes.PyDLL(None).sleep(600)\nkeeps()\n"
    [stack] = stack_dumps.take([start(code)], AMPLE)
    assert "keeps" in [frame.function for frame in stack.threads[0].frames]


@pytest.mark.usefixtures("spy")
def test_a_stopped_program_is_read_and_stays_stopped(start: Start) -> None:
    process = start(SLEEPS)
    os.kill(process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    [stack] = stack_dumps.take([process], AMPLE)
    assert stack.process.state == "T"
    assert stack.threads[0].frames[0].function == "waits"
    assert process_tree.read_process(process.pid).state == "T"  # type: ignore[union-attr]


@pytest.mark.usefixtures("spy")
def test_only_locals_that_identify_a_sample_are_shown(start: Start) -> None:
    code = "import time\nclass D:\n    def __getitem__(self, number):\n        password = 'hunter2'\n"
    code += "        name = idx = 'hunter2'\n        print('ready', flush=True)\n        time.sleep(600)\nD()[13]\n"
    taken = stack_dumps.take([start(code)], AMPLE)
    assert taken[0].threads[0].frames[0].locals == {"number": "13"}
    assert "hunter2" not in stack_dumps.text(taken)
    assert "            number: 13" in stack_dumps.text(taken).splitlines()


@pytest.mark.usefixtures("spy")
def test_native_frames_where_pythons_leave_it_open(start: Start) -> None:
    code = "import ctypes, threading\nprint('ready', flush=True)\nlock = ctypes.create_string_buffer(64)\n"
    code += "libc = ctypes.CDLL(None)\nlibc.pthread_mutex_lock(lock); libc.pthread_mutex_lock(lock)\n"
    process = start(code)
    frames = stack_dumps.take([process], AMPLE)[0].threads[0].frames
    assert any(frame.line == 0 and "libc" in frame.file for frame in frames)
    assert frames[-2].function == "<module>" or any(frame.function == "<module>" for frame in frames)
    plain = stack_dumps.take([process], AMPLE, native=False)[0].threads[0].frames
    assert [frame.function for frame in plain] == ["<module>"]


def test_zombies_the_gone_and_what_is_not_python() -> None:
    with subprocess.Popen(["true"]) as dead, subprocess.Popen(["sleep", "600"]) as sleeps:
        os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
        family = [process_tree.descendants(dead.pid)[0], process_tree.descendants(sleeps.pid)[0]]
        gone = process_tree.Process(family[0].pid, started=family[0].started - 1)
        ended, other = stack_dumps.take(family, AMPLE)
        [reused] = stack_dumps.take([gone], AMPLE)
        sleeps.kill()
    assert "zombie" in ended.why_not
    assert reused.why_not == "it has ended meanwhile"
    assert other.how == "proc"
    assert other.why_not == "not a Python program"
    assert [thread.name for thread in other.threads] == ["sleep"]


def silent(tmp_path: Path) -> Path:
    """Return a py-spy that never answers and notes its number."""
    path = tmp_path / "py-spy"
    path.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/number\nexec sleep 600\n")
    path.chmod(0o755)
    return path


def test_a_silent_py_spy_is_killed_at_the_deadline(start, tmp_path, monkeypatch):
    place = silent(tmp_path)
    monkeypatch.setattr(pyspy, "program", lambda: str(place))
    process = start(SLEEPS)
    began = time.monotonic()
    [stack] = stack_dumps.take([process], 1.0)
    assert time.monotonic() - began < AMPLE
    assert stack.how == "proc"
    number = int((tmp_path / "number").read_text())
    end = time.monotonic() + AMPLE
    while process_tree.read_process(number) is not None and time.monotonic() < end:
        time.sleep(0.01)
    assert process_tree.read_process(number) is None
    assert process_tree.read_process(process.pid).state == "S"  # type: ignore[union-attr]


ASKED = """
import faulthandler, os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[0]).parent / 'flight'
folder.mkdir()
file = open(folder / f'stacks-{os.getpid()}.txt', 'w')
faulthandler.register(signal.SIGUSR1, file)
def waits():
    print('ready', flush=True)
    time.sleep(600)
waits()
"""


def test_without_py_spy_a_program_that_offers_it_is_asked(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspy, "program", lambda: None)
    process = start(ASKED)
    for _ in range(2):  # it can be asked again
        [stack] = stack_dumps.take([process], AMPLE)
        assert stack.how == "faulthandler"
        assert [frame.function for frame in stack.threads[0].frames] == ["waits", "<module>"]
        assert stack.why_not == "py-spy is not installed"
    assert process_tree.read_process(process.pid) is not None


@pytest.mark.parametrize("handler", ["signal.SIG_DFL", "lambda *_: open(sys.argv[0] + '.rung', 'w')", "signal.SIG_IGN"])
def test_no_signal_goes_to_a_program_that_did_not_offer_it(start, monkeypatch, tmp_path, handler):
    monkeypatch.setattr(pyspy, "program", lambda: None)
    process = start(f"import signal, sys\nsignal.signal(signal.SIGUSR1, {handler})\n{SLEEPS}")
    [stack] = stack_dumps.take([process], AMPLE)
    assert stack.how == "proc"
    assert stack.threads[0].id == process.pid
    assert kernel_threads.catches(process.pid, signal.SIGUSR1) is handler.startswith("lambda")
    assert process_tree.read_process(process.pid) is not None
    assert not list(tmp_path.glob("*.rung"))


def test_another_users_process_is_shown_as_far_as_allowed(start: Start) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    process = start(SLEEPS)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgid(65534)
        os.setuid(65534)
        [stack] = stack_dumps.take([process], AMPLE)
        os.write(write, json.dumps([stack.how, stack.why_not, len(stack.threads)]).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    with open(read) as answer:
        how, why_not, count = json.load(answer)
    assert (how, count) == ("proc", 1)
    assert why_not
