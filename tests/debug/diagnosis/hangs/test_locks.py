"""Who should have woken the main thread, of real programs that really hang."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ocrlab.debug.diagnosis.catalogue import Level
from ocrlab.debug.diagnosis.hangs.stack_patterns import HangFinding

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
        (TASKS, "waits, and no task of it goes on", Level.POSSIBLE),
        (READY, "for a socket or a pipe that does not become ready", Level.POSSIBLE),
        (RETRY, "sleeps, wakes and sleeps again in fetch (", Level.POSSIBLE),
    ],
    ids=[
        "a thread that died",
        "a pool that lost its task",
        "a thread that lives on",
        "a file lock of our own",
        "a file lock of another process",
        "workers that have ended",
        "a task that died",
        "a socket",
        "a retry loop",
    ],
)
def test_who_should_have_woken_the_main_thread(hangs: Hangs, code: str, word: str, level: Level) -> None:
    best = hangs(code, "hang.deadlock", word)[0]
    assert word in best.why
    assert best.level is level


@pytest.mark.parametrize(
    ("code", "cause", "where", "level"),
    [
        (FETCH, "io.download", "it waits in fetch (", Level.STRONG),
        (TALK, "hang.deadlock", "it waits in ask (", Level.LIKELY),
    ],
    ids=["a download", "any other talk"],
)
def test_a_server_that_does_not_answer(hangs: Hangs, code: str, cause: str, where: str, level: Level) -> None:
    best = hangs(code, cause, " to answer, without a time limit")[0]
    assert (best.id, best.level) == (cause, level)
    assert where in best.why
    assert "for 127.0.0.1:" in best.why
