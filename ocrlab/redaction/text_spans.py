"""Stretches of a text, and a text in which they are replaced.

Colour codes, and embedded pictures, whose base64 may hold anything, are taken out before, and put back where they were.
A printable character that JSON spells `\\u002b`, also inside other JSON, is looked at as itself, and is spelled as it
was where it stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

SECRET = "(secret)"
Span = tuple[int, int, str]  # of characters: from, up to, and what stands there instead
Find = Callable[[str], Iterable[Span]]
Mark = tuple[int, str, str]  # where it is in the text that is looked at, how it was spelled, and what is looked at
MARK = re.compile(  # codes also as JSON and repr write them
    r"data:image/[a-z]{3,4};base64,[A-Za-z0-9+/=]{100,}|(?:\x1b|\\(?:u001[bB]|x1[bB]|033|e))\[[0-9;]*[A-Za-z]"
    r"|\\{1,8}u(?P<letter>00(?:2[1-9A-Fa-f]|[3-6][\dA-Fa-f]|7[\dA-Ea-e])"
    r"|0(?:0[a-fA-F]|[1-9a-fA-F][\da-fA-F])[\da-fA-F]|[1-9a-cA-Ce-fE-F][\da-fA-F]{3}|[dD][0-7][\da-fA-F]{2})"
)
PICTURE = "data:image"
ESCAPED = re.compile(r"(?:%[0-9A-Fa-f]{2}|\\[nrtbf]|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2})$")


def replace_spans(text: str, finders: Iterable[Find]) -> tuple[str, int]:
    """Return a text after each of `finders` has had its turn, and how many stretches were replaced."""
    marks: list[Mark] = []
    if "\x1b" in text or "\\" in text or ";base64," in text:
        text, marks = _without_marks(text)
    count = 0
    for find in finders:
        spans = _separate(find(text))
        if spans:
            text, marks = _replace(text, spans, marks)
            count += len(spans)
    return (_with_marks(text, marks) if marks else text), count


def begins_word(text: str, at: int, joined: str = "_") -> bool:
    """Return whether a word begins at `at`: no letter, digit or `joined` character before it, except of an escape."""
    if at == 0 or not (text[at - 1].isalnum() or text[at - 1] in joined):
        return True
    return ESCAPED.search(text[max(0, at - 6) : at]) is not None


def ends_word(text: str, at: int, joined: str = "_") -> bool:
    """Return whether a word ends before `at`."""
    return at >= len(text) or not (text[at].isalnum() or text[at] in joined)


def _separate(spans: Iterable[Span]) -> list[Span]:
    """Return spans in their order; of those that overlap the first one, as long as all of them."""
    separate: list[Span] = []
    for start, end, new in sorted(spans, key=lambda span: (span[0], -span[1])):
        if not separate or start >= separate[-1][1]:
            separate.append((start, end, new))
        elif end > separate[-1][1]:
            separate[-1] = (separate[-1][0], end, separate[-1][2])
    return separate


def _replace(text: str, spans: list[Span], marks: list[Mark]) -> tuple[str, list[Mark]]:
    """Replace spans; marks move with the text around them, codes inside a span move after its replacement."""
    parts: list[str] = []
    moved: list[Mark] = []
    done = length = index = 0
    for start, end, new in [*spans, (len(text) + 1, len(text) + 1, "")]:
        while index < len(marks) and marks[index][0] < end:
            at, spelled, letter = marks[index]
            index += 1
            if at < start or (at == start and not letter):
                moved.append((length + at - done, spelled, letter))
            elif not letter:
                moved.append((length + start - done + len(new), spelled, letter))
        parts += [text[done:start], new]
        length += len(parts[-2]) + len(new)
        done = end
    return "".join(parts), moved


def _without_marks(text: str) -> tuple[str, list[Mark]]:
    parts: list[str] = []
    marks: list[Mark] = []
    done = length = 0
    for match in MARK.finditer(text):
        letter = chr(int(match["letter"], 16)) if match["letter"] else ""
        letter = PICTURE if match.group().startswith(PICTURE) else letter  # a value of its key: not empty
        parts += [text[done : match.start()], letter]
        length += match.start() - done
        marks.append((length, match.group(), letter))
        length += len(letter)
        done = match.end()
    return "".join([*parts, text[done:]]), marks


def _with_marks(text: str, marks: list[Mark]) -> str:
    parts, done = [], 0
    for at, spelled, letter in marks:
        parts += [text[done:at], spelled]
        done = at + len(letter)
    return "".join([*parts, text[done:]])
