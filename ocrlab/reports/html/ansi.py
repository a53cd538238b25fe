"""What a program wrote to a terminal, as HTML: readable colours, rewritten lines settled, many lines folded."""

from __future__ import annotations

import re
from collections.abc import Iterator

FOLDED = 80  # lines; of more, the first and the last are shown and the rest is one click away
HEAD, TAIL = 30, 15
WRAPPED = 160  # characters; with a longer line, lines are wrapped instead of scrolled
RESET, PIECE = re.compile(r"\x1b\[0?m"), 20_000  # characters of a piece, more where no colour ends
SPAN = re.compile(r"<span[^>]*>")
CONTROL = re.compile(
    r"\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)|\[[0-9;?]*[A-HJKSTfhlnr])|[\x00-\x07\x0b\x0e-\x1a\x1c-\x1f]"
)


def block(text: str, kind: str = "", most: int | None = None) -> str:
    """Return text with ANSI colours as `<pre class=kind>`; `most` is how many characters of it are shown at all."""
    text = settled(text).rstrip("\n")
    note = ""
    if most is not None and len(text) > most:
        note = f'<p class="gone">{len(text) - most:,} more characters are in the notebook</p>'
        text = text[:most]
    lines = coloured(text).split("\n")
    kind = f"{kind} wrap".strip() if any(len(line) > WRAPPED for line in text.split("\n")) else kind

    def pre(part: list[str]) -> str:
        return f'<pre class="{kind}">{chr(10).join(part)}</pre>'

    if len(lines) <= FOLDED:
        return f"{pre(lines)}{note}"
    middle = lines[HEAD:-TAIL]
    fold = f"<details><summary>{len(middle):,} more lines</summary>{pre(middle)}</details>"
    return f'<div class="long">{pre(lines[:HEAD])}{fold}{pre(lines[-TAIL:])}</div>{note}'


def settled(text: str) -> str:
    """Return text as it stands at last: a carriage return goes back to the start of its line, a backspace one back."""
    if "\r" in text:
        text = "\n".join(map(_rewritten, text.replace("\r\n", "\n").split("\n")))
    if "\b" in text:
        characters: list[str] = []
        for character in text:
            if character != "\b":
                characters.append(character)
            elif characters and characters[-1] != "\n":
                characters.pop()
        text = "".join(characters)
    return CONTROL.sub("", text)


def _rewritten(line: str) -> str:
    """Return a line after each of its carriage returns: the rest of a longer line stays visible after a shorter one."""
    first, *others = line.rstrip("\r").split("\r")
    for new in others:
        first = new if "\x1b" in first + new else new + first[len(new) :]
    return first


def coloured(text: str) -> str:
    """Return text with ANSI colours as escaped HTML; each line closes what it opens.

    One of 256 or more colours becomes a variable, which the style sheet turns into one that is legible.
    """
    from nbconvert.filters.ansi import ansi2html

    html = "".join(map(ansi2html, _pieces(text)))
    html = SPAN.sub(lambda tag: tag[0].replace("background-color:", "--fill:").replace("color:", "--ink:"), html)
    if "<span" not in html:
        return html
    lines, open_tag = [], ""  # lines may end up in different places
    for line in html.split("\n"):
        tags = re.findall(r"</?span[^>]*>", line)
        still_open = (tags[-1] if tags[-1] != "</span>" else "") if tags else open_tag
        lines.append(f"{open_tag}{line}{'</span>' if still_open else ''}")
        open_tag = still_open
    return "\n".join(lines)


def _pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces that end with a reset of colours: nbconvert copies the rest of a piece at each code."""
    start = 0
    for match in RESET.finditer(text):
        if match.end() - start > PIECE:
            yield text[start : match.end()]
            start = match.end()
    yield text[start:]
