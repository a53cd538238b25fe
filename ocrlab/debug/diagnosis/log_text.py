"""The text of a program as numbered lines without terminal noise, prefixes and quoted source; of a huge log an excerpt.

Nobody can list the prefixes that loggers, schedulers and people put before a line. But a frame of Python has a known
shape: what stands before it stands before its neighbours.
"""

from __future__ import annotations

import functools
import html
import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import BinaryIO

from ocrlab.debug.diagnosis.log_records import Line, LogRecords, read_records

FRAME_MARKS = ('File "', "Thread ", "thread ", "Process ")
PREFIXED_FRAME = re.compile(
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
# What a handler does to report, and a step to leave something for later.
WRITES = re.compile(
    r"open\([^)\n]*['\"][wax]b?\+?['\"]|\.write\w*\(|\bmakedirs\(|\.mkdir\(|\.touch\(|\bsave\w*\(|\.to_\w+\(|dump\w*\("
    r"|FileHandler\(|SummaryWriter\(|\bexport\w*\("
)
BAR = re.compile(r"\d%|%\||it/s|s/it")
LONGEST = 4000  # characters of a line that are looked at: bounds every regular expression
FEW_LINES, ALIKE = 200, 6  # shorter logs are kept whole; of lines alike the first and the last six are searched
MOST_ODD = 0.3  # of the characters of a text
DIGITS = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
FROZEN = re.compile(r"<frozen [\w.]+>")  # a module of Python's own in a traceback: nothing froze
LEFT_OUT = "[... {} lines left out by ocrlab ...]"
GAP = re.compile(re.escape(LEFT_OUT).replace(r"\{\}", r"(\d{1,15})"))
PROGRESS = re.compile(
    r"(?i)^\W{0,3}(?:epoch|step|iter(?:ation)?|batch)\b\W{0,3}\[?\d|%\||\d(?:it/s|s/it)|\bloss\W{1,3}\d"
)
# What a program's line begins with: spaces, brackets, a date, an exception, a level, the name of a tool.
PRINTED = re.compile(
    r"\s|[\[>]|\d{4}[-/]|[DIWEF]\d{4} "
    r"|(?:\w+\.)*\w*(?:Error|Warning|Exception)\b(?! (?:about|for|in|on|when|while|after|with|at)\b)"
    r"|(?:INFO|WARN|DEBUG|ERROR)\w*\b|(?:ssh|wandb|git|fatal|nvcc|gcc|ld|make|kernel|NVRM|systemd\S*)\b: "
    r"|[A-Z]\w+ing\b[^\n]{0,200}\.{3}$"  # says what it is about to do
)
WORD = re.compile(r"[^\W\d_]{2,}(?:['’][a-z]+)?[.,;:!?)]*|[Ia],?")
FEW_WORDS, MOSTLY = 4, 0.75  # words of a sentence, and how much of its line they are
MOST_LINES = 0.8  # of a text that a person wrote
PERSON = re.compile(
    r"(?<![\w./-])(?:I(?:'m|'ve| am| have| had| get| got| run| ran| use| tried| try| set| think| don't| do| see| train)"
    r"|[Ww]e(?: have| had| get| got| run| ran| use| tried| see| train)|[Mm]y|[Oo]ur|me|[Hh]elp|[Tt]hanks"
    r"|[Aa]ny(?:one|body)|[Ss]ome(?:one|body))(?![\w./-])|我"
)
ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,500}(?:\x07|\x1b\\)|[@-Z\\^_])")
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
ENTITY = re.compile(r"&(?:quot|lt|gt|amp|#x?27|#39|nbsp);")
TAG = re.compile(r"</?(?:br|pre|code|p|div|span|tt|samp)\b[^<>\n]{0,80}>")
# A traceback or a dump of stacks in one line: of JSON, a repr or an error file.
ESCAPED = re.compile(r'\\n  File \\*"|\\n(?:Thread (?:0x[0-9a-f]+|\d+)|Process \d+:) ')
FENCE = re.compile(r"\s*(?:`{3,}|~{3,})\s*[\w+-]{0,20}\s*")  # of code in a page of Markdown
# An exception after a logger's or a person's own words, unless these say that it was handled.
EXCEPTION_AFTER_WORDS = re.compile(
    r"(?! |\t|ocrlab: |(?:E {3,})?(?:\w+\.){0,6}(?!Error:|ERROR:|Traceback:|Exception:)[A-Z]\w{0,60}(?:[:(]|$))"
    r"(?!.{0,200}(?:WARN|Warning|INFO|DEBUG|[Ii]gnor|[Rr]etry|[Ss]kip|[Cc]aught|[Ff]all(?:s|ing)? ?back|except ))"
    r"(?P<lead>.{1,160}?(?<![\w.(\[]))(?P<raised>(?:\w+\.){0,6}[A-Z]\w{1,60}(?:Error|Exception|Exit): \S)",
    re.ASCII,
)
# What torchrun, srun --label, mpirun, kubectl, docker compose and logging put before a program's own words.
PREFIX = re.compile(
    r"^(?:\[(?:rank)?\d{1,5}(?:,\d+)?\](?:<std(?:out|err)>)?:\s?"
    r"|\[default\d+\]:\s?"
    r"|\(\w[\w.-]{0,40} pid=\d+(?:, ip=[\d.]+)?\)\s"
    r"|\d{1,5}:\s(?=\S*(?:Error|Traceback|  File))"
    r"|[\w.-]{1,40}\s+\|\s)"
)
HEAD, TAIL, AROUND, CHUNK = 64 * 1024, 256 * 1024, 8 * 1024, 1024 * 1024  # bytes
MOST_WINDOWS = 12
# Literals that stand in the first error of nearly every failure; bytes.find is fast enough for gigabytes.
ERROR_MARKS = (
    *(b"Traceback (most recent call last)", b"CUDA error", b"Error:", b"out of memory", b"Fatal Python error"),
    *(b"terminate called", b"Killed", b"Xid", b"Assertion", b"oom-kill", b"CANCELLED", b"Segmentation fault"),
)


def strip_prefixes(lines: list[str]) -> list[str]:
    """Return the lines of a log, as many as were given; tracebacks and stacks without what stands before each line.

    Lines of another level than the traceback's own keep what says so: a warning must stay one.
    """
    forms: dict[str, Callable[[str], str | None]] = {}
    stripped = list(lines)
    for index, text in enumerate(lines):
        frame = PREFIXED_FRAME.match(text) if any(mark in text for mark in FRAME_MARKS) else None
        if frame is None or stripped[index] != text or (len(forms) >= MOST_FORMS and frame["before"] not in forms):
            continue
        bare = forms.setdefault(frame["before"], _prefix_stripper(frame["before"]))
        _strip_around(stripped, lines, index, bare)
    return stripped


def _strip_around(stripped: list[str], lines: list[str], index: int, bare: Callable[[str], str | None]) -> None:
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


def _prefix_stripper(before: str) -> Callable[[str], str | None]:
    """Return what takes a prefix of the same form from a line, with other numbers and times; None where it has none."""
    head = before.rstrip()
    tail = len(before) - len(head)
    kinds = {"level": LEVEL, "id": r"[0-9a-f-]+", "number": r"\d+", "space": r"\s+"}
    form = PIECE.sub(lambda piece: kinds.get(piece.lastgroup or "", re.escape(piece[0])), head).removeprefix(r"\s+")
    pattern = re.compile(r"\s*" * bool(head) + form + rf"(?:\s{{{tail}}}|\s*$)")
    levels = re.findall(LEVEL, head)

    def bare(line: str) -> str | None:
        prefix = pattern.match(line)
        if prefix is None:
            return None
        rest = line[prefix.end() :] if re.findall(LEVEL, prefix[0]) == levels else line
        return rest.rstrip().removesuffix(head).rstrip() if head in BOX else rest

    return bare


@dataclass(frozen=True)
class LogText:
    """A cleaned text in one piece, with the way back from an offset to the number of its line, and its records."""

    name: str
    text: str  # quoted source is blank in it
    starts: tuple[int, ...]
    numbers: tuple[int, ...]
    progress: tuple[int, ...] = ()  # numbers of lines that show steps, epochs or a bar
    records: LogRecords = field(default_factory=LogRecords)

    @functools.cached_property
    def lines(self) -> list[Line]:
        """The text line by line."""
        return [Line(number, text) for number, text in zip(self.numbers, self.text.split("\n"), strict=False)]

    @functools.cached_property
    def printed(self) -> bool:
        """Whether any line looks like one of a program: a step, a traceback, a date or level before it."""
        return bool(self.progress) or any(PRINTED.match(line) for line in self.text.split("\n") if line.strip())

    def line(self, offset: int) -> Line:
        """Return the line that holds this offset of `text`."""
        index = max(bisect_right(self.starts, offset) - 1, 0)
        end = self.starts[index + 1] - 1 if index + 1 < len(self.starts) else len(self.text)
        number = self.numbers[index] if self.numbers else 1
        return Line(number, self.text[self.starts[index] : end] if self.starts else "")


def is_sentence(line: str) -> bool:
    """Return whether a line reads like a sentence: words, and nothing that a program puts before its own."""
    words = line.split()
    plain = sum(1 for word in words if WORD.fullmatch(word))
    return not PRINTED.match(line) and len(words) >= FEW_WORDS and plain >= MOSTLY * len(words)


def by_person(text: str) -> bool:
    """Return whether a person wrote nearly all of a text and speaks of themselves: a claim, not a measurement."""
    if PERSON.search(text) is None:
        return False
    lines = [line for line in text.split("\n") if line.strip()]
    return sum(map(is_sentence, lines)) >= MOST_LINES * len(lines)


def clean_lines(data: bytes | str) -> list[Line]:
    """Return the lines of a log: no NUL bytes, colours or launcher prefixes; of a progress bar its last state.

    A line keeps the number that an editor shows for it. Lines longer than 4000 characters keep both ends.
    """
    text = data.decode("utf-8", errors="replace") if isinstance(data, bytes) else data
    text = _plain(text).replace("\r\n", "\n")
    odd = CONTROL.search(text) is not None
    lines, skipped = list[Line](), 0
    for count, raw in enumerate(text.split("\n"), 1):
        number = count + skipped
        gap = GAP.fullmatch(raw) if raw.startswith("[") else None
        if gap:
            skipped += int(gap[1]) - 1
            continue
        states = _line_states(raw)
        for state in states:
            if "\ufffd" in state and junk(state):
                state = ""  # random bytes spell anything
            text = PREFIX.sub("", CONTROL.sub("", state) if odd else state, count=1)
            if len(text) > LONGEST:
                text = f"{text[: LONGEST // 2 - 5]} [...] {text[5 - LONGEST // 2 :]}"
            lines.append(Line(number, text.rstrip()))
        if not states:
            lines.append(Line(number, ""))
    if lines and not lines[-1].text:
        lines.pop()
    bare = strip_prefixes([line.text for line in lines])
    return [Line(line.number, part) for line, text in zip(lines, bare, strict=True) for part in _split_exception(text)]


def _split_exception(text: str) -> list[str]:
    """Return a line, or where an exception stands after other words these and the exception."""
    match = EXCEPTION_AFTER_WORDS.match(text) if re.search(r"(?:Error|Exception|Exit): ", text) else None
    return [text[: match.start("raised")].rstrip(), text[match.start("raised") :]] if match else [text]


def _plain(text: str) -> str:
    """Return a text without colours and byte order mark, and as it was before a web page escaped it."""
    text = (ANSI.sub("", text) if "\x1b" in text else text).removeprefix("\ufeff")
    return html.unescape(TAG.sub("", text)) if ENTITY.search(text) else text


def _line_states(raw: str) -> list[str]:
    """Return what a line holds: the states of a progress bar, or the lines of a traceback written as one."""
    if "\\n" in raw and ESCAPED.search(raw):
        return raw.replace("\\n", "\n").replace('\\"', '"').split("\n")
    if "\r" not in raw:
        return [raw] if raw.strip() and not FENCE.fullmatch(raw) else []
    states = [state for state in raw.split("\r") if state.strip()]
    # A message that a bar was redrawn over is a state of its own; of the bar the last one is enough.
    return ([state for state in states[:-1] if not BAR.search(state)] + states[-1:])[-20:]


def junk(text: str) -> bool:
    """Return whether a text is mostly bytes of something else: undecodable or control characters, not counting NUL."""
    signs = text.replace("\0", "").replace("\b", "")
    odd = len(CONTROL.findall(signs)) + signs.count("\ufffd")
    return odd > MOST_ODD * len(signs)


def clean_log(name: str, data: bytes | str, advice: re.Pattern[str] | None = None) -> LogText:
    """Return a text as one searchable page. Quoted source and lines that `advice` matches are blank: not evidence."""
    lines = clean_lines(data)
    if advice is not None:
        text = advice.sub(_blank, "\n".join(line.text for line in lines))
        lines = [Line(line.number, part) for line, part in zip(lines, text.split("\n"), strict=True)] if lines else []
    records = read_records(lines)
    starts, numbers, parts, offset = [], [], [], 0
    for index in _varied(lines):
        text = FROZEN.sub(_blank, lines[index].text)
        text = " " * len(text) if index in records.quoted else text
        starts.append(offset)
        numbers.append(lines[index].number)
        parts.append(text)
        offset += len(text) + 1
    progress = tuple(line.number for line in lines if PROGRESS.search(line.text))
    return LogText(name, "\n".join(parts), tuple(starts), tuple(numbers), progress, records)


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def _varied(lines: list[Line]) -> list[int]:
    """Return the indices of the lines without the bulk of those that differ in their numbers only, as steps do."""
    if len(lines) < FEW_LINES:
        return [index for index, line in enumerate(lines) if line.text]
    shapes: dict[str, list[int]] = {}
    for index, line in enumerate(lines):
        if line.text:
            shapes.setdefault(DIGITS.sub("0", line.text[:200]), []).append(index)
    return sorted({index for places in shapes.values() for index in (*places[:ALIKE], *places[-ALIKE:])})


def read_excerpt(file: BinaryIO) -> str:
    """Return head, tail and the neighbourhood of the first errors of a stream; a line says what is left out.

    `log.clean` counts the lines left out, so that numbers stay true. Memory is bounded; raises OSError.
    """
    pieces: list[tuple[int, bytes]] = []  # number of its first line, counted from 0, and its text
    start, rest = file.read(HEAD + TAIL), file.read(CHUNK)
    if not rest:
        return start.decode("utf-8", errors="replace")
    pieces.append((0, start[:HEAD]))
    line, tail, chunk = 0, b"", start + rest
    while chunk:
        chunk += file.readline(CHUNK)
        if len(pieces) < MOST_WINDOWS:
            pieces += _around_marks(chunk, line, MOST_WINDOWS - len(pieces))
        line += chunk.count(b"\n")
        tail = (tail + chunk)[-TAIL:]
        chunk = file.read(CHUNK)
    pieces.append((line - tail.count(b"\n"), tail))
    return _join_pieces(pieces)


def _around_marks(chunk: bytes, line: int, most: int) -> list[tuple[int, bytes]]:
    """Return the surroundings of the marks in a chunk that starts at a line."""
    pieces: list[tuple[int, bytes]] = []
    end = 0
    places = sorted(place for mark in ERROR_MARKS if (place := chunk.find(mark)) >= 0)
    for place in places[:most]:
        if place < end:
            continue
        begin = chunk.rfind(b"\n", 0, max(place - AROUND // 4, 0)) + 1
        end = min(place + AROUND, len(chunk))
        pieces.append((line + chunk.count(b"\n", 0, begin), chunk[begin:end]))
    return pieces


def _join_pieces(pieces: list[tuple[int, bytes]]) -> str:
    lines: dict[int, str] = {}
    for start, data in pieces:
        for offset, text in enumerate(data.decode("utf-8", errors="replace").split("\n")):
            if len(text) > len(lines.get(start + offset, "")):
                lines[start + offset] = text
    last, parts = -1, []
    for number in sorted(lines):
        if number - last > 1:
            parts.append(LEFT_OUT.format(number - last - 1))
        parts.append(lines[number])
        last = number
    return "\n".join(parts)
