"""A replay that does not go on is looked into and ended: a step that never ends, a loader that loads nothing."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ocrlab.debug.flight_record import replay_position, ring_writer, worker_status
from ocrlab.debug.replay import child_watchdog as guards
from ocrlab.hardware.processes import stack_dumps


def test_a_step_whose_trail_moves_for_ever_is_ended(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        running = {"schema": 1, "state": "running", "micro": 3, "pid": child.pid}
        (tmp_path / "trace.json").write_text(json.dumps(running))
        writer = replay_position.Writer(tmp_path / "trail.bin")
        guard = guards.ChildWatchdog(tmp_path, patience=30.0, endless=1.0)
        began = time.monotonic()
        guard.start()
        while child.poll() is None and time.monotonic() < began + 20:
            writer.enter({"op": "aten::randint"})
            time.sleep(0.01)
        assert child.poll() == -9 and time.monotonic() - began > 1.0
        guard.join(20)
        assert not guard.is_alive()
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("lines", [{7: "data.py:3 decode"}, {}])
def test_a_loader_that_loads_nothing_any_more_is_ended_where_it_is_loading(tmp_path, monkeypatch, lines):
    writer = ring_writer.Writer(tmp_path / "ring.bin", slots=4)
    page = worker_status.StatusPage(tmp_path, 0, 0, 0, 0)
    page.sample("a.png")
    guard = guards.ChildWatchdog(tmp_path, patience=0.1, endless=1.0, loading=True)
    ended: list[int] = []
    monkeypatch.setattr(guards, "_loading", lambda _pids, _place: lines)
    monkeypatch.setattr(guard, "_end", ended.append)
    assert not guard._is_stuck(10.0), "what is seen for the first time is new"
    assert not guard._is_stuck(10.2) and guard._is_stuck(10.4) is bool(lines)
    assert bool(ended) is bool(lines) and (guard.stuck, guard.frame) == (set(lines), lines.get(7, ""))
    page.sample("b.png")
    assert not guard._is_stuck(20.0), "it has gone on"
    writer.close()


def test_who_is_in_the_middle_of_loading_is_identified_by_the_stack(tmp_path: Path) -> None:
    code = "import sys, time\nfrom ocrlab.debug.recorder.sample_recorder import SampleRecorder\n"
    code += "class Slow:\n    def __getitem__(self, i):\n        time.sleep(60)\n"
    code += "print(flush=True)\nSampleRecorder(Slow(), None, 0).guarded(lambda: Slow()[0])\n"
    (tmp_path / "slow.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    child = subprocess.Popen([sys.executable, tmp_path / "slow.py"], stdout=subprocess.PIPE, env=environment)
    try:
        assert child.stdout is not None and child.stdout.readline()
        time.sleep(0.5)
        (line,) = guards._loading([child.pid, 1 << 22], tmp_path).values()
        assert line.endswith("slow.py:5 Slow.__getitem__")
    finally:
        child.kill()
        child.wait()


PROGRAM = """
import os, subprocess, sys, time
from ocrlab.debug.flight_record import ring_writer as ring
if sys.argv[2:]:
    ring.Writer({out!r} + "/ring.bin", slots=4)
    time.sleep(0.6)
    os._exit(0)
subprocess.run([sys.executable, *sys.argv, "rank"])
time.sleep(120)
"""


def test_a_program_that_waits_though_its_replayed_process_has_ended_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(guards, "GRACE", 0.3)
    (tmp_path / "program.py").write_text(PROGRAM.replace("{out!r}", repr(str(tmp_path))))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    child = subprocess.Popen([sys.executable, tmp_path / "program.py", "x"], env=environment)
    try:
        guard = guards.ChildWatchdog(tmp_path, patience=30.0, endless=30.0)
        guard.start()
        assert child.wait(60) == -9
        guard.join(20)
        assert guard.is_left and guard.gone is not None and guard.root == child.pid
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(("inner", "wanted"), [
    (["/lib/python3.11/multiprocessing/queues.py"], True),
    (["/lib/python3.11/multiprocessing/queues.py", "/x/site-packages/torch/utils/data/dataloader.py"], False),
    (["/lib/python3.11/time.py"], False),
    ([], False),
])  # fmt: skip
def test_who_waits_for_another_process_is_identified_by_the_stack(inner: list[str], wanted: bool) -> None:
    outer = ["train.py", "/lib/python3.11/multiprocessing/process.py"]  # who has started this one
    frames = [stack_dumps.Frame("f", file, 3) for file in [*inner, *outer]]
    assert (
        guards._is_for_others(stack_dumps.Stack(stack_dumps.Process(5), [stack_dumps.Thread(5, frames=frames)], "x"))
        is wanted
    )


@pytest.mark.parametrize("several", [True, False])
def test_a_rank_that_waits_before_its_first_operator_is_looked_into(tmp_path: Path, several: bool) -> None:
    code = "import sys, time\nfrom ocrlab.debug.flight_record import ring_writer as ring\n"
    code += "writer = ring.Writer(sys.argv[1], slots=4)\n"
    code += "writer.begin(ring.Step(0, 0, phase='forward', time=time.time()))\ntime.sleep(60)\n"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    child = subprocess.Popen([sys.executable, "-c", code, tmp_path / "ring.bin"], env=environment)
    try:
        guard = guards.ChildWatchdog(tmp_path, patience=0.1, endless=0.5, several=several)
        guard.start()
        if several:
            assert child.wait(30) == -9
        else:
            time.sleep(3)
            assert child.poll() is None
        guard.over.set()
        guard.join(20)
        assert bool(guard.stacks) is several
    finally:
        child.kill()
        child.wait()
