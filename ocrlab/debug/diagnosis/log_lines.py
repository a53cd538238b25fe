"""Text of a program as numbered lines, without what terminals and launchers add."""

from __future__ import annotations

import functools
import html
import re
from bisect import bisect_right
from dataclasses import dataclass

from ocrlab.debug.diagnosis import log_prefixes
from ocrlab.debug.diagnosis.regex_prefilter import SearchableText

LONGEST = 4000  # characters of a line that are looked at: bounds every regular expression
FEW_LINES, ALIKE = 200, 6  # shorter logs are kept whole; of lines alike the first and the last six are searched
MOST_ODD = 0.3  # of the characters of a text
DIGITS = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
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
# An exception behind a logger's or a person's own words, unless these say that it was handled.
LED = re.compile(
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


@dataclass(frozen=True)
class Line:
    """One line: its 1-based number in the file as people see it, and its text."""

    number: int
    text: str


@dataclass(frozen=True)
class LogText:
    """A cleaned text in one piece, with the way back from an offset to the number of its line."""

    name: str
    text: str
    starts: tuple[int, ...]
    numbers: tuple[int, ...]
    progress: tuple[int, ...] = ()  # numbers of lines that show steps, epochs or a bar
    writes: tuple[int, ...] = ()  # numbers of lines of shown source that write a file

    @functools.cached_property
    def searched(self) -> SearchableText:
        """Return the text as one that is searched for many patterns."""
        return SearchableText(self.text)

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


def clean(data: bytes | str) -> list[Line]:
    """Return the lines of a log: no NUL bytes, colours or launcher prefixes; of a progress bar its last state.

    A line keeps the number that an editor shows for it. Lines longer than 4000 characters keep both ends.
    """
    return list(_cleaned(data.decode("utf-8", errors="replace") if isinstance(data, bytes) else data))


@functools.lru_cache(maxsize=2)
def _cleaned(text: str) -> tuple[Line, ...]:
    """Return the lines of a log; what asks for those of the same text again gets them at once."""
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
            text = _shorten(PREFIX.sub("", CONTROL.sub("", state) if odd else state, count=1)).rstrip()
            lines.append(Line(number, text))
        if not states:
            lines.append(Line(number, ""))
    if lines and not lines[-1].text:
        lines.pop()
    bare = log_prefixes.without([line.text for line in lines])
    return tuple(
        Line(line.number, part) for line, text in zip(lines, bare, strict=True) for part in _split_exception(text)
    )


def _split_exception(text: str) -> list[str]:
    """Return a line, or where an exception stands behind other words these and the exception."""
    match = LED.match(text) if "Error: " in text or "Exception: " in text or "Exit: " in text else None
    return [text[: match.start("raised")].rstrip(), text[match.start("raised") :]] if match else [text]


def bare(text: str) -> str:
    """Return a text with as many lines, without colours and what launchers, loggers and people put before a line."""
    lines = [PREFIX.sub("", line, count=1) for line in _plain(text).split("\n")]
    return "\n".join(log_prefixes.without(lines))


def opened(text: str) -> list[Line]:
    """Return the lines of a text, with those of a traceback or a dump that stands in one line."""
    raws = enumerate(text.split("\n"), 1)
    return [Line(number, part) for number, raw in raws for part in (_unescaped(raw) or [raw])]


def _unescaped(raw: str) -> list[str]:
    """Return the lines that were written as one; none where it is an ordinary line."""
    if "\\n" not in raw or not ESCAPED.search(raw):
        return []
    return raw.replace("\\n", "\n").replace('\\"', '"').split("\n")


def _plain(text: str) -> str:
    """Return a text without colours and byte order mark, and as it was before a web page escaped it."""
    text = (ANSI.sub("", text) if "\x1b" in text else text).removeprefix("\ufeff")
    return html.unescape(TAG.sub("", text)) if ENTITY.search(text) else text


def _line_states(raw: str) -> list[str]:
    """Return what a line holds: the states of a progress bar, or the lines of a traceback written as one."""
    if lines := _unescaped(raw):
        return lines
    if "\r" not in raw:
        return [raw] if raw.strip() and not FENCE.fullmatch(raw) else []
    states = [state for state in raw.split("\r") if state.strip()]
    # A message that a bar was redrawn over is a state of its own; of the bar the last one is enough.
    return ([state for state in states[:-1] if not _bar(state)] + states[-1:])[-20:]


def junk(text: str) -> bool:
    """Tell whether a text is mostly bytes of something else: undecodable or control characters, not counting NUL."""
    signs = text.replace("\0", "").replace("\b", "")
    odd = len(CONTROL.findall(signs)) + signs.count("\ufffd")
    return odd > MOST_ODD * len(signs)


def log_text(name: str, data: bytes | str, advice: re.Pattern[str] | None = None) -> LogText:
    """Return a text as one searchable page; what `advice` matches is blanked, so that it is never evidence."""
    starts, numbers, parts, offset = [], [], [], 0
    lines = clean(data)
    for line in _varied(lines):
        starts.append(offset)
        numbers.append(line.number)
        parts.append(line.text)
        offset += len(line.text) + 1
    text = "\n".join(parts)
    if advice is not None:
        text = advice.sub(lambda match: " " * len(match[0]), text)
    progress = tuple(line.number for line in lines if PROGRESS.search(line.text))
    return LogText(name, text, tuple(starts), tuple(numbers), progress)


def _varied(lines: list[Line]) -> list[Line]:
    """Return the lines without the bulk of those that differ in their numbers only: steps, bars, repeated warnings."""
    if len(lines) < FEW_LINES:
        return [line for line in lines if line.text]
    shapes: dict[str, list[int]] = {}
    for index, line in enumerate(lines):
        if line.text:
            shapes.setdefault(DIGITS.sub("0", line.text[:200]), []).append(index)
    indices = {index for places in shapes.values() for index in (*places[:ALIKE], *places[-ALIKE:])}
    return [lines[index] for index in sorted(indices)]


def _bar(state: str) -> bool:
    return "%|" in state or "it/s" in state or "s/it" in state or re.search(r"\d+%", state) is not None


def _shorten(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2 - 5
    return f"{text[:half]} [...] {text[-half:]}"
