"""Memory and OOM kills of a watched program, as its watcher counts them."""

import os
import subprocess
import sys
import time

import pytest

from ocrlab.debug.diagnosis import load_input
from ocrlab.debug.watch import memory_tracker
from ocrlab.debug.watch.memory_tracker import OomKillCounters
from ocrlab.debug.watch.supervisor import Options, watch
from ocrlab.hardware import cgroup
from ocrlab.records import Reading

MIB = 1 << 20


def test_what_samples_take_of_a_core_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(_pid: int) -> list[object]:
        end = time.thread_time() + 0.005
        while time.thread_time() < end:
            pass
        return []

    monkeypatch.setattr(memory_tracker.process_tree, "descendants", slow)
    tracker = memory_tracker.MemoryTracker()
    tracker.look(1.0, os.getpid())
    assert 0.005 / memory_tracker.BUDGET <= tracker.wait(1.0) < 3 * 0.005 / memory_tracker.BUDGET


def test_the_driver_is_asked_at_the_first_message_where_a_driver_exists(monkeypatch, tmp_path):
    tracker = memory_tracker.MemoryTracker()
    monkeypatch.setattr(memory_tracker, "DRIVER", (str(tmp_path / "none"),))
    tracker.note_output(b"RuntimeError: CUDA out of memory. Tried to allocate")
    assert tracker.asked is None
    monkeypatch.setattr(memory_tracker, "DRIVER", (str(tmp_path),))
    tracker.note_output(b"step 1\n")
    assert tracker.asked is None
    tracker.note_output(b"RuntimeError: CUDA out of memory. Tried to allocate")
    first = tracker.asked
    assert first is not None
    tracker.note_output(b"RuntimeError: CUDA out of memory. Tried to allocate")
    assert tracker.asked is first
    gpus = tracker.facts()["gpus"]
    assert "cards" in gpus or "missing" in gpus
    tracker.close()


def test_a_watched_program_that_fails_leaves_its_memory(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """The program holds what it has until a sample shows it: with a fixed time, whole runs of the suite had none."""
    look, mark = memory_tracker.MemoryTracker.look, tmp_path / "seen"

    def looked(self: memory_tracker.MemoryTracker, passed: float, pid: int) -> None:
        look(self, passed, pid)
        if self.tree and self.tree[-1] > 64 * MIB:
            mark.touch()

    monkeypatch.setattr(memory_tracker.MemoryTracker, "look", looked)
    code = (
        "import os, sys, time\nkept, end = b'x' * (64 << 20), time.monotonic() + 60\n"
        "while not os.path.exists(sys.argv[1]) and time.monotonic() < end: time.sleep(0.05)\nraise MemoryError"
    )
    command = [sys.executable, "-c", code, str(mark)]
    watch(command, Options(tmp_path / "run"), output=lambda _stream, _data: None)
    memory = load_input.read_incident(str(tmp_path / "run")).facts["memory"]
    assert memory["tree"][-1] > 64 * MIB, memory
    assert len(memory["seconds"]) == len(memory["tree"])


def test_a_limit_that_a_program_sets_itself_is_read() -> None:
    code = "import resource; resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30)); print(1, flush=True); input()"
    tracker = memory_tracker.MemoryTracker()
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        tracker.look(0.0, os.getpid())
        child.communicate(b"\n")
    assert tracker.facts()["address_space_bytes"] == 3 << 30


@pytest.fixture
def groups(tmp_path, monkeypatch):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "memory.events").write_text("oom_kill 5\n")
    monkeypatch.setattr(cgroup, "memory_group", lambda pid: tmp_path / str(pid))
    return tmp_path


@pytest.fixture
def machine(monkeypatch):
    counts = [9]
    monkeypatch.setattr(cgroup, "machine_oom_kills", lambda: Reading("machine_oom_kills", counts[-1]))
    return counts


def test_what_grew_is_counted(groups, machine):
    kills = OomKillCounters()
    machine.append(20)
    assert kills.count() is None
    for group in ("a", "b", "a"):
        kills.note(group)
    assert kills.count() == 0
    (groups / "a" / "memory.events").write_text("oom_kill 7\n")
    assert kills.count() == 2
    kills.note("a")
    assert kills.count() == 2, "the first look counts"
    (groups / "a" / "memory.events").unlink()
    assert kills.count() == 0


def test_a_kill_elsewhere_on_the_machine_proves_nothing(groups, machine):
    (groups / "a" / "cgroup.sane_behavior").write_text("0\n")  # the root of version 1
    kills = OomKillCounters()
    kills.note("a")
    assert kills.count() == 0, "the machine has killed nobody"
    (groups / "a" / "memory.events").write_text("oom_kill 6\n")
    machine.append(10)
    assert kills.count() is None, "the root counts everybody's"
