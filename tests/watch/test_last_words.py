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
        ("a\nException ignored in: <function Cap.__del__>\n" + TRACE, ""),
        ("Exception ignored in: <x>\n" + TRACE + TRACE, "line 5 of its output begins a traceback"),
        ("a\n... 99 bytes left out ...\n" + TRACE, "its output holds a traceback"),
    ],
)
def test_a_traceback_is_found(log, told):
    assert told in last_words.traceback(log)
    assert bool(last_words.traceback(log)) == bool(told)


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("", ""),
        ("epoch 1 loss 0.5\n", ""),
        ("loss=0.5\nloss=nan\nloss=inf\ndone\n", "the loss is inf to the end, from line 2 of its output on"),
        ("step 1 loss: nan (scale 65536)\nstep 2 loss: 0.4\n", ""),
        ("{'train_loss': nan, 'epoch': 1}\n", "the loss is nan to the end, from line 1"),
        ("1: loss 0.1\n 10%|#| loss=0.4\r 20%|##| loss=nan\n", "the loss is nan to the end, from line 2"),
        ("lossless information\nno loss of infrastructure\n", ""),
    ],
)
def test_a_loss_that_is_no_number_to_the_end_is_told(log, told):
    assert told in last_words.loss(log)
    assert bool(last_words.loss(log)) == bool(told)


def test_a_training_that_ends_well_with_nan_is_told_and_is_no_failure(watched):
    done = watched("print('step 1 loss 0.3'); print('step 2 loss nan'); print('Training finished')")
    assert (done.status, done.sentinel) == (0, ".SUCCESS")
    assert "exit status 0, but the loss is nan to the end, from line 2 of its output on" in done.err


def test_a_traceback_before_a_pipe_is_told_and_is_no_failure(watched):
    done = watched(["sh", "-c", f"{sys.executable} -c '{{}}[1]' | cat"])
    assert (done.status, done.sentinel) == (0, ".SUCCESS")
    assert "exit status 0, but line 1 of its output begins a traceback; with a pipe use set -o pipefail" in done.err


def test_a_thread_that_dies_is_told(watched):
    done = watched(THREAD)
    assert done.status == 0 and "begins a traceback" in done.err


def test_output_that_is_lost_is_named():
    assert last_words.lost(2, OSError(5, "Input/output error")).startswith("stderr of the watched program")
