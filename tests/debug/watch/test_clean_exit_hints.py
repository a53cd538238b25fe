"""Hints about a program whose only sign of success is its exit status."""

import sys

import pytest

from ocrlab.debug.watch import clean_exit_hints

TRACE = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nKeyError: 1\n'


@pytest.mark.parametrize(("log", "text"), [
    ("", ""),
    ("epoch 1\nthe Traceback (most recent call last): of yesterday\n", ""),
    ("a\nb\n" + TRACE + TRACE, "line 3 of its output begins a traceback"),
    ("a\nException ignored in: <function Cap.__del__>\n" + TRACE, ""),
    ("Exception ignored in: <x>\n" + TRACE + TRACE, "line 5 of its output begins a traceback"),
    ("a\n... 99 bytes left out ...\n" + TRACE, "its output holds a traceback"),
])  # fmt: skip
def test_a_traceback_is_reported(log, text):
    assert text in clean_exit_hints.traceback(log)
    assert bool(clean_exit_hints.traceback(log)) == bool(text)


@pytest.mark.parametrize(("log", "text"), [
    ("", ""),
    ("loss=0.5\nloss=nan\nloss=inf\ndone\n", "the loss is inf to the end, from line 2 of its output on"),
    ("step 1 loss: nan (scale 65536)\nstep 2 loss: 0.4\n", ""),
    ("1: loss 0.1\n 10%|#| loss=0.4\r 20%|##| loss=nan\n", "the loss is nan to the end, from line 2"),
    ("{'loss': '0', 'grad_norm': 'nan'}\n", "the norm of the gradients is nan to the end, from line 1"),
    ("grad_norm=inf (scale 65536)\ngrad_norm=0.4\n", ""),
    ("loss nan val_loss 0.3\n", "the loss is nan to the end, from line 1"),
    ("lossless information\nno loss of infrastructure\n", ""),
])  # fmt: skip
def test_a_loss_that_is_no_number_to_the_end_is_reported(log, text):
    assert text in clean_exit_hints.loss(log)
    assert bool(clean_exit_hints.loss(log)) == bool(text)


def test_a_training_that_ends_well_with_nan_is_reported_and_is_no_failure(watched):
    done = watched("print('step 1 loss 0.3'); print('step 2 loss nan'); print('Training finished')")
    assert (done.status, done.sentinel) == (0, ".SUCCESS")
    assert "exit status 0, but the loss is nan to the end, from line 2 of its output on" in done.err


def test_a_traceback_before_a_pipe_is_reported_and_is_no_failure(watched):
    done = watched(["sh", "-c", f"{sys.executable} -c '{{}}[1]' | cat"])
    assert (done.status, done.sentinel) == (0, ".SUCCESS")
    assert "exit status 0, but line 1 of its output begins a traceback; with a pipe use set -o pipefail" in done.err
