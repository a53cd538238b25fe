"""`ocrlab report`: its words."""

from __future__ import annotations

import importlib.util

import pytest

from ocrlab.cli import main, report


@pytest.mark.parametrize("word", [w for w in report.WORDS if importlib.util.find_spec(f"ocrlab.cli.report_{w}")])
def test_every_word_has_help(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", word, "--help"]) == 0
    assert "examples:" in capsys.readouterr().out


def test_a_word_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report"]) == 2
    assert "WORD" in capsys.readouterr().err
    assert main(["report", "hmtl"]) == 2
    assert "hmtl" in capsys.readouterr().err
