"""Colour codes stay around what is replaced."""

from __future__ import annotations

from ocrlab.redaction.replace import begins, ends, replaced


def test_codes_are_taken_out_and_put_back_where_they_were() -> None:
    def find(text: str) -> list[tuple[int, int, str]]:
        at = text.find("secret")
        return [(at, at + 6, "(x)")] if at >= 0 else []

    text = "\x1b[1ma\x1b[0m sec\x1b[31mret\x1b[0m b\x1b[2mc"
    assert replaced(text, [find]) == ("\x1b[1ma\x1b[0m (x)\x1b[31m\x1b[0m b\x1b[2mc", 1)
    assert replaced("\x1b[1mplain\x1b[0m", [find]) == ("\x1b[1mplain\x1b[0m", 0)


def test_characters_that_json_escapes_are_looked_at_and_stay_as_they_were_spelled() -> None:
    def find(text: str) -> list[tuple[int, int, str]]:
        at = text.find("a+b")
        return [(at, at + 3, "(x)")] if at >= 0 else []

    assert replaced(r"\u0061\u002Bb c\u003cd \u00e9", [find]) == (r"(x) c\u003cd \u00e9", 1)
    assert replaced("\u0041 \\u007f \\u0020 \\u0041\\\\u0041", [find]) == ("\u0041 \\u007f \\u0020 \\u0041\\\\u0041", 0)


def test_of_two_that_overlap_the_first_counts() -> None:
    assert replaced("abcdef", [lambda _: [(1, 4, "X"), (0, 2, "Y"), (4, 5, "Z")]]) == ("YcdZf", 2)


def test_where_words_begin_and_end() -> None:
    assert begins("x y", 2) and not begins("xy", 1) and begins("\\ny", 2) and begins("%2Fy", 3) and not begins("_y", 1)
    assert ends("xy", 2) and not ends("xyz", 2) and ends("xy z", 2)
