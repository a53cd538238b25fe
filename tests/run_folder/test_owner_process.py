"""A process is known by more than its number, and a signal leaves it time for a last word."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from ocrlab.run_folder.owner_process import alive, identity, signals_exit


def test_this_process_lives_and_no_other_with_its_number() -> None:
    here = identity()
    assert alive(here)
    assert not alive(here | {"started": here["started"] - 1})  # the number was given out again
    assert not alive(here | {"boot": "before the machine was restarted"})


def test_a_process_that_ended_is_dead_even_before_it_is_reaped() -> None:
    code = "import json; from ocrlab.run_folder.owner_process import identity\n"
    code += "print(json.dumps(identity()), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        there = json.loads(child.stdout.readline())
        assert alive(there)
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, but still a zombie
        assert not alive(there)
    assert not alive(there)


@pytest.mark.parametrize("record", [{}, {"pid": None, "host": None}, {"pid": "../self", "started": None}])
def test_a_record_that_says_nothing_is_dead(record: dict[str, object]) -> None:
    assert not alive(record)


def test_a_process_elsewhere_is_not_declared_dead() -> None:
    assert alive({"pid": 1, "host": "another-machine"})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_becomes_an_exit_status_and_the_handler_comes_back(number: int) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # nohup would have it ignored
    try:
        with pytest.raises(SystemExit) as error, signals_exit():
            os.kill(os.getpid(), number)
            signal.pause()
        assert error.value.code == 128 + number
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_a_handler_of_somebody_else_is_left_alone() -> None:
    numbers: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: numbers.append(number))
    try:
        with signals_exit():
            os.kill(os.getpid(), signal.SIGTERM)
        assert numbers == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_other_threads_do_not_touch_signals() -> None:
    failures: list[BaseException] = []

    def body() -> None:
        try:
            with signals_exit():
                pass
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert failures == []


def test_a_forked_child_dies_of_the_signal_itself() -> None:
    code = """
import os, signal
from ocrlab.run_folder.owner_process import signals_exit
ready, tell = os.pipe()
with signals_exit():
    child = os.fork()
    if child == 0:
        os.write(tell, b"x")
        signal.pause()
    os.read(ready, 1)
    os.kill(child, signal.SIGTERM)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "-15\n"
