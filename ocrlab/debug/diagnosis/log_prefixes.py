"""What a logger, a scheduler or a person has put before every line of a traceback or a dump of stacks.

Nobody can list the forms. But a frame of Python has a known shape: what stands before it stands before its
neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Callable

MARKS = ('File "', "Thread ", "thread ", "Process ")
FRAME = re.compile(
    r"^(?P<before>.{1,200}?)"
    r'(?:  File "[^"\n]{1,500}", line (?:\d+|\?\?\?),? in '
    r"|(?:Current t|T)hread 0x[0-9a-f]+ (?:\[[^\]\n]{0,80}\] )?\(most recent call first\)"
    r"|Thread (?:0x[0-9a-f]+|\d+) \((?:idle|active)|Process \d+: (?=\S))"
)
HEADER = re.compile(r"Traceback \(most|(?:Current t|T)hread |Process \d|Fatal Python error")
LEVEL = r"\b(?:DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b"
PIECE = re.compile(
    rf"(?P<level>{LEVEL})|(?P<id>\b(?=[a-f-]{{0,40}}\d)[0-9a-f]{{4,}}(?:-[0-9a-f]{{2,}}){{1,5}}\b)|(?P<number>\d+)"
    r"|(?P<space>\s+)|(?P<other>.)"
)
BOX = ("│", "|", "║", "┃")  # round a traceback, on both sides
MOST_FORMS = 8  # of prefixes in one text


def without(lines: list[str]) -> list[str]:
    """Return the lines of a log, as many as were given; tracebacks and stacks without what stands before each line.

    Lines of another level than the traceback's own keep what says so: a warning must stay one.
    """
    forms: dict[str, Callable[[str], str | None]] = {}
    stripped = list(lines)
    for index, text in enumerate(lines):
        frame = FRAME.match(text) if any(mark in text for mark in MARKS) else None
        if frame is None or stripped[index] != text or (len(forms) >= MOST_FORMS and frame["before"] not in forms):
            continue
        bare = forms.setdefault(frame["before"], _form(frame["before"]))
        _strip(stripped, lines, index, bare)
    return stripped


def _strip(stripped: list[str], lines: list[str], index: int, bare: Callable[[str], str | None]) -> None:
    """Take the prefix from the lines around a frame: up to the head of its traceback, down as far as it goes."""
    rests: dict[int, str] = {}
    for at in range(index - 1, -1, -1):
        rest = bare(lines[at])
        if rest is None or stripped[at] != lines[at]:
            break
        if not rest.startswith((" ", "\t")) and not HEADER.match(rest):
            break
        rests[at] = rest
        if HEADER.match(rest):
            break
    for at in range(index, len(lines)):
        rest = bare(lines[at])
        if rest is None:
            break
        rests[at] = rest
    if len(rests) > 1:  # one line alone shows no habit
        for at, rest in rests.items():
            stripped[at] = rest


def _form(before: str) -> Callable[[str], str | None]:
    """Return what takes a prefix of the same form from a line, with other numbers and times; None where it has none."""
    tail = len(before) - len(before.rstrip())
    head = before[: len(before) - tail]
    parts = [_part(piece) for piece in PIECE.finditer(head)]
    pattern = re.compile(r"\s*" * bool(head) + "".join(parts).removeprefix(r"\s+") + rf"(?:\s{{{tail}}}|\s*$)")
    levels = re.findall(LEVEL, head)

    def bare(line: str) -> str | None:
        prefix = pattern.match(line)
        if prefix is None:
            return None
        rest = line[prefix.end() :] if re.findall(LEVEL, prefix[0]) == levels else line
        return rest.rstrip().removesuffix(head).rstrip() if head in BOX else rest

    return bare


def _part(piece: re.Match[str]) -> str:
    kinds = {"level": LEVEL, "id": r"[0-9a-f-]+", "number": r"\d+", "space": r"\s+"}
    return kinds.get(piece.lastgroup or "", re.escape(piece[0]))
