"""The parser that every command shares, and its tables."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ocrlab.cli import main
from ocrlab.cli.parser import Parser, add_json, add_subcommands, table
from ocrlab.errors import ConfigError


def test_wrong_use_is_a_single_clear_error_and_nothing_is_guessed():
    parser = Parser("ocrlab train", "train a detector", "  ocrlab train")
    add_json(parser)
    assert parser.parse_args(["--json"]).json
    for words in (["--jso"], ["--nonsense"]):
        with pytest.raises(ConfigError, match=r"train: unrecognized arguments.*ocrlab train --help"):
            parser.parse_args(words)


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


def test_help_shows_the_examples():
    assert "examples:\n  ocrlab train data=DIR" in Parser("ocrlab x", "do x", "  ocrlab train data=DIR\n").format_help()


def test_a_word_is_read_by_its_own_file_and_by_no_other(monkeypatch):
    def of_word(command, word):
        if word == "train":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        return SimpleNamespace(EXAMPLES="  ocrlab x look", arguments=lambda parser: add_json(parser))

    def read(*words):
        parser = Parser("ocrlab x", "do x", "")
        add_subcommands(parser, "x", {"look": "look at it", "train": "needs more"})
        return parser.parse_args(words)

    monkeypatch.setattr("ocrlab.cli.parser.import_subcommand", of_word)
    assert read("look", "--json").json
    with pytest.raises(ConfigError, match="^x look: unrecognized arguments: --jso"):
        read("look", "--jso")
    with pytest.raises(ModuleNotFoundError):
        read("train", "--json")
    with pytest.raises(ConfigError, match="x: .*WORD"):
        read()


def test_the_help_of_a_word_has_its_examples(capsys):
    assert main(["samples", "make", "--help"]) == 0
    assert "examples:\n  ocrlab samples make" in capsys.readouterr().out


def test_tables_are_aligned():
    assert table([["IoU", "hmean"], [0.5, "0.93"]]) == "IoU  hmean\n0.5  0.93"
