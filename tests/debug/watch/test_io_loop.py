"""Streams in the order in which they were written, and job control under a real shell: Ctrl-Z, fg, the background."""

import contextlib
import fcntl
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from unittest.mock import Mock

import pytest

from ocrlab.debug.watch.hang_detector import HangDetector
from ocrlab.debug.watch.io_loop import F_SETPIPE_SZ, PIPE_SIZE, Session
from ocrlab.debug.watch.output_stream import CHUNK, LogBuffer, OutputCallback


@pytest.fixture
def shell(env, tmp_path, left):
    """An interactive bash on a terminal: `say` types a line, `until` waits for a text and returns what came before."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash")
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(bash, [bash, "--norc", "--noprofile", "-i"], {**env, "PS1": "prompt$ "})
    shown = bytearray()

    def until(text: bytes, seconds: float = 30.0) -> bytes:
        end = time.monotonic() + seconds
        os.set_blocking(master, False)
        while text not in shown:
            assert time.monotonic() < end, bytes(shown)
            with contextlib.suppress(BlockingIOError):
                shown.extend(os.read(master, 4096))
            time.sleep(0.01)
        before, _, rest = bytes(shown).partition(text)
        shown[:] = rest
        return before

    def type_line(line: bytes) -> None:
        os.write(master, line)

    yield type_line, until
    os.close(master)
    with contextlib.suppress(OSError):
        os.kill(pid, 9)
    os.waitpid(pid, 0)


def test_ctrl_z_and_fg(shell):
    type_line, until = shell
    until(b"prompt$ ")
    code = 'import time\\nprint("rea" + "dy", flush=True)\\nwhile True: time.sleep(0.1)'
    type_line(f"{sys.executable} -m ocrlab watch --run-dir out -- {sys.executable} -c $'{code}'\n".encode())
    until(b"ready")
    type_line(b"\x1a")
    until(b"Stopped")
    type_line(b"echo ba''ck\n")
    until(b"back")
    type_line(b"fg\n")
    until(b"fg")
    time.sleep(0.5)
    type_line(b"\x03")
    until(b"KeyboardInterrupt")
    until(b"prompt$ ")
    type_line(b"echo status=$?\n")
    assert until(b"status=130") is not None
    type_line(b"exit\n")


def test_in_the_background_it_runs_on(shell):
    type_line, until = shell
    until(b"prompt$ ")
    type_line(
        f"{sys.executable} -m ocrlab watch --run-dir out -- sh -c 'echo from be''low' & wait; echo en''d\n".encode()
    )
    assert b"from below" in until(b"end\r\n")
    type_line(b"exit\n")


def test_what_was_printed_before_an_error_is_read_before_it(tmp_path):
    session = Session(HangDetector(60.0, tmp_path), lambda stream, data: None)
    session.child = Mock(empty=False, stopped=None, control=socket.socket(), guard=Mock())
    writers = {}
    for stream in (2, 1):
        reading, writers[stream] = os.pipe()
        fcntl.fcntl(writers[stream], F_SETPIPE_SZ, PIPE_SIZE)
        os.set_blocking(reading, False)
        session.sources[reading], session.sinks[stream] = stream, OutputCallback(stream, lambda stream, data: None)
    os.write(writers[1], b"step 1\n" * (3 * CHUNK // 7))
    os.write(writers[2], b"Traceback (most recent call last):\n")
    session.step(0.0)
    for descriptor in writers.values():
        os.close(descriptor)
    session.close()
    assert session.ring.text().endswith("step 1\nTraceback (most recent call last):\n")


TRICKLE = """
import signal, sys, time
def answer(*_):
    print("%.6f got it" % time.monotonic(), file=sys.stderr, flush=True)
    sys.exit(7)
signal.signal(signal.SIGUSR1, answer)
end = time.monotonic() + 20
while time.monotonic() < end:
    print("a line", flush=True)
    time.sleep(0.002)
"""


def test_a_signal_is_not_late_while_output_trickles(env, tmp_path, left):
    late = []
    for number in range(5):
        command = ["-m", "ocrlab", "watch", "--run-dir", f"out{number}", "--", sys.executable, "-c", TRICKLE]
        with subprocess.Popen(
            [sys.executable, *command], cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        ) as watcher:
            output = b""
            while len(output) < 700:
                output += watcher.stdout.read(100)
            time.sleep(0.007 * number)  # anywhere within a batch of 50 ms
            sent = time.monotonic()
            watcher.send_signal(signal.SIGUSR1)
            out, err = watcher.communicate(timeout=60)
        assert watcher.returncode == 7 and out.endswith(b"a line\n")
        late.append(float(re.search(rb"([\d.]+) got it", err)[1]) - sent)
    assert sorted(late)[2] < 0.015, late


ALTERNATE = """
import os, time
for number in range(300):
    os.write(1 + number % 2, b"%d\\n" % number)
    time.sleep(0.001)
os._exit(3)
"""


def test_no_line_is_lost_or_out_of_order_where_output_is_read_in_batches(watched):
    done = watched(ALTERNATE.replace("\\\\", "\\"))
    assert [int(line) for line in done.out.split()] == [*range(0, 300, 2)]
    assert [int(line) for line in done.err.split()[:150]] == [*range(1, 300, 2)]
    log = (done.folder / "incident" / "log_tail.txt").read_text().split()
    assert sorted(map(int, log)) == [*range(300)]


def test_a_line_that_the_other_stream_interrupts_is_ended():
    ring = LogBuffer()
    ring.add(1, b"50 %")
    ring.add(2, b"Traceback\n")
    ring.add(1, b"done\n")
    assert ring.text() == "50 %\nTraceback\ndone\n"


def test_a_program_gets_them(watched):
    code = "import os; print(os.environ['CUDA_LAUNCH_BLOCKING'], 'TORCH_USE_CUDA_DSA' in os.environ)"
    done = watched(code, "--debug-cuda")
    assert done.out == b"1 False\n"
    assert "CUDA_LAUNCH_BLOCKING=1" in done.err and "out/flight/cuda-core" in done.err
