"""What a child has left, read: whose loading failed and how, and a step that goes on for ever."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ocrlab.flight import trail
from ocrlab.flight.ring_worker import Worker
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
