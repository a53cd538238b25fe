"""What a pattern needs is found by reading it, and a search that looks for it first finds the same."""

from __future__ import annotations

import re

import pytest

from ocrlab.debug.diagnosis import catalogue
from ocrlab.debug.diagnosis.regex_prefilter import SHORT, SearchableText, required_words

FILL = "a line of a training that says nothing at all\n" * (SHORT // 40)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("out of memory", {"out of memory"}),
        ("(?i)Out Of Memory", {"out of memory"}),
        (r"\bCUDA error: (?:an? )?illegal", {"cuda error: "}),
        ("disk full|no space left", {"disk full", "no space left"}),
        (r"(?:rank|worker) \d+ died", {" died"}),
        (r"killed|\d+", None),
        ("colou?r", {"colo"}),
        ("ab+cd", {"ab"}),
        ("x{0,3}tail", {"tail"}),
        ("x{2,3}tail", {"tail"}),
        (r"\[Errno 28\]", {"[errno 28]"}),
        (r"[\]\[]left[^]\n]right", {"right"}),
        (r"(?!never)(?<!no )really", {"really"}),
        (r"(?=[(])opened", {"opened"}),
        (r"(?P<name>named) \1", {"named"}),
        (r"it\x27s", {"it's"}),
        ("显存不足", {"显存不足"}),
        (r"\S", None),
    ],
)
def test_words_that_a_pattern_needs(pattern: str, words: set[str] | None) -> None:
    assert required_words(pattern) == (None if words is None else frozenset(words))


def test_a_search_finds_in_a_long_text_what_the_pattern_finds() -> None:
    patterns = [pattern for sign in catalogue.load().signs() for pattern in (*sign.all, *sign.none)]
    examples = [example for entry in catalogue.load().entries.values() for example in entry.examples]
    assert sum(required_words(pattern.pattern) is not None for pattern in patterns) > 0.9 * len(patterns)
    matched = 0
    for example in examples:
        searched = SearchableText(f"{FILL}{example}")
        for pattern in (candidate for candidate in patterns if candidate.search(example)):
            matched += searched.search(pattern) is not None
            assert searched.may(pattern), pattern.pattern
    assert matched > len(examples)


def test_a_text_that_lacks_the_words_is_not_searched() -> None:
    searched = SearchableText(FILL)
    assert not searched.may(re.compile("out of memory"))
    assert searched.may(re.compile(r"\S"))
    assert [match[0] for match in searched.finditer(re.compile("says"))][:1] == ["says"]
    assert list(searched.finditer(re.compile("screams"))) == []


def test_a_short_text_is_searched_at_once() -> None:
    assert SearchableText("a line").may(re.compile("out of memory"))
    assert SearchableText("a line").search(re.compile("line")) is not None
