"""`ocrlab samples`: its subcommands, and wrong use of them."""

from __future__ import annotations

import pytest

from ocrlab.cli import main


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ([], 2, "COMMAND"),
        (["shew", "data"], 2, "invalid choice: 'shew'"),
        (["show", "{folder}/none"], 2, "none"),
        (["show", "{folder}", "--out", "sheet.gif"], 2, ".png"),
        (["show", "{folder}", "--pages", "0"], 2, "--pages"),
        (["show", "{folder}", "--seed", "1"], 2, "--seed"),
        (["make", "{folder}/new", "--train", "-1"], 2, "--train"),
        (["make", "{folder}/new", "--seed", "one"], 2, "--seed"),
        (["convert", "{folder}", "{folder}-new"], 2, "--to"),
        (["convert", "{folder}", "{folder}-new", "--to", "voc"], 2, "icdar"),
        (["convert", "{folder}/none", "{folder}-new", "--to", "coco"], 2, "none"),
    ],
)
def test_wrong_use(words, status, message, tmp_path, capsys):
    assert main(["samples", *(word.format(folder=tmp_path) for word in words)]) == status
    assert message in capsys.readouterr().err
