"""Who holds what a real process waits for: a pipe's other end, a file's lock, a server."""

import fcntl
import os
import socket
import sqlite3
import subprocess
import sys
import time

import pytest

from ocrlab.hardware.processes import blocked_on, kernel_threads, process_tree
from ocrlab.hardware.processes.stack_types import Stack

AMPLE = 30.0
ALONE = "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()\n"
SHARED = "import multiprocessing\nlock = multiprocessing.Lock()\nlock.acquire()\nlock.acquire()\n"
FOR_A_TIME = "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire(timeout=600)\n"
PIPE = "import os\nos.read(0, 1)\n"
FILE = "import fcntl, sys\nfcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX)\n"
TRIES = "import sqlite3, sys\nsqlite3.connect(sys.argv[1], timeout=600).execute('insert into t values (1)')\n"
SERVER = "import socket, sys\nsocket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(1)\n"
CHILD = "import subprocess\nsubprocess.Popen(['sleep', '60']).wait()\n"


def call_of(code: str, sought: str, *arguments: str) -> str:
    """Return what the main thread of a program waits in, as soon as that begins with `sought`, else after a while."""
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as child:
        end, call = time.monotonic() + AMPLE, ""
        while time.monotonic() < end and not call.startswith(sought):
            time.sleep(0.05)
            [process, *_] = process_tree.descendants(child.pid)
            [stack] = blocked_on.name_owners([Stack(process, kernel_threads.view(child.pid), "proc")])
            call = stack.threads[0].call
        for process in reversed(process_tree.descendants(child.pid)):
            os.kill(process.pid, 9)
    return call


@pytest.fixture(autouse=True)
def _calls_are_readable() -> None:
    if not kernel_threads.NAMES or not call_of("import time; time.sleep(60)", "clock_nanosleep"):
        pytest.skip("the kernel does not show system calls here")


@pytest.mark.parametrize(
    ("code", "call"), [(ALONE, "futex private"), (SHARED, "futex shared"), (FOR_A_TIME, "futex"), (CHILD, "wait4 ")]
)
def test_who_could_wake_it(code: str, call: str) -> None:
    text = call_of(code, call)
    assert text.startswith(call) if call.endswith(" ") else text == call


def test_the_other_end_of_a_pipe() -> None:
    assert call_of(PIPE, "read 0 pipe:").endswith(f", written by {os.getpid()}")


def test_the_lock_on_a_file(tmp_path) -> None:
    path = tmp_path / "a.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        text = call_of(FILE, "flock", str(path))
    assert text.endswith(f" {path}, held by {os.getpid()}")


def test_a_locked_file_that_is_tried_again_and_again(tmp_path) -> None:
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as base:
        base.execute("create table t (i int)")
        base.commit()
        base.execute("insert into t values (0)")
        text = call_of(TRIES, "clock_nanosleep beside", str(path))
    assert text == f"clock_nanosleep beside {path}, locked by {os.getpid()}"


def test_the_server_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        text = call_of(SERVER, "recvfrom", str(port))
    assert text.endswith(f", connected to 127.0.0.1:{port}")
