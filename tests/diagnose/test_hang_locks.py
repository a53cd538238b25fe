"""Who should have woken the main thread, of real programs that really hang."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ocrlab.diagnose.spots import Finding

Hangs = Callable[..., list[Finding]]

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
RETRY = "import time\ndef fetch():\n    while True:\n        time.sleep(0.3)\nfetch()\n"


@pytest.mark.parametrize(
    ("code", "word", "least", "most"),
    [
        (DIED, "thread writer has died: ValueError: invalid literal", 0.8, 0.8),
        (POOL, "a worker of the pool has died with its task: the main thread waits", 0.8, 0.8),
        (ALIVE, "Python waits for thread uploader in upload (", 0.85, 0.85),
        (FILE, "the main thread waits for a lock on a file in <module> (", 0.7, 0.7),
        (RETRY, "sleeps, wakes and sleeps again in fetch (", 0.4, 0.4),
    ],
    ids=["a thread that died", "a pool that lost its task", "a thread that lives on", "a file lock", "a retry loop"],
)
def test_who_should_have_woken_the_main_thread(hangs: Hangs, code: str, word: str, least: float, most: float) -> None:
    best = hangs(code, "hang.deadlock", word)[0]
    assert word in best.why
    assert least <= best.confidence <= most


@pytest.mark.parametrize(
    ("code", "cause", "where", "confidence"),
    [(FETCH, "io.download", "it waits in fetch (", 0.8), (TALK, "hang.deadlock", "it waits in ask (", 0.6)],
    ids=["a download", "any other talk"],
)
def test_a_server_that_does_not_answer(hangs: Hangs, code: str, cause: str, where: str, confidence: float) -> None:
    best = hangs(code, cause, " to answer, without a time limit")[0]
    assert (best.id, best.confidence) == (cause, confidence)
    assert where in best.why
    assert "for 127.0.0.1:" in best.why
