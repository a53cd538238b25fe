"""The terminal's table: it fits the terminal and needs no colour."""

from __future__ import annotations

import re

import pytest

from ocrlab.hardware.doctor import text_table
from ocrlab.records import Check

CHECKS = [
    Check("interpreter", "ok", "CPython 3.11.7, 64 bit, x86_64, its own environment", step=1),
    Check("import torch", "fail", "died of SIGILL " * 12, "a build for this processor", "python -c 'x' " * 9, 2, "a.b"),
    Check("a name that is far too long for its column", "warn", "something", "else", "true", 3),
    Check("WSL2", "skip", "this is not WSL — nor anything else", step=8),
]


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_it_fits_the_terminal(columns: int) -> None:
    look = text_table.TerminalStyle(columns)
    lines = [line for check in CHECKS for line in text_table.finding(check, look)]
    lines += [text_table.heading(2, look), *text_table.summary(CHECKS, 3.0, look)]
    assert max(map(len, lines)) <= columns
    text = " ".join("".join(lines).split())
    for check in CHECKS:
        assert check.name in text
    assert all(word in text for word in ("need", "do", "cause", "a.b"))


def test_sign_and_word_are_both_there() -> None:
    for check in CHECKS:
        [first, *_] = text_table.finding(check, text_table.TerminalStyle(80))
        assert first.split()[:2] == [text_table.SIGNS[check.judgement], check.judgement]


def test_colours_change_nothing_else() -> None:
    for check in CHECKS:
        plain, painted = (text_table.finding(check, text_table.TerminalStyle(80, colours)) for colours in (False, True))
        assert [re.sub(r"\x1b\[[\d;]*m", "", line) for line in painted] == plain
        assert painted != plain
