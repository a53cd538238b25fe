"""Reading order and common letters."""

from __future__ import annotations

import itertools

import pytest

from ocrlab.evaluation.metrics import cleval


@pytest.mark.parametrize(("column", "other", "wanted"), [
    ("", "abc", ""), ("abc", "abc", "abc"), ("total 9.50", "tota1 9,50", "tota 950"), ("abcbdab", "bdcaba", "bdab"),
    ("ab", "ba", "b"),
])  # fmt: skip
def test_the_common_letters_are_the_longest_there_are(column: str, other: str, wanted: str) -> None:
    assert cleval.common(column, other) == wanted


def test_no_longer_common_letters_exist() -> None:
    def within(letters: str, text: str) -> bool:
        rest = iter(text)
        return all(letter in rest for letter in letters)

    for column, other in itertools.product(("abca", "bcab", "aabb", "cc"), repeat=2):
        counts = cleval.common(column, other)
        every = ["".join(some) for size in range(5) for some in itertools.combinations(column, size)]
        assert within(counts, column) and within(counts, other)
        assert len(counts) == max(len(some) for some in every if within(some, other))


def test_detections_are_read_in_the_order_of_the_characters_they_take() -> None:
    assert cleval.reading_order([4, 7], [{2, 3}, {0, 1}], 4) == [7, 4]
    assert cleval.reading_order([4], [set()], 3) == [4]
    assert cleval.reading_order([1, 2, 3], [{0}, set(), set()], 2) == [1, 2], "3 is never let in"


def test_a_letter_is_read_once() -> None:
    left = ["tot", "al"]
    assert cleval.cross_out("total", left, [0, 1]) == 5 and left == ["", ""]
    left = ["aab"]
    assert cleval.cross_out("ab", left, [0]) == 2 and left == ["a"]
