"""What is known of each cause, read from catalogue.toml: signatures, experiments, fixes, console workflows."""

from __future__ import annotations

import enum
import functools
import itertools
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ocrlab.errors import ConfigError

if sys.version_info >= (3, 11):  # noqa: UP036
    import tomllib
else:
    import tomli as tomllib

# ASCII: a word ends where Chinese or Korean begins, which is written without a space.
FLAGS = re.MULTILINE | re.ASCII
FILE = Path(__file__).with_name("catalogue.toml")


class Level(enum.Enum):
    """How much one line of evidence proves, strongest first: the confidence of a cause that has no other line."""

    DECISIVE = 0.92
    STRONG = 0.82
    LIKELY = 0.62
    POSSIBLE = 0.45

    def at_most(self, other: Level) -> Level:
        """Return the weaker one of two levels."""
        return min(self, other, key=lambda level: level.value)

    @classmethod
    def reached_by(cls, confidence: float) -> Level:
        """Return the level of a stored confidence, which may be a little lower."""
        return next((level for level in cls if confidence >= level.value - 0.05), cls.POSSIBLE)

    def shifted(self, steps: int) -> Level:
        """Return the level so many steps stronger, or weaker where negative; the strongest or the weakest at most."""
        levels = list(Level)
        return levels[min(max(levels.index(self) - steps, 0), len(levels) - 1)]


class Role(enum.Enum):
    """What a line reports: the cause itself, a consequence that yields to any reason, or another program's failure."""

    CAUSE = "cause"
    FALLBACK = "fallback"
    WRAPPER = "wrapper"


# The lists of signatures of an entry, strongest first.
STRENGTHS = {
    "decisive": (Level.DECISIVE, Role.CAUSE),
    "strong": (Level.STRONG, Role.CAUSE),
    "likely": (Level.LIKELY, Role.CAUSE),
    "possible": (Level.POSSIBLE, Role.CAUSE),
    "fallback": (Level.STRONG, Role.FALLBACK),
    "wrapper": (Level.POSSIBLE, Role.WRAPPER),
}


@dataclass(frozen=True)
class Sign:
    """One signature: all of `all` and none of `none` must be found; the first of `all` is the evidence.

    One with `context_only` describes a circumstance that only a person reports: the context alone is searched for it.
    """

    cause: str
    strength: str  # a key of STRENGTHS
    all: tuple[re.Pattern[str], ...]
    none: tuple[re.Pattern[str], ...] = ()
    why: str = ""
    context_only: bool = False

    @property
    def level(self) -> Level:
        """How much a line that shows it proves."""
        return STRENGTHS[self.strength][0]

    @property
    def role(self) -> Role:
        """What a line that shows it reports."""
        return STRENGTHS[self.strength][1]


@dataclass(frozen=True)
class Form:
    """One form of a cause: its fix, experiment and title, where the evidence has a line like `line`."""

    line: re.Pattern[str]
    fix: str
    experiment: str = ""
    example: str = ""
    title: str = ""


@dataclass(frozen=True)
class Entry:
    """One cause: what it is, why it happens (most frequent first), the experiment that tells, the fix."""

    id: str
    title: str
    family: str
    about: str
    why: tuple[str, ...]
    experiment: str
    fix: str
    otherwise: tuple[str, ...]
    guides: tuple[str, ...]
    examples: tuple[str, ...]
    signs: tuple[Sign, ...]
    forms: tuple[Form, ...] = ()

    def form(self, lines: Iterable[str]) -> Form:
        """Return the first form that one of the lines shows, else the fix and experiment of all."""
        shown = list(lines)
        general = Form(re.compile(""), self.fix)
        form = next((form for form in self.forms if any(form.line.search(line) for line in shown)), general)
        return replace(form, experiment=form.experiment or self.experiment, title=form.title or self.title)


@dataclass(frozen=True)
class Catalogue:
    """All causes by id in the order of the file, the guides, and the advice lines that are not evidence."""

    entries: dict[str, Entry]
    guides: dict[str, tuple[str, str]]  # console workflows that several causes point at: title and text
    advice: re.Pattern[str]

    def signs(self) -> Iterator[Sign]:
        """Yield every signature of every cause."""
        for entry in self.entries.values():
            yield from entry.signs


@functools.cache
def load() -> Catalogue:
    """Return the catalogue; raises KeyError or re.error where the file breaks its schema, which a test watches."""
    with FILE.open("rb") as file:
        table = tomllib.load(file)
    entries = {entry.id: entry for entry in map(_entry, table["cause"])}
    guides = {name: (guide["title"], guide["text"].strip("\n")) for name, guide in table["guide"].items()}
    return Catalogue(entries, guides, re.compile("|".join(f"(?:{line})" for line in table["advice"]), re.MULTILINE))


def _entry(row: dict[str, Any]) -> Entry:
    def patterns(source: list[str]) -> tuple[re.Pattern[str], ...]:
        return tuple(re.compile(pattern, FLAGS) for pattern in source)

    signs = [Sign(row["id"], strength, patterns([line])) for strength in STRENGTHS for line in row.get(strength, ())]
    for rule in row.get("rule", ()):
        every, none = (patterns(rule.get(key, ())) for key in ("all", "none"))
        signs.append(Sign(row["id"], rule["strength"], every, none, rule["why"], rule.get("context_only", False)))
    forms = [Form(**{**form, "line": re.compile(form["line"])}) for form in row.get("form", ())]
    plain = {name: row[name] for name in ("id", "title", "family", "about", "experiment", "fix")}
    plain |= {name: tuple(row.get(name, ())) for name in ("why", "otherwise", "guides", "examples")}
    return Entry(**plain, signs=tuple(signs), forms=tuple(forms))


def explain(name: str, *, signatures: bool = True) -> str:
    """Return all that is known about a cause as text; raises ConfigError for an unknown id.

    `signatures` are the regular expressions that show it, which few people want to read.
    """
    entries = load().entries
    if name not in entries:
        near = [other for other in entries if name.split(".")[-1] in other or name.split(".")[0] in other]
        do = "ocrlab diagnose --explain lists all"
        raise ConfigError(f"{name!r} is not a cause", need=", ".join(near[:6]) or "an id", do=do)
    entry = entries[name]
    parts = [f"{entry.id}: {entry.title}", "", entry.about, "", "Why, most frequent first"]
    parts += [f"  {number}. {why}" for number, why in enumerate(entry.why, 1)]
    parts += ["", "The experiment that decides", f"  {entry.experiment}", "", "Fix", f"  {entry.fix}"]
    parts += [f"  {form.fix}    (where a line has: {form.line.pattern})" for form in entry.forms]
    parts += ["", "Looks the same"] + [f"  {other}: {entries[other].title}" for other in entry.otherwise]
    for title, text in (load().guides[guide] for guide in entry.guides):
        parts += ["", title, *(f"  {line}" for line in text.splitlines())]
    if signatures:
        parts += ["", "Signatures"]
        for sign in entry.signs:
            rule = f"    ({sign.why})" if sign.why else ""
            parts.append(f"  {sign.strength:<9} {'  and  '.join(pattern.pattern for pattern in sign.all)}{rule}")
    return "\n".join(parts)


def listing() -> str:
    """Return every cause with its title, one a line, by family."""
    width = max(map(len, load().entries))
    families = itertools.groupby(load().entries.values(), key=lambda entry: entry.family)
    blocks = ([name, *(f"  {entry.id:<{width}}  {entry.title}" for entry in group)] for name, group in families)
    return "\n\n".join("\n".join(block) for block in blocks)
