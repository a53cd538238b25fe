"""What is said of a program that did well by its exit status only."""

from __future__ import annotations

import sys

import pytest

from ocrlab.watch import last_words

TRACE = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nKeyError: 1\n'
THREAD = "import threading\nprint('one', flush=True)\nt = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()"


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("", ""),
        ("epoch 1\nthe Traceback (most recent call last): of yesterday\n", ""),
        (TRACE, "line 1 of its output begins a traceback"),
        ("a\nb\n" + TRACE + TRACE, "line 3 of its output begins a traceback"),
        ("a\r\n  " + TRACE, "line 2 of its output begins a traceback"),
        ("a\n... 99 bytes left out ...\n" + TRACE, "its output holds a traceback"),
    ],
)
def test_a_traceback_is_found(log, told):
    assert told in last_words.traceback(log)
    assert bool(last_words.traceback(log)) == bool(told)


def test_a_traceback_before_a_pipe_is_told_and_is_no_failure(watched):
    done = watched(["sh", "-c", f"{sys.executable} -c '{{}}[1]' | cat"])
    assert (done.status, done.sentinel) == (0, ".SUCCESS")
    assert "exit status 0, but line 1 of its output begins a traceback; with a pipe use set -o pipefail" in done.err


def test_a_thread_that_dies_is_told(watched):
    done = watched(THREAD)
    assert done.status == 0 and "begins a traceback" in done.err


def test_output_that_is_lost_is_named():
    assert last_words.lost(2, OSError(5, "Input/output error")).startswith("stderr of the watched program")
