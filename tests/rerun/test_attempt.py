"""What a child has left, read: whose loading failed and how, and a step that goes on for ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ocrlab.flight import ring, ring_worker, trail
from ocrlab.flight.ring_worker import Worker
from ocrlab.probes import stacks
from ocrlab.rerun import attempt

WORKERS = [Worker(41, 0, "a.png", 0.0), Worker(42, 1, "sample 5 of this worker's stream", 0.0)]


@pytest.mark.parametrize(
    ("exited", "wanted"),
    [([41], ["a.png"]), ([41, 42], ["a.png", "sample 5 of worker 1's stream"]), ([43], []), ([], [])],
)
def test_a_worker_that_ended_is_known_by_its_process(exited: list[int], wanted: list[str]) -> None:
    assert attempt._refused(WORKERS, exited) == wanted


def test_a_sample_that_was_refused_comes_before_what_others_were_on() -> None:
    failed = Worker(43, 2, "c.png", 0.0, failed="b.png")
    assert attempt._refused([*WORKERS, failed], [41]) == ["b.png"]


def test_a_broken_pipe_is_told_as_the_end_of_the_worker_behind_it() -> None:
    pipe = {"type": "ConnectionResetError", "message": "[Errno 104] Connection reset by peer"}
    told = "a worker of the DataLoader "
    assert attempt._pipe_of_the_dead(pipe, {"statuses": [-9]}) == f"{told}was killed by SIGKILL"
    assert attempt._pipe_of_the_dead(pipe, {"statuses": [7]}) == f"{told}ended with 7"
    assert attempt._pipe_of_the_dead(pipe, {"statuses": [1, -11]}) == f"{told}was killed by SIGSEGV"
    assert attempt._pipe_of_the_dead(pipe, {"statuses": []}) == ""
    assert attempt._pipe_of_the_dead({**pipe, "type": "KeyError"}, {"statuses": [-9]}) == ""
    unexpected = {"type": "RuntimeError", "message": "DataLoader worker (pid(s) 3) exited unexpectedly"}
    assert attempt._pipe_of_the_dead(unexpected, {"statuses": [-11]}) == f"{told}was killed by SIGSEGV"
    torchs = {**pipe, "type": "EOFError", "message": "DataLoader worker (pid 3) is killed by signal: Killed."}
    assert attempt._pipe_of_the_dead(torchs, {"statuses": [-9]}) == ""


def test_an_exception_of_a_worker_is_told_as_it_was_there() -> None:
    inner = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\nOSError: image file is truncated'
    passed_on = {"type": "OSError", "message": f"Caught OSError in DataLoader worker process 1.\nOriginal {inner}"}
    assert attempt._original(passed_on) == "OSError: image file is truncated"
    assert attempt._original({"type": "KeyError", "message": "'B'"}) == "KeyError: 'B'"
    ours = '\n  File "/x/ocrlab/flight/files.py", line 41, in write_bytes'  # torch raises in a handler of signals
    assert attempt._own_lines(inner + ours) == ["a.py:3 f"]


def test_a_step_whose_trail_moves_for_ever_is_ended(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        running = {"schema": 1, "state": "running", "micro": 3, "pid": child.pid}
        (tmp_path / "trace.json").write_text(json.dumps(running))
        writer = trail.Writer(tmp_path / "trail.bin")
        guard = attempt.Guard(tmp_path, patience=30.0, endless=1.0)
        began = time.monotonic()
        guard.start()
        while child.poll() is None and time.monotonic() < began + 20:
            writer.at({"op": "aten::randint"})
            time.sleep(0.01)
        assert child.poll() == -9 and time.monotonic() - began > 1.0
        guard.join(20)
        assert not guard.is_alive()
    finally:
        child.kill()
        child.wait()


CHAIN = """Traceback (most recent call last):
  File "data.py", line 7, in load
OSError: torn

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "train.py", line 3, in run
RuntimeError: aborted
"""


def test_an_exception_that_was_raised_from_another_one_is_told_with_that_one_s_line() -> None:
    error = {"type": "RuntimeError", "message": "aborted", "traceback": CHAIN, "your_code": "x.py:1 f"}
    told = attempt._told(error, "data")
    assert told["exception"] == "OSError: torn, raised again as RuntimeError: aborted"
    assert (told["line"], told["surfaced"]) == ("data.py:7 load", "train.py:3 run")
    assert attempt._told({**error, "traceback": ""}, "data")["line"] is None


def test_a_forked_worker_that_waits_is_in_no_line_of_the_program() -> None:
    def stack(*functions: str) -> stacks.Stack:
        frames = [
            stacks.Frame(name, "/lib/python3.11/queue.py" if name == "get" else "train.py", 3) for name in functions
        ]
        frames = [
            replace(f, file="/lib/python3.11/site-packages/torch/w.py") if "loop" in f.function else f for f in frames
        ]
        return stacks.Stack(stacks.Process(5), [stacks.Thread(5, frames=frames)], "py-spy")

    assert attempt._own_frames(stack("get", "_worker_loop", "<module>")) == []
    assert attempt._own_frames(stack("decode", "_worker_loop", "<module>")) == ["train.py:3 decode"]


def test_a_loop_is_in_the_module_that_calls_those_that_are_seen() -> None:
    places = [{"step": 1, "phase": "forward", "path": path, "module": kind, "op": "aten::mm"} for path, kind in
              (("ponder.cell", "GRUCell 6->8"), ("ponder", "Ponder"), ("ponder.read", "Linear 8->1"))]  # fmt: skip
    found = {"step": 1, "phase": "forward", "path": "ponder", "module": "Ponder"}
    assert attempt._around(places) == found
    assert attempt._around(places[:1]) == {**found, "path": "ponder.cell", "module": "GRUCell 6->8"}
    assert attempt._around([{**places[0], "path": "head"}, places[0]]) == {"step": 1, "phase": "forward"}


@pytest.mark.parametrize("lines", [{7: "data.py:3 decode"}, {}])
def test_a_loader_that_loads_nothing_any_more_is_ended_where_it_is_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: dict[int, str]
) -> None:
    writer = ring.Writer(tmp_path / "ring.bin", slots=4)
    page = ring_worker.Page(tmp_path, 0, 0, 0, 0)
    page.sample("a.png")
    guard = attempt.Guard(tmp_path, patience=0.1, endless=1.0, loading=True)
    ended: list[int] = []
    monkeypatch.setattr(attempt, "_loading", lambda pids: lines)
    monkeypatch.setattr(guard, "_end", ended.append)
    assert not guard._is_stuck(10.0), "what is seen for the first time is new"
    assert not guard._is_stuck(10.2) and guard._is_stuck(10.4) is bool(lines)
    assert bool(ended) is bool(lines) and (guard.stuck, guard.frame) == (set(lines), lines.get(7, ""))
    page.sample("b.png")
    assert not guard._is_stuck(20.0), "it has gone on"
    writer.close()


def test_who_is_in_the_middle_of_loading_is_seen_by_the_stack(tmp_path: Path) -> None:
    code = "import sys, time\nfrom ocrlab.recording.loading import Watched\n"
    code += "class Slow:\n    def __getitem__(self, i):\n        time.sleep(60)\n"
    code += "print(flush=True)\nWatched(Slow(), None, 0).guarded(lambda: Slow()[0])\n"
    (tmp_path / "slow.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    child = subprocess.Popen([sys.executable, tmp_path / "slow.py"], stdout=subprocess.PIPE, env=environment)
    try:
        assert child.stdout is not None and child.stdout.readline()
        time.sleep(0.5)
        (line,) = attempt._loading([child.pid, 1 << 22]).values()
        assert line.endswith("slow.py:5 Slow.__getitem__")
    finally:
        child.kill()
        child.wait()
