"""Process trees of real programs: who started whom, what part each plays, and what vanishes meanwhile."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from ocrlab.hardware.processes import exit_codes, process_tree

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python programs in sessions of their own, which are killed as a whole; each says when it is ready."""
    started: list[subprocess.Popen[str]] = []

    def run(code: str, **extra: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", f"{code}\nprint('ready', flush=True)\nimport time; time.sleep(600)"]
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, start_new_session=True, env={**os.environ, **extra}
        )
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        return child

    yield run
    for child in started:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not condition():
        time.sleep(0.02)
    return condition()


def roles(root: int) -> list[str]:
    return [process.role for process in process_tree.descendants(root)]


@pytest.mark.parametrize("by_threads", [True, False])
def test_descendants_from_the_children_of_threads_or_from_every_process(start, monkeypatch, by_threads):
    # its children are those of a second thread
    family = "['sh', '-c', 'sleep 600 & sleep 600; true']"
    child = start(
        f"import subprocess, threading; threading.Thread(target=lambda: subprocess.Popen({family}).wait()).start()"
    )
    assert eventually(lambda: len(process_tree.descendants(child.pid)) == 4)
    pids = [process.pid for process in process_tree.descendants(child.pid)]
    if by_threads:
        monkeypatch.setattr(process_tree, "pids", lambda: range(10**6))
    else:
        monkeypatch.setattr(process_tree, "_below", lambda _: [])
    assert [process.pid for process in process_tree.descendants(child.pid)] == pids


def test_parents_come_before_children_and_the_root_first(start: Start) -> None:
    child = start("import subprocess; subprocess.Popen(['sh', '-c', 'sleep 600; true'])")
    assert eventually(lambda: len(process_tree.descendants(child.pid)) == 3)
    family = process_tree.descendants(child.pid)
    assert (family[0].pid, family[1].parent, family[2].parent) == (child.pid, child.pid, family[1].pid)
    assert {process.session for process in family} == {child.pid}
    assert [process.role for process in family] == ["main", "other", "other"]
    assert process_tree.snapshot()[child.pid].command == family[0].command


def test_a_process_as_the_kernel_counts_it(start: Start) -> None:
    child = start("import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()")
    [process] = process_tree.descendants(child.pid)
    assert process.command.startswith(sys.executable)
    assert process.parent == os.getpid()
    assert process.threads == 2
    assert process.io_bytes
    assert process.io_bytes > 1000
    assert 0 <= process.cpu_seconds < 60
    assert process.started == process_tree.read_process(child.pid).started  # type: ignore[union-attr]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_every_start_method(start: Start, method: str) -> None:
    code = f"import multiprocessing, time; context = multiprocessing.get_context({method!r})\n"
    code += "for _ in range(2): context.Process(target=time.sleep, args=(600,), daemon=True).start()"
    child = start(code)
    assert eventually(lambda: roles(child.pid).count("worker") == 2)
    assert roles(child.pid)[0] == "main"
    helpers = {"fork": 0, "spawn": 1, "forkserver": 2}[method]
    assert roles(child.pid).count("helper") == helpers


def test_ranks_are_those_who_got_a_rank_of_their_own(start: Start) -> None:
    code = "import os, subprocess, sys\nfor rank in '01':\n    subprocess.Popen([sys.executable, '-c', "
    code += "'import subprocess; subprocess.run([\"sleep\", \"600\"])'], env={**os.environ, 'LOCAL_RANK': rank})"
    child = start(code)
    assert eventually(lambda: roles(child.pid) == ["main", "rank", "rank", "other", "other"])


@pytest.mark.parametrize(("command", "role"), [
    ("/usr/local/cuda/bin/nvcc -c a.cu", "compiler"),
    ("/usr/libexec/gcc/cc1plus -quiet main.cpp", "compiler"),
    ("python -m torch._inductor.compile_worker --pickler=x", "compiler"),
    ("/site-packages/wandb/bin/wandb-core --port-filename p", "tracker"),
    ("python -m tensorboard.main --logdir runs", "tracker"),
    ("python -c from multiprocessing.resource_tracker import main;main(7)", "helper"),
    ("python -c from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=6)", "worker"),
    ("/venv/bin/python3.11 train.py", "main"),
    ("bash run.sh", "other"),
    ("[pt_data_worker]", "worker"),  # a name that torch gives
])  # fmt: skip
def test_roles_by_command(command: str, role: str) -> None:
    name = "pt_data_worker" if command == "[pt_data_worker]" else "x"
    assert process_tree._role(process_tree.Process(2**22 + 1, name=name), command, None) == role


@pytest.mark.parametrize(("code", "name"), [
    (-11, "SIGSEGV"), (139, "SIGSEGV"), (137, "SIGKILL"), (-50, "signal 50"), (0xC0000005, "SIGSEGV"),
    (-1073740791, "SIGABRT"), (0, None), (1, None), (255, None), (None, None),
])  # fmt: skip
def test_an_exit_code_as_subprocess_a_shell_and_windows_have_it(code: int | None, name: str | None) -> None:
    assert exit_codes.signal_of_exit(code) == name
