"""The words of `ocrlab replay`, and what it answers where there is nothing to replay."""

import argparse
from pathlib import Path

import pytest

from ocrlab.cli import replay
from ocrlab.cli.parser import Parser
from ocrlab.debug.replay.replay_job import Replayed
from ocrlab.errors import RunError


def parsed(*words: str) -> argparse.Namespace:
    parser = Parser("ocrlab replay", "x", "")
    replay.arguments(parser)
    return parser.parse_args(words)


def test_a_folder_without_a_record_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="has no flight record"):
        replay.run(parsed(str(tmp_path)))


def test_table_warnings_sentence_and_file_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {}

    def fake_replay(run: Path, step: int | None, *, rank: int | None, timeout: float, **_options: object) -> Replayed:
        calls.update(run=run, step=step, rank=rank, timeout=timeout)
        rows = [("run", "result", "s"), ("traced", "killed by SIGSEGV", "3.1")]
        return Replayed(
            "first fault at step 3.", rows, {"warnings": ["one rank"]}, tmp_path / "replay.json", True,
            "the loss is equal", True,
        )  # fmt: skip

    monkeypatch.setattr(replay, "replay", fake_replay)
    answer = replay.run(parsed(str(tmp_path), "--step", "3", "--timeout", "60", "--json"))
    assert calls == {"run": tmp_path, "step": 3, "rank": None, "timeout": 60.0}
    assert answer.status == 0
    assert answer.record["path"] == str(tmp_path / "replay.json")
    for words in (
        "traced  killed by SIGSEGV",
        "the loss is equal",
        "warning: one rank",
        "first fault at step 3.",
        "replay.json",
    ):
        assert words in answer.text


def test_a_step_that_could_not_be_run_again_is_status_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Replayed(
        "step 3 could not be run again.", [("cell", "what", "s")], {"warnings": []}, None, False, "", False
    )
    monkeypatch.setattr(replay, "replay", lambda *_args, **_more: broken)
    assert replay.run(parsed(str(tmp_path))).status == 1
