"""A child can do no harm: whatever it does, its end is reported in time, and nothing of it is left."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ocrlab.hardware.doctor import probe_runner


@pytest.fixture
def run(planted: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Return a function that runs a planted probe; afterwards nothing that bears our mark may live."""
    monkeypatch.setenv("OCRLAB_TESTED", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def call(function: str, deadline: float = 20, **more: Any) -> probe_runner.ProbeResult:
        return probe_runner.run(sys.executable, planted, function, more.pop("arguments", {}), deadline=deadline, **more)

    yield call
    limit = time.monotonic() + 5
    while left(tmp_path) and time.monotonic() < limit:
        time.sleep(0.01)
    assert left(tmp_path) == []


def left(place: Path) -> list[int]:
    """Return the processes that a child of this test has left behind."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if f"OCRLAB_TESTED={place}".encode() in (entry / "environ").read_bytes():
                    pids.append(int(entry.name))
            except OSError:
                continue
    return pids


def test_it_answers(run: Any) -> None:
    ran = run("answer", arguments={"number": 3})
    assert (ran.answer, ran.done, ran.ended, ran.code, ran.signal) == ({"told": {"number": 3}}, True, "itself", 0, None)


def test_the_last_stage_before_a_death_is_in_the_answer(run: Any) -> None:
    assert run("stages").answer["at"] == "the second stage"


def test_an_illegal_instruction_leaves_its_stack(run: Any) -> None:
    assert "Fatal Python error: Illegal instruction" in run("illegal").errors


def test_a_sleeping_hang_ends_when_idle_and_says_where(run: Any) -> None:
    ran = run("hang", deadline=60, idle=1)
    assert ran.ended == "idle"
    assert ran.seconds < 30
    assert "in hang" in ran.errors


def test_a_busy_hang_ends_at_the_deadline(run: Any) -> None:
    ran = run("spin", deadline=3, idle=1)
    assert ran.ended == "deadline"
    assert "in spin" in ran.errors


def test_the_whole_family_of_a_hanging_child_is_ended(run: Any) -> None:
    assert run("hang_with_family", deadline=1).ended == "deadline"


def test_an_orphan_that_holds_the_pipes_does_not_hold_the_report_up(run: Any) -> None:
    ran = run("orphan_holds_the_pipes")
    assert (ran.done, ran.ended, ran.code) == (True, "itself", 0)


def test_a_gigabyte_of_output_fills_nothing(run: Any) -> None:
    ran = run("flood")
    assert ran.ended == "flood"
    assert probe_runner.FLOOD < ran.printed < 2 * probe_runner.FLOOD
    assert len(ran.out) <= probe_runner.TAIL


def test_a_flood_of_answers_is_stopped_too(run: Any) -> None:
    assert run("flood_the_channel").ended == "flood"


def test_an_interpreter_that_is_none(planted: Path, tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        ran = probe_runner.run(str(path), planted, "answer", {}, deadline=5)
        assert ran.ended == "unstarted"
    text = tmp_path / "text"
    text.write_text("no program\n")
    text.chmod(0o755)
    assert probe_runner.run(str(text), planted, "answer", {}, deadline=5).ended == "unstarted"


def test_the_childs_world(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "mine"))
    ran = run("environment", arguments={"names": ["WANDB_MODE", "PYTHONPATH"]})
    answer = ran.answer
    assert answer["told"] == {"WANDB_MODE": "disabled", "PYTHONPATH": str(tmp_path / "mine")}
    assert answer["path"][:2] == [str(tmp_path), str(tmp_path / "mine")]  # as for a script in this folder
    assert not any(place.endswith("ocrlab/hardware/doctor") for place in answer["path"])
    assert answer["limits"][0] == 0  # no core files
    answer = run("environment", arguments={"names": []}, own=True).answer
    assert str(tmp_path) not in answer["path"] and str(tmp_path / "mine") not in answer["path"]
    assert str(probe_runner.ROOT) in answer["path"]


def test_a_module_of_this_folder_does_not_break_the_child_itself(run: Any, tmp_path: Path) -> None:
    for name in ("json", "traceback", "signal", "ctypes"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')\n")
    assert run("answer").done
