"""The parser that every command shares, and its tables."""

from __future__ import annotations

import pytest

from ocrlab.cli.answer import Parser, add_json, table
from ocrlab.errors import ConfigError


def test_wrong_use_is_one_clear_error_and_nothing_is_guessed():
    parser = Parser("ocrlab train", "train a detector", "  ocrlab train")
    add_json(parser)
    assert parser.parse_args(["--json"]).json
    for words in (["--jso"], ["--nonsense"]):
        with pytest.raises(ConfigError, match=r"train: unrecognized arguments.*ocrlab train --help"):
            parser.parse_args(words)


def test_help_shows_the_examples():
    assert "examples:\n  ocrlab train data=DIR" in Parser("ocrlab x", "do x", "  ocrlab train data=DIR\n").format_help()


def test_tables_are_aligned():
    assert table([["IoU", "hmean"], [0.5, "0.93"]]) == "IoU  hmean\n0.5  0.93"
