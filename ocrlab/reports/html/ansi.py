"""What a program wrote to a terminal, as HTML: readable colours, rewritten lines settled, many lines folded."""

from __future__ import annotations

import colorsys
import functools
import re
from collections.abc import Iterator

FOLDED = 80  # lines; of more, the first and the last are shown and the rest is one click away
HEAD, TAIL = 30, 15
WRAPPED = 160  # characters; where a line is longer, lines are wrapped instead of scrolled
CONTRAST = 4.6  # between text and its ground, a little above what WCAG 2 asks for
INVERSE = "#dfe4ea"  # the ground of what is shown inverse, at any hour
GROUNDS = ("#fcecec", "#22282f")  # the darkest ground of text by day and the lightest by night
RGB = re.compile(r"(?P<ground>background-)?color:\s*rgb\((\d+),\s*(\d+),\s*(\d+)\)")
SPAN = re.compile(r'(<span(?: class="[^"]*")?) style="([^"]*)"')
RESET, PIECE = re.compile(r"\x1b\[0?m"), 20_000  # characters of a piece, more where no colour ends
CONTROL = re.compile(
    r"\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)|\[[0-9;?]*[A-HJKSTfhlnr])|[\x00-\x07\x0b\x0e-\x1a\x1c-\x1f]"
)


def block(text: str, kind: str = "", most: int | None = None) -> str:
    """Return text with ANSI colours as `<pre class=kind>`; `most` is how many characters of it are shown at all."""
    text, left = settled(text).rstrip("\n"), 0
    if most is not None and len(text) > most:
        left, text = len(text) - most, text[:most]
    lines = coloured(text).split("\n")
    kind = f"{kind} wrap" if any(len(line) > WRAPPED for line in text.split("\n")) else kind
    note = f'<p class="gone">{left:,} more characters are in the notebook</p>' if left else ""
    if len(lines) <= FOLDED:
        return f"{_pre(lines, kind)}{note}"
    middle = lines[HEAD:-TAIL]
    fold = f"<details><summary>{len(middle):,} more lines</summary>{_pre(middle, kind)}</details>"
    return f'<div class="long">{_pre(lines[:HEAD], kind)}{fold}{_pre(lines[-TAIL:], kind)}</div>{note}'


def _pre(lines: list[str], kind: str) -> str:
    return f'<pre class="{kind.strip()}">{chr(10).join(lines)}</pre>'


def settled(text: str) -> str:
    """Return text as it stands at last: a carriage return goes back to the start of its line, a backspace one back."""
    if "\r" in text:
        lines = text.replace("\r\n", "\n").split("\n")
        text = "\n".join(
            functools.reduce(_over, line.rstrip("\r").split("\r")) if "\r" in line else line for line in lines
        )
    return CONTROL.sub("", _backspaced(text) if "\b" in text else text)


def _backspaced(text: str) -> str:
    """Return text in which each backspace has taken the character before it, as far as its line goes."""
    characters: list[str] = []
    for character in text:
        if character != "\b":
            characters.append(character)
        elif characters and characters[-1] != "\n":
            characters.pop()
    return "".join(characters)


def _over(old: str, new: str) -> str:
    """Return a line on which something was written over something longer."""
    return new if "\x1b" in old + new or len(new) >= len(old) else new + old[len(new) :]


def coloured(text: str) -> str:
    """Return text with ANSI colours as escaped HTML; each line closes what it opens."""
    from nbconvert.filters.ansi import ansi2html

    return _each_line_closed(SPAN.sub(_readable, "".join(map(ansi2html, _pieces(text)))))


def _pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces that end where no colour holds: nbconvert copies the rest of a piece at each code."""
    start = 0
    for match in RESET.finditer(text):
        if match.end() - start > PIECE:
            yield text[start : match.end()]
            start = match.end()
    yield text[start:]


def _each_line_closed(html: str) -> str:
    """Close spans at the end of each line and open them again, as lines may come to stand in different places."""
    if "<span" not in html:
        return html
    lines, open_tag = [], ""
    for line in html.split("\n"):
        opened = open_tag
        for tag in re.findall(r"</?span[^>]*>", line):
            opened = "" if tag == "</span>" else tag
        lines.append(f"{open_tag}{line}{'</span>' if opened else ''}")
        open_tag = opened
    return "\n".join(lines)


def _readable(span: re.Match[str]) -> str:
    """Return the tag of a span with one of 256 or more colours, which is read by day and by night."""
    colours = {bool(colour["ground"]): tuple(map(int, colour.groups()[1:])) for colour in RGB.finditer(span[2])}
    rest = RGB.sub("", span[2]).strip("; ")
    fore, back = colours.get(False), colours.get(True)
    if back is not None:
        written = f"background-color:{_hex(back)};color:{_hex(_legible(fore or (0, 0, 0), back))}"
    elif fore is not None and "-bg" in span[1]:
        written = f"color:{_hex(_legible(fore, _rgb(INVERSE)))}"
    elif fore is not None:
        day, night = (_hex(_legible(fore, _rgb(ground))) for ground in GROUNDS)
        written = f"--day:{day};--night:{night};color:var(--ansi,{day})"
    else:
        written = ""
    style = ";".join(filter(None, (written, rest)))
    return f'{span[1]} style="{style}"' if style else span[1]


@functools.lru_cache(maxsize=1024)
def _legible(colour: tuple[int, ...], ground: tuple[int, ...]) -> tuple[int, ...]:
    """Return a colour of the same hue that is read on `ground`, as near to the given one as can be."""
    hue, light, full = colorsys.rgb_to_hls(*(part / 255 for part in colour))
    up = luminance(ground) < 0.18
    while contrast(colour, ground) < CONTRAST and 0 <= light <= 1:
        light += 0.02 if up else -0.02
        colour = tuple(round(255 * part) for part in colorsys.hls_to_rgb(hue, min(max(light, 0), 1), full))
    return colour


def contrast(first: tuple[int, ...], second: tuple[int, ...]) -> float:
    """Return the contrast of two colours, 1 to 21, as WCAG 2 defines it."""
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: tuple[int, ...]) -> float:
    """Return the relative luminance of a colour (R, G, B) in 0..255, 0 to 1."""
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (c / 255 for c in colour)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def _rgb(text: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(text[1:]))


def _hex(colour: tuple[int, ...]) -> str:
    return "#" + bytes(colour).hex()


def palette(ground: str) -> str:
    """Return the rules of the sixteen named colours, legible on a ground of `GROUNDS`."""
    colours = {name: _hex(_legible(_rgb(value), _rgb(ground))) for name, value in NAMED.items()}
    return "".join(f".ansi-{name}-fg{{color:{value}}}" for name, value in colours.items())


NAMED = {"black": "#3e424d", "red": "#c4302b", "green": "#11803f", "yellow": "#a06a00", "blue": "#2a6fc9"}
NAMED |= {"magenta": "#a035a0", "cyan": "#0b7f8f", "white": "#7d8590"}
NAMED |= {f"{name}-intense": value for name, value in NAMED.items()}
GROUNDED = f"[class*=ansi-][class*=-bg]{{color:#14181c;background:{INVERSE}}}" + "".join(
    f".ansi-{name}-bg,.ansi-{name}-intense-bg{{background:{ground}!important}}"
    for name, ground in (("red", "#ffc9c7"), ("green", "#bfe8cd"), ("yellow", "#fbe3a1"), ("blue", "#c5dcf8"))
)
