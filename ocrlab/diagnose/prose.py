"""Which lines of a text a person wrote: what stands there is told, not measured."""

from __future__ import annotations

import functools
import re

WORD = re.compile(r"[^\W\d_]{2,}(?:['’][a-z]+)?[.,;:!?)]*|[Ia],?")
ASKS = re.compile(
    r"(?i)\W{0,3}(?:how|what|which|where|when|who|why|is|are|can|could|should|shall|will|would|does|do|did|has|have|may"
    r"|please|thanks?|feature|request|add|adds|support|docs?|documentation|pr|refactor|question|any"
    r"|i (?:just )?(?:want|would like|wish|was wondering|wonder)(?: to (?:know|ask|understand))?)\b"
    r"|[^\n]{0,200}[?？]\s*\Z"
)
PREFIX = re.compile(r"[\w./-]{1,40}: (?=[A-Z]{4}|\w+: )|_{4}")  # of a program
NAME = re.compile(r"[^\W\d_]{2,}")
FEW, MOSTLY = 4, 0.75  # words of a sentence, and how much of its line they are
CHINESE = re.compile("[\u4e00-\u9fff]{4}")
PRINTED = re.compile(
    r"\s|[\[>]|\d{4}[-/]|(?:\w+\.)*\w*(?:Error|Warning|Exception)\b(?! (?:about|for|in|on|when|while|after|with|at)\b)"
    r"|(?:INFO|WARN|DEBUG|ERROR)\w*\b|(?:ssh|wandb|git|fatal|nvcc|gcc|ld|make|kernel|NVRM|systemd\S*)\b: "
)
TITLE, TITLE_LINES = 240, 3  # characters of a line, and lines, of what is pasted alone
PERSON = re.compile(
    r"(?<![\w./-])(?:I(?:'m|'ve| am| have| had| get| got| run| ran| use| tried| try| set| think| don't| do| see| train)"
    r"|[Ww]e(?: have| had| get| got| run| ran| use| tried| see| train)|[Mm]y|[Oo]ur|me|[Hh]elp|[Tt]hanks"
    r"|[Aa]ny(?:one|body)|[Ss]ome(?:one|body))(?![\w./-])|我"
)
MOST_LINES = 0.8  # of a text that a person wrote
# A wait that ends by itself is slow, not hung.
PAUSES = (
    r"\b(?:hang|hung|stuck|freez|froze|stall|paus|block|wait)\w* (?:\w+ ){0,3}?for "
    r"(?:about |around |some |~ ?|a |the )?(?:few |several |couple of |\d+ ?)(?:s|secs?|seconds?|min(?:ute)?s?)\b"
    r"|\bthen (?:it )?(?:continues|goes on|resumes)\b"
)
STUCK = re.compile(  # somebody is, of an error: no program that stands still
    r"(?i)\bstuck (?=(?:by|with|due to|because of) (?:an?|the|this|that|some|these) (?:\w+ ){0,3}?"
    r"(?:error|exception|issue|problem|bug))"
)
ENDLESS = r"\bfor ?ever\b|\bnever\b|\bhours?\b|\bkill\b|time[sd]? ?out|indefinite|\b[1-9]\d+ min"


def is_sentence(line: str) -> bool:
    """Tell whether a line reads like a sentence of a person: words, and nothing that a program puts before its own."""
    if PRINTED.match(line):
        return False
    parts = line.split()
    words = sum(1 for part in parts if WORD.fullmatch(part))
    return CHINESE.search(line) is not None or (len(parts) >= FEW and words >= MOSTLY * len(parts))


@functools.lru_cache(maxsize=4)
def sentences(text: str) -> str:
    """Return a text in which every line is blank that no person wrote; what is left stays where it was.

    Between the lines of a program only a sentence in which somebody speaks of themselves is a person's for certain.
    """
    lines = text.split("\n")
    told = list(map(is_sentence, lines))
    if sum(told) < MOST_LINES * sum(1 for line in lines if line.strip()):
        told = [known and PERSON.search(line) is not None for known, line in zip(told, lines, strict=True)]
    return "\n".join(line if known else " " * len(line) for known, line in zip(told, lines, strict=True))


def is_title(text: str) -> bool:
    """Tell whether a text is no more than a few short lines of words: a title, or what somebody has typed."""
    lines = [line for line in text.split("\n") if line.strip()]
    short = 0 < len(lines) <= TITLE_LINES and all(len(line) <= TITLE for line in lines)
    short = short and not any(PRINTED.match(line) or PREFIX.match(line) for line in lines)
    return short and len(NAME.findall(text)) > 2


def asks(text: str) -> bool:
    """Tell whether a text is no more than a question or a request."""
    return is_title(text) and ASKS.match(text.lstrip()) is not None


def is_said(line: str) -> bool:
    """Tell whether a line is a sentence in which a person speaks of themselves."""
    return is_sentence(line) and PERSON.search(line) is not None


def is_told(text: str) -> bool:
    """Tell whether a person wrote nearly all of a text, and speaks of themselves in it."""
    return PERSON.search(text) is not None and _mostly(text)


def _mostly(text: str) -> bool:
    lines = [line for line in text.split("\n") if line.strip()]
    return sum(map(is_sentence, lines)) >= MOST_LINES * len(lines)


def pauses(text: str) -> bool:
    """Tell whether what stands still goes on by itself after seconds or minutes."""
    found = (re.search(pattern, text, re.IGNORECASE) for pattern in (PAUSES, ENDLESS))
    return next(found) is not None and next(found) is None
