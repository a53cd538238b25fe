"""The guard: it tells how everything ends, leaves nothing, and gives the program the signals of its parent."""

import os
import signal
import subprocess
import sys
import time

import pytest

from ocrlab.debug.watch import child_process
from ocrlab.debug.watch.child_process import GUARD

LIBC = 3 << 31  # signals 32 and 33 are glibc's own (nptl(7)); some versions of make leave 32 ignored


@pytest.fixture
def start(env, left):
    """Start a command under a guard, with nothing on its streams."""
    children = []

    def begin(*command):
        null = os.open(os.devnull, os.O_RDWR)
        try:
            children.append(
                child_process.start(command, [null] * 3, {**env, "OCRLAB_WATCH": f"test-{os.getpid()}-{len(children)}"})
            )
        finally:
            os.close(null)
        return children[-1]

    yield begin
    for child in children:
        child.control.close()
        child.guard.wait(20)


def until(done, condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        done.listen()
        time.sleep(0.01)


def test_orphans_are_reported_too(start):
    done = start("sh", "-c", "(sh -c 'sleep 0.2; kill -11 $$' &) ; exit 0")
    until(done, lambda: done.empty)
    assert [ended["signal"] for ended in done.exits] == [None, "SIGSEGV"]


def test_what_we_end_ourselves_is_no_evidence(start):
    done = start("sh", "-c", "sleep 50 & wait")
    until(done, lambda: done.signal(signal.SIGKILL, everyone=True) or done.empty)  # again: it may fork meanwhile
    assert (done.code, done.exits) == (-9, [])


def test_the_program_leads_a_session_of_its_own_with_ordinary_signals(start, tmp_path):
    code = "import os, signal, sys; names = (2, 13, 15, 25, 20)\n"
    code += "sys.stdout = open(sys.argv[1], 'w')\n"
    code += "print(os.getsid(0) == os.getpid(), open('/proc/self/status').read())"
    done = start(sys.executable, "-c", code, str(tmp_path / "said"))
    until(done, lambda: done.empty)
    own, _, status = (tmp_path / "said").read_text().partition(" ")
    assert own == "True"
    fields = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
    ignored = int(fields["SigIgn"], 16) & ~(1 << 12) & ~(1 << 24)  # Python itself ignores SIGPIPE and SIGXFSZ
    assert ignored & ~LIBC == 0
    assert int(fields["SigBlk"], 16) == 0


def test_what_is_switched_off_stays_off(env, tmp_path):
    words = ["nohup", sys.executable, *"-m ocrlab watch --run-dir out -- grep SigIgn /proc/self/status".split()]
    done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout.split()[1], 16) & ~LIBC == 1, "SIGHUP and nothing else"


def test_the_guard_starts_without_anything_of_ocrlab():
    text = GUARD.read_text()
    assert "import ocrlab" not in text and "from ocrlab" not in text
