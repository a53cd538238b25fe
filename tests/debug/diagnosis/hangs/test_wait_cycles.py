"""Rings of processes that wait for each other: of real programs, and what is not a ring though it looks like one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ocrlab.debug.diagnosis.catalogue import Level
from ocrlab.debug.diagnosis.hangs import locks
from ocrlab.debug.diagnosis.hangs.stack_patterns import HangFinding
from ocrlab.hardware.processes.process_tree import Process
from ocrlab.hardware.processes.stack_types import Frame, Stack, Thread

Hangs = Callable[..., list[HangFinding]]

QUEUE = "import multiprocessing\ndef work(q):\n    q.put(b'x' * 10**6)\n"
QUEUE += "c = multiprocessing.get_context('fork')\nq = c.Queue()\np = c.Process(target=work, args=(q,))\n"
QUEUE += "p.start()\np.join()\n"
FILTER = "import subprocess\np = subprocess.Popen(['cat'], stdin=-1, stdout=-1)\ndef feed():\n"
FILTER += "    p.stdin.write(b'x' * 10**6)\nfeed()\n"
WORD = "import os\nr, w = os.pipe()\npid = os.fork()\nif not pid:\n    os.read(r, 1)\nos.waitpid(pid, 0)\n"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (QUEUE, ["waits for the end of", "to read from a full pipe in QueueFeederThread"]),
        (FILTER, ["to read from a full pipe in feed (", "to read from a full pipe in cat"]),
        (WORD, ["waits for the end of", "waits for data from", "in a pipe in <module> ("]),
    ],
    ids=[
        "a queue that nobody empties before join",
        "a filter whose output nobody reads",
        "a child that waits for a word",
    ],
)
def test_processes_that_wait_for_each_other(hangs: Hangs, code: str, words: list[str]) -> None:
    best = hangs(code, "hang.deadlock", "nobody is left to wake them")[0]
    assert best.level is Level.DECISIVE
    assert all(word in best.why for word in words), best.why


def waiting(pid: int, call: str, *, parent: int = 0, own: str = "train.py", line: int = 3) -> Stack:
    main = Thread(pid, "MainThread", frames=[Frame("work", own, line)], call=call)
    return Stack(Process(pid, parent=parent, role="main", state="S", threads=1), [main], "py-spy")


def test_two_processes_wait_for_each_others_file_lock() -> None:
    ring = [waiting(5, "wait4 6"), waiting(6, "flock 3 a.lock, held by 5", parent=5)]
    [finding] = locks.find_wait_cycle(ring, {})
    assert finding.pid == 5
    assert "process 6 waits for the lock on a file, held by 5, in work (train.py:3)" in finding.why


@pytest.mark.parametrize(
    "stacks",
    [
        [waiting(5, "wait4 6"), waiting(6, "read 3 pipe:[1], written by 5, 99", parent=5)],
        [waiting(5, "wait4 6"), waiting(6, "recvfrom 3 socket:[1], connected to 1.2.3.4:80", parent=5)],
        [waiting(5, "wait4 6"), waiting(6, "read 3 pipe:[1], written by 5, 7 and more", parent=5)],
        [waiting(5, "wait4 6"), waiting(6, "futex", parent=5)],
        [waiting(5, "wait4"), waiting(6, "futex private", parent=5)],
        [waiting(5, "wait4 6")],
        [waiting(5, "futex shared")],
        [],
    ],
    ids=["somebody outside", "a server", "too many", "for a time", "its own threads", "unseen", "alone", "nothing"],
)
def test_no_ring_where_another_process_could_wake_a_member(stacks: list[Stack]) -> None:
    assert locks.find_wait_cycle(stacks, {}) == []


def test_no_ring_where_another_thread_works_or_the_place_has_changed() -> None:
    parent, child = waiting(5, "wait4 6"), waiting(6, "read 3 pipe:[1], written by 5", parent=5)
    assert locks.find_wait_cycle([parent, child], {})
    assert locks.find_wait_cycle([parent, child], {6: waiting(6, "", line=4)}) == []
    writer = Thread(7, "writer", frames=[Frame("answer", "train.py", 9)])
    busy = Stack(parent.process, [*parent.threads, writer], "py-spy")
    assert locks.find_wait_cycle([busy, child], {}) == []
