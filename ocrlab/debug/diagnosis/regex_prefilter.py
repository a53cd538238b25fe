"""Words without which a regular expression cannot match: most patterns need no search in a text that lacks them."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

SHORT = 4096  # characters of a text that is searched sooner than its words are looked for
LEAST, MOST = 2, 40  # letters of a word that is worth looking for, and words that are cheaper than the search itself
OPTIONAL = re.compile(r"[?*]|\{0?,\d*\}|\{0\}")
REPEATED = re.compile(r"(?:[?*+]|\{\d*,?\d*\})[?+]?")
ESCAPED = {"n": "\n", "t": "\t"}
SETS = "AbBdDsSwWZ123456789"  # after a backslash: no letter of their own
GROUP = re.compile(r"\?(?::|[aimsx]+:|P<\w+>)")
LOOKS = re.compile(r"\?<?[=!]")
INLINE = re.compile(r"\(\?[aimsx]+\)")


@functools.cache
def required_words(pattern: str) -> frozenset[str] | None:
    """Return words, case folded, of which every match holds at least one; None where no such words are known.

    It reads the syntax that the catalogue uses; what it does not know of a pattern only makes it know fewer words.
    """
    words = _group_words(_Reader(pattern))
    return words if words is not None and len(words) <= MOST else None


class SearchableText:
    """A text, and which words it holds: a search that costs little where the pattern cannot match."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._folded = text.casefold() if len(text) >= SHORT else ""
        self._holds: dict[str, bool] = {}

    def may(self, pattern: re.Pattern[str]) -> bool:
        """Tell whether a pattern can match here: whether a word is there that it needs."""
        words = required_words(pattern.pattern) if self._folded else None
        return words is None or any(map(self._has, words))

    def search(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Return what `pattern.search` returns for the text."""
        return pattern.search(self.text) if self.may(pattern) else None

    def finditer(self, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
        """Return what `pattern.finditer` returns for the text."""
        return pattern.finditer(self.text) if self.may(pattern) else iter(())

    def _has(self, word: str) -> bool:
        if word not in self._holds:
            self._holds[word] = word in self._folded
        return self._holds[word]


class _Reader:
    """A pattern, and how far it is read."""

    def __init__(self, pattern: str) -> None:
        self.pattern = INLINE.sub("", pattern)
        self.at = 0

    def peek(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def take(self) -> str:
        self.at += 1
        return self.pattern[self.at - 1]

    def quantifier(self) -> str:
        """Return the quantifier that stands here, or nothing, and go past it."""
        match = REPEATED.match(self.pattern, self.at)
        self.at = match.end() if match else self.at
        return match[0] if match else ""


def _group_words(text: _Reader) -> frozenset[str] | None:
    """Return the words of alternatives up to a closing bracket: those of all, None where one has none."""
    branches = [_branch_words(text)]
    while text.peek() == "|":
        text.take()
        branches.append(_branch_words(text))
    words_of_branches = [words for words in branches if words is not None]
    return frozenset().union(*words_of_branches) if len(words_of_branches) == len(branches) else None


def _branch_words(text: _Reader) -> frozenset[str] | None:
    """Return the best words of one alternative: those whose shortest is longest."""
    candidates, run = list[frozenset[str]](), ""
    for letter, words in _parts(text):
        if letter:
            run += letter
            continue
        candidates += [frozenset({run.casefold()})] * (len(run) >= LEAST)
        candidates += [words] if words else []
        run = ""
    return max(candidates, key=lambda words: (min(map(len, words)), -len(words)), default=None)


def _parts(text: _Reader) -> Iterator[tuple[str, frozenset[str] | None]]:
    """Yield what stands in one alternative: a letter that must be there, or a break with the words of a group."""
    while (sign := text.peek()) and sign not in "|)":
        text.take()
        if sign == "(":
            words = _group(text)
            yield "", None if OPTIONAL.match(text.quantifier()) else words
            continue
        letter = _letter(sign, text)
        repeated = text.quantifier()
        if letter and not (repeated and OPTIONAL.match(repeated)):
            yield letter, None
        if not letter or repeated:
            yield "", None
    yield "", None


def _group(text: _Reader) -> frozenset[str] | None:
    """Return the words of a group, none of one that only looks ahead or back, and go past its end."""
    looks = LOOKS.match(text.pattern, text.at)
    opened = looks or GROUP.match(text.pattern, text.at)
    text.at = opened.end() if opened else text.at
    words = _group_words(text)
    text.take()
    return None if looks else words


def _letter(sign: str, text: _Reader) -> str:
    """Return the letter that a sign stands for, nothing for a set of letters or a place, and go past it."""
    if sign == "[":
        text.at += text.peek() == "^"
        text.take()  # a bracket that stands first is one of the set
        while text.take() != "]" or _escapes(text):
            pass
        return ""
    if sign != "\\":
        return "" if sign in ".^$" else sign
    letter = text.take()
    if letter == "x":
        text.at += 2
        return chr(int(text.pattern[text.at - 2 : text.at], 16))
    return "" if letter in SETS else ESCAPED.get(letter, letter)


def _escapes(text: _Reader) -> bool:
    """Tell whether the sign before the last one read is a backslash that is none's own."""
    before = text.pattern[: text.at - 1]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1
