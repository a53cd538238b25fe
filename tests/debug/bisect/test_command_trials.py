from __future__ import annotations

from pathlib import Path

import pytest

from ocrlab.debug.bisect import command_trials, factors, sample_lists
from ocrlab.errors import ConfigError

FLIPS = factors.of_words(["workers=8:0", "OMP_NUM_THREADS=8:1", "amp=--amp:"])


def test_words_are_filled_in_and_the_rest_is_environment() -> None:
    start = command_trials.starter(["train.py", "--workers={workers}", "{amp}", "", "x{y}z{"], FLIPS)
    assert start(0b111, None, Path()) == (["train.py", "--workers=8", "--amp", "", "x{y}z{"], {"OMP_NUM_THREADS": "8"})
    assert start(0, None, Path()) == (["train.py", "--workers=0", "", "x{y}z{"], {"OMP_NUM_THREADS": "1"})


def test_a_name_in_braces_that_is_no_factor_is_refused() -> None:
    with pytest.raises(ConfigError, match="stands for no factor"):
        command_trials.starter(["train.py", "--workers={worker}"], FLIPS)


@pytest.mark.parametrize("words", [["--workers", "8"], ["--workers=8"], ["workers=8"]])
def test_a_value_that_was_left_in_the_command_is_refused(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="never be flipped"):
        command_trials.starter(["train.py", *words], FLIPS)


def test_samples_that_the_command_does_not_take_are_refused(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("a\nb\n")
    found = sample_lists.of_word(f"rows={tmp_path / 'list.txt'}")
    with pytest.raises(ConfigError, match="never be flipped") as error:
        command_trials.starter(["train.py", "--list", str(tmp_path / "list.txt")], [], found)
    assert "Needed: {rows}" in str(error.value)
    assert command_trials.starter(["train.py"], [], found)(0, None, tmp_path)[1] == {"rows": str(tmp_path / "list.txt")}
