"""Samples of frames: what spins stays, what works moves."""

from __future__ import annotations

import subprocess
import sys
import time

from ocrlab.probes import pyspy, tree
from ocrlab.watch import places

LIB = "/usr/lib/python3.11/"
MAIN = ("<module>", "train.py", 3)


def seen(*paths):
    return {(1, 1): [tuple(path) for path in paths]}


def test_one_place_is_no_progress():
    assert not places.moved(seen(*[[MAIN, ("loop", "train.py", 9)]] * 20))


def test_a_loop_that_goes_round_is_no_progress():
    paths = [[MAIN, ("loop", "train.py", 9 + n % 2)] for n in range(20)]
    assert not places.moved(seen(*paths))


def test_a_loop_that_polls_is_no_progress():
    wait = [MAIN, ("loop", "train.py", 9), ("get", LIB + "queue.py", 1)]
    paths = [[*wait, (name, LIB + "selectors.py", 5)] for name in ("register", "select", "select", "close")] * 5
    assert not places.moved(seen([MAIN, ("loop", "train.py", 10)], *paths))


def test_two_functions_of_one_caller_are_progress():
    assert places.moved(seen([MAIN, ("forward", "train.py", 9)], [MAIN, ("backward", "train.py", 20)]))


def test_a_line_that_is_left_for_good_is_progress():
    first, second = [("<module>", "train.py", 3)], [("<module>", "train.py", 4)]
    assert places.moved(seen(*[first] * 4, *[second] * 4))
    assert not places.moved(seen(*[first] * 3, *[second] * 3)), "too few to tell"


def test_modules_that_are_imported_one_after_another_are_progress():
    machinery = ("_call_with_frames_removed", "<frozen importlib._bootstrap>", 241)
    paths = [[MAIN, machinery, ("<module>", f"site-packages/big/{name}.py", 1)] for name in "ab"]
    assert places.moved(seen(*paths))


def test_what_runs_the_program_is_no_library_call():
    runpy = ("_run_code", "<frozen runpy>", 88)
    assert places.moved(seen([runpy, MAIN, ("a", "t.py", 1)], [runpy, MAIN, ("b", "t.py", 2)]))


def test_threads_are_looked_at_each():
    assert not places.moved({(1, 1): [(MAIN, ("a", "t.py", 1))], (1, 2): [(MAIN, ("b", "t.py", 1))]})


def test_nothing_seen_is_nothing_moved():
    assert not places.moved({})


def test_a_living_program_is_sampled():
    if pyspy.program() is None:
        return
    code = "print(1, flush=True)\ndef turn():\n while True: pass\nturn()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as program:
        try:
            program.stdout.readline()
            found: places.Seen = {}
            for _ in range(3):
                places.sample(tree.descendants(program.pid), found, time.monotonic() + 10)
        finally:
            program.kill()
    (paths,) = found.values()
    assert [path[-1][0] for path in paths] == ["turn"] * 3
    assert not places.moved(found)
