from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ocrlab.cli import memory_watch
from ocrlab.cli.parser import Answer, Parser
from ocrlab.cli.streams_and_signals import outputs_to_stderr
from ocrlab.errors import ConfigError


def watched(*words: str) -> Answer:
    parser = Parser("ocrlab memory watch", "watch", memory_watch.EXAMPLES)
    memory_watch.arguments(parser)
    return memory_watch.run(parser.parse_args(list(words)))


def test_a_process_in_lines_and_as_a_block(capfd: pytest.CaptureFixture[str]) -> None:
    done = watched(str(os.getpid()), "--seconds", "0.1", "--count", "3")
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "host" in lines[0]
    assert f"({os.getpid()})" in done.text
    assert done.record["host"]["rss"] > 0
    assert done.record["growth"]["host"]["points"] == 3


def test_json_lines_reach_the_stdout_reserved_for_answers(capfd: pytest.CaptureFixture[str]) -> None:
    with outputs_to_stderr(True):
        print("somebody else")
        done = watched(str(os.getpid()), "--seconds", "0.1", "--count", "3", "--json")
    out = capfd.readouterr().out
    records = [json.loads(line) for line in out.splitlines()]
    assert len(records) == 2
    assert {record["pid"] for record in [*records, done.record]} == {os.getpid()}


def test_it_ends_with_its_process(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1)"])
    done = watched(str(child.pid), "--seconds", "0.1")
    assert done.record["pid"] == child.pid
    child.wait()
    with pytest.raises(ConfigError, match="no process"):
        watched(str(child.pid))


def test_the_whole_machine_where_no_run_lives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    done = watched("--count", "1")
    assert "the whole machine" in done.text
    assert done.record["host"]["total"] > done.record["host"]["available"] > 0


@pytest.mark.parametrize("words", [("--seconds", "0"), ("--count", "0")])
def test_wrong_use(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        watched(*words)
