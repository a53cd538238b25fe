"""Who should have woken the main thread: locks, rings of processes, DataLoaders."""

from collections.abc import Callable

import pytest

from ocrlab.debug.diagnosis.catalogue import Level
from ocrlab.debug.diagnosis.hangs import hang_cause, locks
from ocrlab.debug.diagnosis.hangs.stack_patterns import HangFinding
from ocrlab.debug.diagnosis.log_records import parse_stacks
from ocrlab.hardware.processes.process_tree import Process
from ocrlab.hardware.processes.stack_types import Frame, Stack, Thread

Hangs = Callable[..., list[HangFinding]]
DIED = "import queue, threading\nq = queue.Queue()\ndef write():\n    while True: int(q.get()); q.task_done()\n"
DIED += "threading.Thread(target=write, name='writer', daemon=True).start()\nq.put('n/a')\nq.join()\n"
POOL = "import multiprocessing, os\ndef work(n):\n    if n == 3: os._exit(1)\n"
POOL += "with multiprocessing.get_context('fork').Pool(2) as pool: pool.map(work, range(6), chunksize=1)\n"
ALIVE = "import threading, time\ndef upload():\n    while True: time.sleep(0.2)\n"
ALIVE += "threading.Thread(target=upload, name='uploader').start()\n"
FILE = "import fcntl\na, b = open('x', 'w'), open('x', 'w')\nfcntl.flock(a, 2)\nfcntl.flock(b, 2)\n"
FETCH = "import socket, urllib.request\ns = socket.create_server(('127.0.0.1', 0))\ndef fetch():\n"
FETCH += "    urllib.request.urlopen('http://127.0.0.1:%d/a.pth' % s.getsockname()[1])\nfetch()\n"
TALK = "import socket\ns = socket.create_server(('127.0.0.1', 0))\ndef ask():\n"
TALK += "    socket.create_connection(s.getsockname()).recv(1)\nask()\n"
LOCKED_BY_CHILD = "import fcntl, os, time\nready, done = os.pipe()\nif os.fork() == 0:\n    a = open('x', 'w')\n"
LOCKED_BY_CHILD += "    fcntl.flock(a, 2)\n    os.write(done, b'x')\n    time.sleep(60)\nos.read(ready, 1)\n"
LOCKED_BY_CHILD += "fcntl.flock(open('x', 'w'), 2)\n"
LEFT = "import multiprocessing\nm = multiprocessing.get_context('fork')\ndef load(n, q):\n    if n == 0: q.put(n)\n"
LEFT += "q = m.Queue()\nfor n in range(2): m.Process(target=load, args=(n, q)).start()\nfor n in range(2): q.get()\n"
TASKS = "import asyncio\nasync def feed(q):\n    await q.put(1)\n    raise KeyError('label')\nasync def main():\n"
TASKS += (
    "    q = asyncio.Queue(); task = asyncio.create_task(feed(q))\n    while True: await q.get()\nasyncio.run(main())\n"
)
READY = "import selectors, socket\na, b = socket.socketpair()\ns = selectors.DefaultSelector()\n"
READY += "s.register(a, selectors.EVENT_READ)\ns.select()\n"
RETRY = "import time\ndef fetch():\n    while True:\n        time.sleep(0.3)\nfetch()\n"


@pytest.mark.parametrize(
    ("code", "word", "level"),
    [
        (DIED, "thread writer has died: ValueError: invalid literal", Level.STRONG),
        (POOL, "a worker of the pool has died with its task: the main thread waits", Level.STRONG),
        (ALIVE, "Python waits for thread uploader in upload (", Level.STRONG),
        (FILE, "the main thread waits for a lock on the file ", Level.LIKELY),
        (LOCKED_BY_CHILD, "), held by process ", Level.STRONG),
        (LEFT, "for a message, and no process is left that could send one: of its processes ", Level.DECISIVE),
        (TASKS, "waits, and none of its tasks continues", Level.POSSIBLE),
        (READY, "for a socket or a pipe that does not become ready", Level.POSSIBLE),
        (RETRY, "sleeps, wakes and sleeps again in fetch (", Level.POSSIBLE),
    ],
    ids=[
        "a thread that died", "a pool that lost its task", "a thread that lives on",
        "a file lock of our own", "a file lock of another process", "workers that have ended",
        "a task that died", "a socket", "a retry loop",
    ],
)  # fmt: skip
def test_who_should_have_woken_the_main_thread(hangs: Hangs, code: str, word: str, level: Level) -> None:
    best = hangs(code, "hang.deadlock", word)[0]
    assert word in best.why
    assert best.level is level


@pytest.mark.parametrize(("code", "cause", "where", "level"), [
    (FETCH, "io.download", "it waits in fetch (", Level.STRONG),
    (TALK, "hang.deadlock", "it waits in ask (", Level.LIKELY),
], ids=["a download", "any other talk"])  # fmt: skip
def test_a_server_that_does_not_answer(hangs: Hangs, code: str, cause: str, where: str, level: Level) -> None:
    best = hangs(code, cause, " to answer, without a time limit")[0]
    assert (best.id, best.level) == (cause, level)
    assert where in best.why
    assert "for 127.0.0.1:" in best.why


SOURCES = {
    "in one line": (
        "def load(i):\n    L.acquire(); L.acquire()\n",
        [("load", 2)],
        "it already holds L, taken a few lines above or in the same line",
    ),
    "after another one": ("def load(i):\n    L.acquire()\n    L.acquire()\n", [("load", 3)], "already holds L"),
    "around a call": (
        "class D:\n    def load(self, i):\n        with self.lock:\n            return self.read(i)\n"
        "    def read(self, i):\n        with self.lock:\n            return i\n",
        [("read", 6), ("load", 4)],
        "already holds self.lock, taken in load",
    ),
    "acquired, then a call": (
        "def load(i):\n    L.acquire()\n    read(i)\n    L.release()\ndef read(i):\n    with L:\n        pass\n",
        [("read", 6), ("load", 3)],
        "already holds L, taken in load",
    ),
    "nested": ("def load(i):\n    with L:\n        with L:\n            pass\n", [("load", 3)], "already holds L"),
    "never let go": ("def load(i):\n    L.acquire()\n    return i\n", [("load", 2)], "nothing in"),
    # and what is none of these
    "let go before": (
        "def load(i):\n    L.acquire()\n    L.release()\n    L.acquire()\n    L.release()\n",
        [("load", 4)],
        "",
    ),
    "one after another": ("def load(i):\n    with L:\n        pass\n    with L:\n        pass\n", [("load", 4)], ""),
    "another lock": ("def load(i):\n    with A:\n        with B:\n            pass\n", [("load", 3)], ""),
    "a call after it": (
        "def load(i):\n    with L:\n        pass\n    read(i)\ndef read(i):\n    with L:\n        pass\n",
        [("read", 6), ("load", 4)],
        "",
    ),
    "by somebody else too": (
        "def load(i):\n    L.acquire()\n    return i\nL.acquire()\nstart(load)\n",
        [("load", 2)],
        "",
    ),
    "for a while": ("def load(i):\n    L.acquire()\n    L.acquire(timeout=5)\n    L.release()\n", [("load", 3)], ""),
    "a function in it": (
        "def load(i):\n    def later():\n        L.acquire()\n    L.acquire()\n    L.release()\n",
        [("load", 4)],
        "",
    ),
    "once, and let go": ("def load(i):\n    with L:\n        pass\n", [("load", 2)], ""),
    "something else": ("def load(i):\n    time.sleep(9)\n", [("load", 2)], ""),
    "no Python": ("def load(i:\n", [("load", 1)], ""),
}


@pytest.mark.parametrize("case", SOURCES)
def test_it_is_read_off_the_source(tmp_path, case: str) -> None:
    source, places, words = SOURCES[case]
    (path := tmp_path / "data.py").write_text(source)
    frames = [Frame("acquire", "lock.c", 0), *(Frame(function, str(path), line) for function, line in places)]
    reason = locks.explain_self_deadlock(frames)
    assert (words in reason) if words else reason == ""


def test_frames_of_the_parent_that_a_forked_copy_still_has_do_not_count(tmp_path) -> None:
    (path := tmp_path / "data.py").write_text(
        "def work():\n    with lock:\n        pass\nlock.acquire()\nchild.start()\n"
    )
    copy = [Frame("Popen._launch", "/usr/lib/python3.11/multiprocessing/popen_fork.py", 71)]
    frames = [Frame("work", str(path), 2), *copy, Frame("<module>", str(path), 5)]
    assert locks.explain_self_deadlock(frames) == ""
    assert locks.explain_self_deadlock([frames[0], frames[2]]) != ""


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
    best = hangs(code, "hang.deadlock", "no thread is left that could wake them")[0]
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


def worker_stack(pid: int, top: str, *, active: bool = False) -> str:
    """Return a forked data worker's stack as py-spy prints it, with `top` innermost."""
    return f"""Process {pid}: python train.py
Python v3.11

Thread {pid} ({"active" if active else "idle"}): "MainThread"
    {top}
    fetch (torch/utils/data/_utils/fetch.py:54)
    _worker_loop (torch/utils/data/_utils/worker.py:375)
    _bootstrap (multiprocessing/process.py:314)
    _launch (multiprocessing/popen_fork.py:71)
    start (multiprocessing/process.py:121)
    _try_get_data (torch/utils/data/dataloader.py:1293)

"""


def test_all_workers_that_spin_in_native_code_are_copies_of_a_broken_pool() -> None:
    main = 'Process 1: python train.py\n\nThread 1 (idle): "MainThread"\n'
    main += "    select (selectors.py:415)\n    _try_get_data (torch/utils/data/dataloader.py:1293)\n\n"
    at = "__getitem__ (pages.py:7)"
    single = parse_stacks(main + worker_stack(2, at, active=True))
    assert hang_cause.find_hangs(single, {})[0].id == "loader.hang_sample", "it may be the sample"
    two = parse_stacks(main + worker_stack(2, at, active=True) + worker_stack(3, at, active=True))
    assert hang_cause.find_hangs(two, {})[0].id == "loader.fork_deadlock"


@pytest.mark.parametrize("frames, cause", [
    ("acquire (filelock/_api.py:1)\n    __enter__ (torch/utils/_filelock.py:24)", "hang.build_lock"),
    ("wait (multiprocessing/synchronize.py:268)\n    work (train.py:3)", "hang.deadlock"),
])  # fmt: skip
def test_locks_that_are_shared_on_purpose(frames: str, cause: str) -> None:
    text = f'Process 5: python train.py\n\nThread 5 (idle): "MainThread"\n    {frames}\n'
    text += "    _launch (multiprocessing/popen_fork.py:71)\n    <module> (train.py:9)\n"
    assert [finding.id for finding in hang_cause.find_hangs(parse_stacks(text), {})][:1] == [cause]


@pytest.mark.parametrize(
    ("top", "call", "threads", "cause", "least"),
    [
        ("__getitem__ (pages.py:7)", "futex private", 1, "loader.fork_deadlock", Level.STRONG),
        ("__getitem__ (pages.py:7)", "futex private", 2, "loader.hang_sample", Level.LIKELY),
        ("__getitem__ (pages.py:7)", "futex shared", 1, "loader.hang_sample", Level.LIKELY),
        (
            "_wait_for_tstate_lock (threading.py:1139)\n    join (threading.py:1119)", "futex private", 2,
            "", Level.POSSIBLE,
        ),
    ],
    ids=["nobody is left to let go", "another thread could", "another process could", "a thread that is joined"],
)  # fmt: skip
def test_a_lock_that_only_the_parent_could_let_go(top: str, call: str, threads: int, cause: str, least: Level) -> None:
    text = worker_stack(2, top).replace("Python v3.11", f"# main, state S, {threads} threads, from py-spy")
    text = text.replace(f"    {top}", f"    # waits in {call}\n    {top}")
    best = hang_cause.find_hangs(parse_stacks(text), {})[0]
    assert best.level.value >= least.value
    assert best.id == cause if cause else best.id != "loader.fork_deadlock"
