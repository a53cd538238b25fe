"""The parser that every command shares, and its tables."""

from __future__ import annotations

import pytest

from ocrlab.cli import main
from ocrlab.cli.parser import Parser, table
from ocrlab.errors import ConfigError


def test_nothing_is_guessed(capsys):
    for words in (["train", "--jso"], ["train", "--nonsense"]):
        assert main(words) == 2
        assert "train: unrecognized arguments" in capsys.readouterr().err
    assert main(["samples", "make", "x", "--jso"]) == 2
    assert "samples make: unrecognized arguments: --jso. The nearest is --json" in capsys.readouterr().err


def test_only_a_command_with_settings_says_how_they_are_written():
    plain, takes = Parser("ocrlab x", "do x", ""), Parser("ocrlab y", "do y", "")
    takes.add_argument("settings", nargs="*", metavar="CONFIG.yaml|key=value")
    takes.add_argument("--resume")
    with pytest.raises(ConfigError, match=r"^x: unrecognized arguments: --lr. See ocrlab x --help.$"):
        plain.parse_args(["--lr"])
    with pytest.raises(ConfigError, match=r"--lr. Settings are written key=value; see ocrlab y --help.$"):
        takes.parse_args(["--lr"])
    with pytest.raises(ConfigError, match=r"The nearest is --resume; see ocrlab y --help.$"):
        takes.parse_args(["--resum=x"])


def test_tables_are_aligned():
    assert table([["IoU", "hmean"], [0.5, "0.93"]]) == "IoU  hmean\n0.5  0.93"
