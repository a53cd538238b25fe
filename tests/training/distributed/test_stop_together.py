"""Ranks stop at the same step, one whose batches differ is named by all, and a training that hangs is ended."""

import signal
import subprocess
import sys
import textwrap

import pytest
import torch

from ocrlab.errors import DataError, RunError
from ocrlab.run_folder.launcher import Ranks
from ocrlab.training.distributed.stop_together import StopAgreement


class Done:
    """The words of a step that have arrived."""

    def wait(self) -> None:
        """They are there."""


def agreement_after(*rows: list[int]) -> StopAgreement:
    agreement = StopAgreement(Ranks(0, len(rows), 0, len(rows), "torchrun"))
    agreement.work, agreement.messages = Done(), [torch.tensor(row) for row in rows]
    return agreement


PLAIN = [0, 0, 6, 2, 4, 3, 512, 512]


def test_words_of_any_rank_count_for_all():
    assert agreement_after(PLAIN, PLAIN).settle() == (0, False)
    assert agreement_after(PLAIN, [15, 0, *PLAIN[2:]]).settle() == (15, False)
    assert agreement_after([0, 1, *PLAIN[2:]], PLAIN).settle() == (0, True)
    assert StopAgreement(Ranks()).settle() == (0, False), "before the first step nobody has said anything"


def test_another_shape_is_that_of_the_few_and_of_two_that_of_the_second():
    odd = [*PLAIN[:5], 3, 480, 512]
    for rows, rank in (((PLAIN, PLAIN, odd), 2), ((odd, PLAIN, PLAIN), 0), ((PLAIN, odd), 1)):
        with pytest.raises(DataError, match=f"Rank {rank} got a batch of another shape") as caught:
            agreement_after(*rows).settle()
        assert caught.value.rank == rank
        assert "(4, 3, 480, 512)" in str(caught.value)


def test_another_number_of_batches_is_distinguished_from_another_shape():
    with pytest.raises(RunError, match="Rank 1 has done another number of micro-batches. Given: 5. Needed: 6"):
        agreement_after(PLAIN, [0, 0, 5, *PLAIN[3:]]).settle()


START = """
import ctypes, signal, sys, time
from ocrlab.training.distributed import stop_together
from ocrlab.training.distributed.stop_together import REACHED, StopDeadline
stop_together.ANNOUNCED_AFTER = 0.2
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
    """Return how a program ended that was asked to, once it was ready: exit status, stdout, stderr."""
    command = [sys.executable, "-c", START + textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.send_signal(signal.SIGTERM)
        out, stderr = program.communicate(timeout=60)
    return program.returncode, out, stderr


@pytest.mark.parametrize("where", ["stuck", pytest.param("sleepy", marks=pytest.mark.slow)])
def test_a_training_that_hangs_reports_where_and_ends(where):
    """In C no handler of Python ever runs; in Python it runs, and changes nothing."""
    code = "with StopDeadline(lambda: 1.0, lambda error: print(error['type'], flush=True)): " + where + "()"
    status, out, stderr = ended(code)
    assert status == 128 + signal.SIGTERM
    assert out == "Hung\n"
    assert "SIGTERM: training stops after this micro-batch; forced exit in 1 s" in stderr
    assert "did not stop within 1 s of SIGTERM; it hangs here" in stderr
    assert f"in {where}" in stderr


def test_a_training_that_stops_has_time_to_save():
    code = """
    with StopDeadline(lambda: 0.5, print) as deadline:
        print('ready', flush=True)
        time.sleep(0.2)
        deadline.note(REACHED)
        time.sleep(1.5)
    print('saved', flush=True)
    time.sleep(0.5)
    """
    status, out, stderr = ended(code)
    assert (status, out) == (0, "saved\n")
    assert "hangs here" not in stderr


@pytest.mark.slow
def test_an_event_loop_is_still_woken():
    code = """
    import os
    mine, theirs = os.pipe()
    os.set_blocking(theirs, False)
    signal.set_wakeup_fd(theirs)
    with StopDeadline(lambda: 0.5, print) as deadline:
        signal.signal(signal.SIGTERM, lambda number, frame: deadline.note(number))
        print('ready', flush=True)
        while True: time.sleep(1)
    """
    status, _, stderr = ended(code)
    assert status == 128 + signal.SIGTERM
    assert "it hangs here" in stderr
