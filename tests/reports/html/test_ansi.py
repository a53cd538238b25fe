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


@pytest.mark.parametrize("code", range(16, 256))
def test_each_of_256_colours_is_read_by_day_and_by_night(code: int) -> None:
    html = ansi.coloured(f"\x1b[38;5;{code}mx\x1b[0m")
    colours = [re.search(rf"--{name}:(#\w+)", html) for name in ("day", "night")]
    for ground, colour in zip(ansi.GROUNDS, colours, strict=True):
        assert colour is not None
        assert ansi.contrast(ansi._rgb(colour[1]), ansi._rgb(ground)) >= 4.5


def test_what_has_a_ground_of_its_own_is_read_on_it() -> None:
    html = ansi.coloured("\x1b[48;2;20;30;40m\x1b[38;2;30;30;30mx\x1b[0m")
    match = re.search(r"background-color:(#\w+);color:(#\w+)", html)
    assert match is not None
    assert ansi.contrast(ansi._rgb(match[1]), ansi._rgb(match[2])) >= 4.5


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


def test_luminance_and_contrast_are_those_of_wcag() -> None:
    assert ansi.contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert ansi.contrast((119, 119, 119), (255, 255, 255)) == pytest.approx(4.48, abs=0.01)


def test_many_backspaces_and_many_colours_take_no_time() -> None:
    begun = time.process_time()
    assert ansi.settled("a\n" + "b" * 200_000 + "\b" * 300_000 + "c") == "a\nc"
    code = "\x1b[31mx\x1b[0m"
    assert ansi.coloured(f"{code}\n" * 60_000).count("ansi-red-fg") == 60_000
    assert time.process_time() - begun < 6  # it was minutes
