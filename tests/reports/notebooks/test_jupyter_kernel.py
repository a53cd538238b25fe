"""A kernel seen from outside, played by small programs: what it says, its stack, its family, its end."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ocrlab.reports.notebooks import jupyter_kernel as kernels
from ocrlab.reports.notebooks.jupyter_kernel import Kernel

CRASH = """Fatal Python error: Segmentation fault

Current thread 0x00007f0000000000 (most recent call first):
  File "a.py", line 1 in <module>

Extension modules: zmq (total: 1)
"""
Start = Callable[[str], subprocess.Popen]


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    process = Kernel()
    yield process
    process.close()


@pytest.fixture
def start(kernel: Kernel) -> Start:
    """Return a function that starts a program as if it were the kernel and waits until it says `ready`."""

    def run(code: str) -> subprocess.Popen:
        process = subprocess.Popen([sys.executable, "-c", code], **kernel.launch())
        kernel.adopt(type("Manager", (), {"provisioner": type("Provisioner", (), {"process": process})()})())
        until(lambda: "ready" in (kernel.folder / "stdout").read_text() or process.poll() is not None)
        return process

    return run


def until(true: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def test_what_it_says_is_handed_out_once_and_without_its_stack(kernel: Kernel) -> None:
    (kernel.folder / "stderr").write_text(f"before\n{CRASH}after\n")
    assert kernel.take_output() == [("stderr", "before\nafter\n")]
    assert kernel.take_output() == []
    assert kernel.stack() == CRASH
    with (kernel.folder / "stderr").open("a") as file:
        file.write("more\n")
    assert kernel.take_output() == [("stderr", "more\n")]


def test_a_kernel_that_listens_is_asked_for_its_stack(kernel: Kernel, start: Start) -> None:
    folder = repr(str(kernel.folder))
    start(
        "import faulthandler, os, signal, time\n"
        f"file = open(os.path.join({folder}, 'x.txt'), 'w')\n"
        "faulthandler.register(signal.SIGUSR1, file)\n"
        "def waits_here():\n    print('ready', flush=True)\n    time.sleep(100)\nwaits_here()"
    )
    kernel.ask()
    assert "waits_here" in kernel.stack()
    assert kernel.exit_code() is None


def test_a_kernel_that_does_not_listen_survives_being_asked(kernel: Kernel, start: Start) -> None:
    start("import time; print('ready', flush=True); time.sleep(100)")
    kernel.ask()
    time.sleep(0.1)
    assert (kernel.exit_code(), kernel.stack()) == (None, "")


def test_its_end_is_that_of_everything_it_started_also_in_a_session_of_its_own(kernel: Kernel, start: Start) -> None:
    start(
        "import subprocess, time\n"
        "subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
        "print('ready', flush=True)\ntime.sleep(300)"
    )
    family = kernel.family()
    assert len(family) == 2
    kernel.end()
    assert kernel.gone_within(5)
    until(lambda: not alive(family))
    assert kernel.pids >= set(family)
    assert os.getpid() not in family


def alive(pids: list[int]) -> list[int]:
    living = []
    for pid in pids:
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            living += [pid] if state not in "ZX" else []
    return living


def test_only_what_bears_the_mark_is_ended() -> None:
    mark = uuid.uuid4().hex
    ours = subprocess.Popen(["sleep", "300"], env={**os.environ, "OCRLAB_TEST": mark})
    other = subprocess.Popen(["sleep", "300"], env={**os.environ, "OCRLAB_TEST": mark + "x"})
    try:
        until(lambda: kernels.marked("OCRLAB_TEST", mark) == [ours.pid])
        kernels.end("OCRLAB_TEST", mark)
        assert ours.wait(5) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
