"""What people tell of a training that wrote no error: a symptom, its circumstances, and what both speak for.

Words prove nothing. complaint.toml says what each circumstance weighs; the first cause is never more than 0.42 sure.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ocrlab.diagnose import catalogue, phrases, prose, uncaught
from ocrlab.diagnose.evidence import CONTEXT, KERNEL_LOG, Hit, quote
from ocrlab.diagnose.log import Line, Page
from ocrlab.diagnose.words import Searched

FILE = Path(__file__).with_name("complaint.toml")
MOST, LEAST = 0.42, 0.15
WORDED = 0.3  # of an error message, by its words alone
ANY = re.compile(r"^(?:\w+\.){0,6}(?:(?:Runtime|Value|Assertion|OS|IO|Import)Error|Exception): ")  # of no meaning
FATAL = re.compile(
    r"^(?:[^a-z\n]{0,60}\W|\S{1,40} )?(?:ERROR|FATAL|CRITICAL|Error|error|fatal(?: error)?)\b: ?"
    r"(?!argument|unrec|the foll)\S"
)
LONGEST = 20_000  # characters of sentences; who writes more than that is a program
LAST = 3  # lines of a log that tell where it stands
ALIKE = 0.35  # of a row's weight is one of a phrase's
ANYTHING = re.compile(r"\S")
WEIGHTS = (1.0, 0.7, 0.5, 0.35)  # of a row's causes, most probable first


@dataclass(frozen=True)
class Row:
    """Where somebody tells all of `when` and nothing of `but`: its causes, most probable first, and what they weigh."""

    when: tuple[str, ...]
    but: tuple[str, ...]
    less: tuple[str, ...]
    weight: float
    causes: tuple[str, ...]


def _row(row: dict[str, Any]) -> Row:
    when, but, less = (tuple(row.get(key, ())) for key in ("when", "but", "less"))
    return Row(when, but, less, float(row["weight"]), tuple(row["causes"]))


@functools.cache
def _words_and_rows() -> tuple[dict[str, re.Pattern[str]], tuple[Row, ...]]:
    """Return the words by name and the rows of complaint.toml."""
    with FILE.open("rb") as file:
        found = catalogue.tomllib.load(file)
    words = {name: re.compile(pattern, re.IGNORECASE | re.ASCII) for name, pattern in found["told"].items()}
    return words, tuple(map(_row, found["row"]))


SLOW = re.compile(
    r"(?i)\b(?:slow(?:s|er|ly|ness)?|low (?:gpu )?util\w*|takes? (?:too|so|very) (?:long|much time)|bottleneck|idle)\b"
    r"|[太很变]慢"
)
LEARNS_NOT = re.compile(
    r"(?i)\b(?:loss|accuracy|m?ap|metrics?|hmean|model)\b[^\n.]{0,40}\b"
    r"(?:(?:not|n't) (?:decreas|improv|converg|learn|fall|go|drop|chang)|constant|(?:stay|remain|keep)s? (?:at )?0"
    r"|(?:stay|remain|keep|i)s? (?:always )?the same)"
    r"|\b(?:worse|bad|poor|wrong) (?:\w+ )?(?:results?|metrics?|accuracy)\b|learns? nothing|不收敛|不下降"
)
TIMES = "where the time goes: loader.watch(train_loader) and profile.steps() of ocrlab.trace, around a few steps"
CHECKS = (
    "one step looked at: contract.check(model, batch, loss, optimizer=opt) of ocrlab.trace tells what is wrong with it"
)


def hits(texts: list[Page], judged: frozenset[str] = frozenset()) -> list[Hit]:
    """Return what the symptom and its circumstances speak for, each with the line of the symptom.

    Lines of which it is known what they say, `judged`, tell nothing more.
    """
    told = [(page, _without(_words(page), judged)) for page in texts]
    whole = Searched("\n".join(line for _, words in told for line in words.split("\n") if line.strip()))
    titled = not whole.text and not judged and all(prose.is_title(page.text) for page in texts)
    if titled:
        told = [(page, page.text) for page in texts]
    elif not whole.text or len(whole.text) > LONGEST or prose.pauses(whole.text):
        return []
    scores, symptom = _scores(_rows(whole, texts))
    for cause, score in phrases.scores(
        "\n".join(words for _, words in told), doubtful=titled or uncaught.find(texts) is not None
    ).items():
        scores[cause] = scores.get(cause, 0.0) + ALIKE * score
    best = max(1.0, *scores.values()) if scores else 1.0
    words, _ = _words_and_rows()
    return [
        _hit(cause, round(MOST * score / best, 2), words.get(symptom.get(cause, ""), ANYTHING), told)
        for cause, score in scores.items()
        if MOST * score / best >= LEAST
    ]


def alike(texts: list[Page]) -> list[Hit]:
    """Return what an error without a signature is about, by its words; the library that raised it says more."""
    end = uncaught.find(texts)
    if end is None:
        found = [(page, line) for page in texts if (line := _complains(page))]
        if not found:
            return []
        page, line = found[-1]
    elif ANY.match(end.own.text) and not uncaught.TOLD.search(end.own.text):
        page, line = end.page, end.own
    else:
        return []
    place = (texts.index(page), line.number)
    told, why = quote(page.name, line), "its words are those of this cause"
    return [
        Hit(cause, sure, sure, "possible", told, why, place)
        for cause, score in phrases.scores(line.text.partition(": ")[2] or line.text, doubtful=True).items()
        if (sure := min(WORDED, round(MOST * ALIKE * score, 2))) >= LEAST
    ]


def _complains(page: Page) -> Line | None:
    """Return the last line in which a program says that something failed, where it made no progress after it."""
    if page.name in (CONTEXT, KERNEL_LOG):
        return None
    lines = zip(page.numbers, page.text.split("\n"), strict=False)
    said = [Line(at, text) for at, text in lines if FATAL.search(text) and not uncaught.HARMLESS.search(text)]
    return said[-1] if said and not any(at > said[-1].number for at in page.progress) else None


def _rows(whole: Searched, texts: list[Page]) -> list[Row]:
    """Return the rows that hold for what is told."""
    words, rows = _words_and_rows()
    shown = {name: whole.search(words[name]) is not None for name in {row.when[0] for row in rows}}
    rows = tuple(row for row in rows if shown[row.when[0]])
    around = Searched("\n".join([whole.text, *map(_stands_at, texts)]))
    for name in {name for row in rows for name in (*row.when, *row.but)} - set(shown):
        shown[name] = around.search(words[name]) is not None
    return [row for row in rows if _holds(row, shown)]


def _holds(row: Row, shown: dict[str, bool]) -> bool:
    return all(shown[name] for name in row.when) and not any(shown[name] for name in row.but)


def _scores(rows: list[Row]) -> tuple[dict[str, float], dict[str, str]]:
    """Return the sum of each cause over the rows that hold, and the symptom that first spoke for it."""
    scores: dict[str, float] = defaultdict(float)
    symptom: dict[str, str] = {}
    for row in rows:
        for cause, weight in zip(row.causes, WEIGHTS, strict=False):
            scores[cause] += weight * row.weight
            symptom.setdefault(cause, row.when[0])
    for row in rows:
        for cause in scores:
            scores[cause] -= row.weight if row.less and cause.startswith(row.less) else 0.0
    return {cause: score for cause, score in scores.items() if score > 0}, symptom


def _hit(cause: str, sure: float, symptom: re.Pattern[str], told: list[tuple[Page, str]]) -> Hit:
    page, match = next((page, match) for page, words in told if (match := symptom.search(words)))
    line = page.line(match.start() + len(match[0]) - len(match[0].lstrip()))
    return Hit(cause, sure, sure, "possible", quote(page.name, line), "what is told is like it")


def asks(texts: list[Page]) -> list[str]:
    """Return what to look at where somebody tells that training is slow, or that it learns nothing."""
    whole = "\n".join(map(_words, texts))
    slow = SLOW.search(whole) is not None or prose.pauses(whole)
    return [TIMES] * slow + [CHECKS] * (LEARNS_NOT.search(whole) is not None)


def _stands_at(page: Page) -> str:
    """Return the last lines of a log: what it says last is where it stands."""
    lines = [line for line in page.text.split("\n") if line.strip()] if page.name != KERNEL_LOG else []
    return "\n".join(lines[-LAST:])


def _without(words: str, lines: frozenset[str]) -> str:
    return "\n".join(" " * len(line) if line.strip() in lines else line for line in words.split("\n"))


def _words(page: Page) -> str:
    if page.name == KERNEL_LOG:
        return ""
    return page.text if page.name == CONTEXT else prose.sentences(page.text)
