"""A command is run again and its end compared with the failure."""

from __future__ import annotations

import sys
from pathlib import Path

from ocrlab.debug.trials.trial import rerun_command
from ocrlab.debug.watch.supervisor import Options, watch


def failed(tmp_path: Path, source: str) -> tuple[Path, list[str]]:
    (tmp_path / "mine.py").write_text(source)
    command = [sys.executable, str(tmp_path / "mine.py")]
    watch(command, Options(tmp_path / "run"), output=lambda _stream, _data: None)
    return tmp_path / "run", command


def test_the_same_failure_comes_or_another_or_none(tmp_path: Path) -> None:
    run, command = failed(tmp_path, "x = {}\nx['boxes of page 12']\n")
    answer = rerun_command(run, command, str(tmp_path), count=2, timeout=60)
    assert answer["same"] == 2 and [rerun["same"] for rerun in answer["runs"]] == [True, True]
    (tmp_path / "mine.py").write_text("raise ValueError('something else')\n")
    assert rerun_command(run, command, str(tmp_path), count=1, timeout=60)["same"] == 0
    (tmp_path / "mine.py").write_text("import os; open('here', 'w').close()\n")
    answer = rerun_command(run, command, str(tmp_path), count=1, timeout=60)
    assert answer["same"] == 0 and answer["runs"][0]["told"] == "passed" and (tmp_path / "here").exists()


def test_what_hangs_is_ended(tmp_path: Path) -> None:
    run, command = failed(tmp_path, "raise KeyError('x')\n")
    (tmp_path / "mine.py").write_text("import time; time.sleep(600)\n")
    answer = rerun_command(run, command, str(tmp_path), count=1, timeout=2)
    assert answer["same"] == 0 and answer["runs"][0]["seconds"] < 30


def test_why_it_cannot_be_run(tmp_path: Path) -> None:
    run, command = failed(tmp_path, "raise KeyError('x')\n")
    assert "is not there" in rerun_command(run, command, str(tmp_path / "gone"), count=1, timeout=5)["why"]
    (tmp_path / "empty").mkdir()
    assert "no failure" in rerun_command(tmp_path / "empty", command, None, count=1, timeout=5)["why"]
