"""A training that was told to stop, and does not: it says where it hangs and ends; one that gets there is let alone."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

from ocrlab.training import stop_deadline

START = """
import ctypes, signal, sys, time
from ocrlab.training.stop_deadline import Patience, REACHED, patient
from ocrlab.training import stop_deadline as patience
patience.TOLD = 0.2
signal.signal(signal.SIGTERM, lambda number, frame: None)
def stuck():
    lock = ctypes.create_string_buffer(64)
    ctypes.CDLL(None).pthread_mutex_lock(lock)
    print('ready', flush=True)
    ctypes.CDLL(None).pthread_mutex_lock(lock)
def sleepy():
    print('ready', flush=True)
    while True: time.sleep(50)
"""


def ended(code: str) -> tuple[int, str, str]:
    """Return how a program ended that was told to, once it was ready: exit status, stdout, stderr."""
    command = [sys.executable, "-c", START + textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.send_signal(signal.SIGTERM)
        out, stderr = program.communicate(timeout=60)
    return program.returncode, out, stderr


@pytest.mark.parametrize("where", ["stuck", "sleepy"])
def test_a_training_that_hangs_reports_where_and_ends(where):
    """In C no handler of Python ever runs; in Python it runs, and changes nothing."""
    code = "with patient(Patience(lambda: 1.0, lambda told: print(told['type'], flush=True))): " + where + "()"
    status, out, stderr = ended(code)
    assert status == 128 + signal.SIGTERM
    assert out == "Hung\n"
    assert "SIGTERM: training stops behind this micro-batch; within 1 s" in stderr
    assert "did not stop within 1 s of SIGTERM; it hangs here" in stderr
    assert f"in {where}" in stderr


def test_a_training_that_stops_has_time_to_save():
    code = """
    with patient(Patience(lambda: 0.5, print)) as one:
        print('ready', flush=True)
        time.sleep(0.2)
        one.note(REACHED)
        time.sleep(1.5)
    print('saved', flush=True)
    time.sleep(0.5)
    """
    status, out, stderr = ended(code)
    assert (status, out) == (0, "saved\n")
    assert "hangs here" not in stderr


def test_behind_the_block_nobody_waits():
    code = """
    with patient(Patience(lambda: 0.3, print)) as one:
        pass
    print('ready', flush=True)
    time.sleep(1.5)
    """
    assert ended(code) == (0, "", "")


def test_an_event_loop_is_still_woken():
    code = """
    import os
    mine, theirs = os.pipe()
    os.set_blocking(theirs, False)
    signal.set_wakeup_fd(theirs)
    with patient(Patience(lambda: 0.5, print)) as one:
        signal.signal(signal.SIGTERM, lambda number, frame: one.note(number))
        print('ready', flush=True)
        while True: time.sleep(1)
    """
    status, _, stderr = ended(code)
    assert status == 128 + signal.SIGTERM
    assert "it hangs here" in stderr


def test_long_steps_have_more_time():
    assert stop_deadline.allowed(0.3, 1) == stop_deadline.WITHIN
    assert stop_deadline.allowed(8.0, 1) == 24.0
    assert stop_deadline.allowed(8.0, 4) == 96.0
    assert stop_deadline.allowed(1e4, 1) == stop_deadline.MOST
