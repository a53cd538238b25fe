"""What counts as progress: counters of /proc and frames that move."""

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from ocrlab.debug.watch import stack_sampling
from ocrlab.debug.watch.hang_detector import Counters, count_io, what_moved
from ocrlab.hardware.processes import process_tree, pyspy

LIB = "/usr/lib/python3.11/"
MAIN = ("<module>", "train.py", 3)


def sampled(*paths):
    return {(1, 1): [stack_sampling.Place(tuple(path), {}) for path in paths]}


def test_each_thread_is_looked_at_by_itself():
    first, other = (sampled([MAIN, (name, "t.py", 1)])[1, 1] for name in "ab")
    assert not stack_sampling.moved({(1, 1): first, (1, 2): other})


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


@pytest.mark.parametrize(
    ("values", "progress"),
    [
        ([1, 2, 3, 4, 5, 6], True), ([1, 1, 4, 4, 7, 7, 9, 10, 10, 30], True),
        ([396, 399, 2, 5, 8, 11, 14, 17], True), ([7, 7, 7, 7, 7, 7, 7, 7, 7], False),
        ([1, 2, 3, 4, 5], False), ([5, 1, 9, 3, 8, 2, 7, 4, 6, 0, 9, 1], False),
    ],
)  # fmt: skip
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


STILL = Counters(1000, 1000, 0, {(1, 2): 10}, 1.0, False)


@pytest.mark.parametrize(("now", "seconds", "what"), [
    (STILL, 10, ""),
    (replace(STILL, cpu_seconds=99.0), 10, ""),
    (replace(STILL, written=1064), 10, "writing"),
    (replace(STILL, written=1008), 10, ""),
    (replace(STILL, disk=4096), 10, "a disk"),
    (replace(STILL, offsets={(1, 2): 11}), 10, "a file"),
    (replace(STILL, offsets={(1, 3): 11}), 10, ""),
    (replace(STILL, read=1000 + 16384 * 10), 10, "reading"),
    (replace(STILL, read=1000 + 16384 * 9), 10, ""),
    (replace(STILL, cpu_seconds=1.1, compiler=True), 10, "a compiler"),
    (replace(STILL, compiler=True), 10, ""),
])  # fmt: skip
def test_what_moved(now, seconds, what):
    assert what_moved({(1, 1): STILL}, {(1, 1): now}, seconds) == what


def test_a_single_byte_into_a_file_is_progress(tmp_path):
    family = [process for process in process_tree.descendants(os.getpid()) if process.pid == os.getpid()]
    with open(tmp_path / "scan", "wb", buffering=0) as file:
        before = count_io(family)
        assert what_moved(before, count_io(family), 1) in ("", "reading"), "to count reads /proc"
        file.write(b"\0")
        assert what_moved(before, count_io(family), 1) in ("a file", "a disk")


def test_trackers_and_the_dead_are_left_aside():
    family = [process_tree.Process(os.getpid(), role="tracker"), process_tree.Process(os.getpid(), state="Z")]
    assert count_io(family) == {}
