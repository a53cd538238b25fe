"""Each sample in a fork of its own: what one does harms nobody else."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ocrlab.debug.replay.tracing import per_sample_forks as traced_alone

CODE = """
import os, sys, time
from pathlib import Path
from ocrlab.debug.replay.tracing import per_sample_forks as traced_alone
way = traced_alone.BatchMaker(["a", "b", "c"], 3, list)
part = traced_alone.each(1.0, Path(sys.argv[1]), way, {})
if part == [1]:
    os.kill(os.getpid(), 11)
while part == [2]:
    time.sleep(0.01)
os._exit(0)
"""


def test_a_crash_and_a_hang_are_distinguished_and_the_rest_goes_well(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CODE, str(tmp_path)]
    subprocess.run(command, cwd=Path(__file__).parents[4], env=environment, check=True, timeout=120)
    tried = json.loads((tmp_path / "alone.json").read_text())["tried"]
    assert [part["names"] for part in tried] == [["a"], ["b"], ["c"]]
    assert [part["signal"] for part in tried] == [None, signal.Signals.SIGSEGV.name, None]
    assert [part["hung"] for part in tried] == [False, False, True]
    assert [part["same"] for part in tried] == [False, True, True]


def tried_parts(count: int, bad: Callable[[list[int]], bool]) -> list[list[int]]:
    tried: list[dict[str, Any]] = []
    for part in traced_alone._parts(count, tried):
        tried.append({"samples": part, "same": bad(part)})
    return [trial["samples"] for trial in tried]


def test_after_the_culprit_the_rest_is_tried_and_where_none_is_each_in_turn_is_left_out() -> None:
    assert tried_parts(3, lambda part: 1 in part) == [[0], [1], [2], [0, 2]]
    assert tried_parts(3, lambda part: len(part) > 1 and 2 in part)[3:] == [[1, 2], [0, 2], [0, 1]]
    assert tried_parts(2, lambda part: True) == [[0], [1]]
    many = tried_parts(40, lambda part: 33 in part)
    assert [33] in many and many[-1] == [i for i in range(40) if i != 33] and len(many) < 16


@pytest.mark.parametrize(("part", "like", "wanted"), [
    ({"hung": True, "place": {"path": "a"}}, {"kind": "hang", "path": "a"}, True),
    ({"hung": True, "place": {"phase": "loss"}}, {"kind": "hang", "phase": "forward"}, False),
    ({"hung": True, "place": {"path": "a.cell"}}, {"kind": "hang", "path": "a"}, True),
    ({"hung": True}, {"kind": "crash"}, False),
    ({"exit_code": 7, "place": {"path": "a"}}, {"kind": "crash", "path": "a"}, True),
    ({"exit_code": 0, "place": {"path": "a"}}, {"kind": "crash", "path": "a"}, False),
    ({"exit_code": 1, "fault": {"kind": "exception"}}, {"kind": "crash"}, False),
    (
        {"fault": {"exception": "ValueError: one", "path": "a"}},
        {"kind": "exception", "exception": "OSError: x"},
        False,
    ),
    ({"fault": {"exception": "ValueError: one"}}, {"kind": "exception", "exception": "ValueError: two"}, True),
    ({"fault": {"kind": "nonfinite"}}, {"kind": "nonfinite"}, True),
    ({"exit_code": 0}, {"kind": "nonfinite"}, False),
])  # fmt: skip
def test_what_a_part_does_counts_only_where_it_is_the_same_fault(part: Any, like: Any, wanted: bool) -> None:
    nothing = {"hung": False, "signal": None, "exit_code": None, "fault": None, "place": None}
    assert traced_alone.same({**nothing, **part}, like) is wanted


def test_a_process_that_has_initialised_cuda_is_not_forked(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(traced_alone.os, "fork", lambda: pytest.fail("it was forked"))

    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(traced_alone, "leave", leave)
    with pytest.raises(SystemExit) as ended:
        traced_alone.each(1.0, tmp_path, traced_alone.BatchMaker([], 0, list), {})
    assert ended.value.code == 1 and traced_alone.REFUSED in capfd.readouterr().err
