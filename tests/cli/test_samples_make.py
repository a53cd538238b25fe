"""`ocrlab samples make`: pages on the disk are what the answer says, and numbers out of range are wrong use."""

from __future__ import annotations

import json

import pytest

from ocrlab.cli import main


def test_the_answer_counts_what_was_written(tmp_path, capsys):
    folder = tmp_path / "made"
    assert main(["samples", "make", str(folder), "--train", "2", "--val", "1", "--seed", "3", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["train"], record["val"], record["seed"], record["folder"]) == (2, 1, 3, str(folder))
    assert len(list(folder.glob("*/images/*.jpg"))) == 3
    lines = [line for file in folder.glob("*/gts/*.txt") for line in file.read_text().splitlines()]
    assert len(lines) == record["lines"] > 0


@pytest.mark.parametrize("words", [["--train", "-1"], ["--seed", "-1"], ["--train", "0", "--val", "0"]])
def test_numbers_below_the_least_write_nothing(words, tmp_path, capsys):
    assert main(["samples", "make", str(tmp_path / "made"), *words]) == 2
    assert "--train" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
