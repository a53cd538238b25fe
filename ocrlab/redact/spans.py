"""A text in which some stretches are replaced; colour codes are taken out before, and put back where they were."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

Span = tuple[int, int, str]  # of characters: from, up to, and what stands there instead
Find = Callable[[str], Iterable[Span]]
CODE = re.compile(r"(?:\x1b|\\(?:u001[bB]|x1[bB]|033|e))\[[0-9;]*[A-Za-z]")  # also as JSON and repr write them
ESCAPED = re.compile(r"(?:%[0-9A-Fa-f]{2}|\\[nrtbf]|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2})$")


def replaced(text: str, finders: Iterable[Find]) -> tuple[str, int]:
    """Return a text after each of `finders` has had its turn, and how many stretches were replaced."""
    codes: list[tuple[int, str]] = []
    if "[" in text and ("\x1b" in text or "\\" in text):
        text, codes = _without_codes(text)
    count = 0
    for find in finders:
        spans = _apart(find(text))
        if spans:
            text, codes = _put(text, spans, codes)
            count += len(spans)
    return (_with_codes(text, codes) if codes else text), count


def begins(text: str, at: int, joined: str = "_") -> bool:
    """Tell whether a word begins at `at`: no letter, digit or one of `joined` before it, unless that ends an escape."""
    if at == 0 or not (text[at - 1].isalnum() or text[at - 1] in joined):
        return True
    return ESCAPED.search(text[max(0, at - 6) : at]) is not None


def ends(text: str, at: int, joined: str = "_") -> bool:
    """Tell whether a word ends before `at`."""
    return at >= len(text) or not (text[at].isalnum() or text[at] in joined)


def _apart(found: Iterable[Span]) -> list[Span]:
    """Return spans in their order; of two that overlap the one that begins first, or is longer."""
    kept: list[Span] = []
    for span in sorted(found, key=lambda span: (span[0], -span[1])):
        if not kept or span[0] >= kept[-1][1]:
            kept.append(span)
    return kept


def _put(text: str, spans: list[Span], codes: list[tuple[int, str]]) -> tuple[str, list[tuple[int, str]]]:
    """Replace spans; codes move with the text around them, those inside a span go behind what replaced it."""
    parts, done, length, moved, rest = [], 0, 0, [], iter(codes)
    code = next(rest, None)
    for start, end, new in spans:
        while code is not None and code[0] <= start:
            moved.append((length + code[0] - done, code[1]))
            code = next(rest, None)
        parts += [text[done:start], new]
        length += start - done + len(new)
        while code is not None and code[0] < end:
            moved.append((length, code[1]))
            code = next(rest, None)
        done = end
    while code is not None:
        moved.append((length + code[0] - done, code[1]))
        code = next(rest, None)
    return "".join([*parts, text[done:]]), moved


def _without_codes(text: str) -> tuple[str, list[tuple[int, str]]]:
    parts: list[str] = []
    codes: list[tuple[int, str]] = []
    done = length = 0
    for found in CODE.finditer(text):
        parts.append(text[done : found.start()])
        length += found.start() - done
        codes.append((length, found.group()))
        done = found.end()
    return "".join([*parts, text[done:]]), codes


def _with_codes(text: str, codes: list[tuple[int, str]]) -> str:
    parts, done = [], 0
    for at, code in codes:
        parts += [text[done:at], code]
        done = at
    return "".join([*parts, text[done:]])
