"""Samples of frames: what spins stays, what works moves."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from ocrlab.debug.watch import stack_sampling
from ocrlab.hardware.processes import process_tree, pyspy
from ocrlab.hardware.processes.stack_types import Frame, Thread

LIB = "/usr/lib/python3.11/"
MAIN = ("<module>", "train.py", 3)


def sampled(*paths):
    return {(1, 1): [stack_sampling.Place(tuple(path), {}) for path in paths]}


def counting(*values, name="i"):
    return {(1, 1): [stack_sampling.Place((MAIN,), {(1, "epoch", name): value}) for value in values]}


WAIT = [MAIN, ("loop", "train.py", 9), ("get", LIB + "queue.py", 1)]
POLLS = [[*WAIT, (name, LIB + "selectors.py", 5)] for name in ("register", "select", "select", "close")] * 5
FIRST, SECOND = [("<module>", "train.py", 3)], [("<module>", "train.py", 4)]
IMPORT = ("_call_with_frames_removed", "<frozen importlib._bootstrap>", 241)
RUNPY = ("_run_code", "<frozen runpy>", 88)


@pytest.mark.parametrize(
    ("paths", "progress"),
    [
        ([[MAIN, ("loop", "train.py", 9)]] * 20, False),
        ([[MAIN, ("loop", "train.py", 9 + n % 2)] for n in range(20)], False),
        ([[MAIN, ("loop", "train.py", 10)], *POLLS], False),
        ([[MAIN, ("forward", "train.py", 9)], [MAIN, ("backward", "train.py", 20)]], True),
        ([FIRST] * 4 + [SECOND] * 4, True),
        ([FIRST] * 3 + [SECOND] * 3, False),
        ([[MAIN, IMPORT, ("<module>", f"site-packages/big/{name}.py", 1)] for name in "ab"], True),
        ([[RUNPY, MAIN, ("a", "t.py", 1)], [RUNPY, MAIN, ("b", "t.py", 2)]], True),
        ([], False),
    ],
    ids=["one place", "a loop", "a loop that polls", "two functions of one caller", "a line left for good",
         "too few samples", "imports", "run by the standard library", "nothing"],
)  # fmt: skip
def test_what_moves_and_what_goes_round(paths, progress):
    assert stack_sampling.moved(sampled(*paths)) is progress


def test_threads_are_looked_at_each():
    first, other = sampled([MAIN, ("a", "t.py", 1)])[1, 1], sampled([MAIN, ("b", "t.py", 1)])[1, 1]
    assert not stack_sampling.moved({(1, 1): first, (1, 2): other})


def test_a_living_program_is_sampled():
    if pyspy.program() is None:
        return
    code = "print(1, flush=True)\ndef turn():\n while True: pass\nturn()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as program:
        try:
            program.stdout.readline()
            samples: stack_sampling.Samples = {}
            for _ in range(3):
                stack_sampling.sample(process_tree.descendants(program.pid), samples, time.monotonic() + 10)
        finally:
            program.kill()
    (stood,) = samples.values()
    assert [place.path[-1][0] for place in stood] == ["turn"] * 3
    assert not stack_sampling.moved(samples)


@pytest.mark.parametrize(
    ("values", "progress"),
    [
        ([1, 2, 3, 4, 5, 6], True),
        ([1, 1, 4, 4, 7, 7, 9, 10, 10, 30], True),
        ([396, 399, 2, 5, 8, 11, 14, 17], True),
        ([7, 7, 7, 7, 7, 7, 7, 7, 7], False),
        ([1, 2, 3, 4, 5], False),
        ([5, 1, 9, 3, 8, 2, 7, 4, 6, 0, 9, 1], False),
    ],
)
def test_a_caller_that_counts_on_is_progress(values, progress):
    assert stack_sampling.moved(counting(*values)) is progress


COUNTS = """
def turn(start, end):
    for n in range(start, end): {body}
def epoch():
    for i in range(10**9): {call}
print(1, flush=True)
epoch()
"""


@pytest.mark.parametrize(
    ("body", "call", "progress"),
    [("n * n", "turn(0, 300000)", True), ("n * n", "turn(0, 10**12)", False), ("pass", "i * i", False)],
    ids=["steps of an epoch", "one call for ever", "one function that counts"],
)
def test_the_counter_must_be_that_of_a_caller(body, call, progress):
    if pyspy.program() is None:
        pytest.skip("py-spy is not installed")
    code = COUNTS.format(body=body, call=call)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as program:
        try:
            program.stdout.readline()
            samples: stack_sampling.Samples = {}
            for _ in range(5):
                stack_sampling.sample(
                    process_tree.descendants(program.pid), samples, time.monotonic() + 10, stack_sampling.BURST
                )
        finally:
            program.kill()
    assert stack_sampling.moved(samples) is progress


def test_who_sleeps_between_two_tries_counts_nothing():
    inner, outer = Frame("poll", "t.py", 2, state={"n": "3"}), Frame("wait", "t.py", 9, state={"tries": "4"})
    assert stack_sampling._place(Thread(1, active=True, frames=[inner, outer])).counts == {(0, "wait", "tries"): 4}
    assert stack_sampling._place(Thread(1, frames=[inner, outer])).counts == {}
