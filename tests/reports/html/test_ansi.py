"""Terminal output as HTML: what was rewritten, what is coloured, what is long."""

from __future__ import annotations

import re
import time

import pytest

from ocrlab.reports.html import ansi


@pytest.mark.parametrize(
    ("text", "settled"),
    [
        ("1%\r2%\r100%\n", "100%\n"),
        ("a long line\rshort", "short" + "a long line"[5:]),
        ("one\r\ntwo\r\n", "one\ntwo\n"),
        ("ab\bc", "ac"),
        ("\b\bx", "x"),
        ("\x1b]0;title\x07x\x1b[2K\x1b[1Ay", "xy"),
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
    ],
)
def test_text_as_it_stands_at_last(text: str, settled: str) -> None:
    assert ansi.settled(text) == settled


def test_text_is_escaped_and_lines_close_their_colours() -> None:
    lines = ansi.coloured("\x1b[31m<b>\nnext\x1b[0m").split("\n")
    assert lines == ['<span class="ansi-red-fg">&lt;b&gt;</span>', '<span class="ansi-red-fg">next</span>']


def test_any_of_256_colours_is_a_variable_of_the_style_sheet() -> None:
    """tests/browser/test_report.py shows that every one of them is legible by day and by night."""
    html = ansi.coloured("\x1b[38;5;28mx\x1b[0m \x1b[48;2;20;30;40m\x1b[38;2;30;30;30my\x1b[0m")
    assert re.findall(r'style="([^"]*)"', html) == [
        "--ink: rgb(0,135,0)",
        "--ink: rgb(30,30,30); --fill: rgb(20,30,40)",
    ]


def test_many_lines_are_folded_and_none_is_lost() -> None:
    html = ansi.block("".join(f"line {n}\n" for n in range(5000)))
    assert "<summary>4,955 more lines</summary>" in html
    assert re.findall(r"line (\d+)", html) == [str(n) for n in range(5000)]
    assert "<details" not in ansi.block("x\n" * ansi.FOLDED)


def test_long_lines_wrap_and_text_beyond_a_limit_is_counted() -> None:
    assert '<pre class="stdout wrap">' in ansi.block("x" * 200, "stdout")
    assert '<pre class="stdout">' in ansi.block("x" * 100, "stdout")
    html = ansi.block("x" * 100, most=30)
    assert f'<pre class="">{"x" * 30}</pre>' in html
    assert "70 more characters" in html


def test_many_backspaces_and_many_colours_take_no_time() -> None:
    begun = time.process_time()
    assert ansi.settled("a\n" + "b" * 200_000 + "\b" * 300_000 + "c") == "a\nc"
    code = "\x1b[31mx\x1b[0m"
    assert ansi.coloured(f"{code}\n" * 60_000).count("ansi-red-fg") == 60_000
    assert time.process_time() - begun < 6  # it was minutes
