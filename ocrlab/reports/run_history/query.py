"""Which of many runs are meant: by status, cause, name, age, and by their settings and figures; in which order.

Failures with the same fingerprint form a group. A key is the dotted name of a setting or the end of it (`lr` for
`optim.lr`), or the name of a figure.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from difflib import get_close_matches
from typing import Any

from ocrlab.errors import ConfigError
from ocrlab.reports.run_history.config_reader import Settings, Value, parse_value
from ocrlab.reports.run_history.fingerprint import Fingerprint
from ocrlab.reports.run_history.run_list import FAILURES, STATUSES, Run, moment

CONDITION = re.compile(r"(?P<key>[A-Za-z_][\w.@/]*)(?P<sign>!=|<=|>=|=|<|>)(?P<value>.*)", re.DOTALL)
AGE = re.compile(r"(?P<count>\d{1,6}(?:\.\d+)?)(?P<unit>m|h|d|w)")
MINUTES = {"m": 1, "h": 60, "d": 1440, "w": 10080}
OWN = ("name", "runs", "schema")  # settings that say where a run is, not what it is
FIGURES = {"hmean": "hmean@0.5", "time": "seconds"}
SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


@dataclass(frozen=True)
class Condition:
    """`key sign value`, as `batch_size>=8`; a text may hold the wildcards * and ?."""

    key: str
    sign: str
    value: str

    def holds(self, actual: Value) -> bool:
        """Return whether a value of a run meets it; what is not there, or not comparable, does not."""
        wanted = parse_value(self.value)
        if self.sign in SIGNS:
            return _number(actual) and isinstance(wanted, int | float) and SIGNS[self.sign](actual, wanted)
        return _same(actual, wanted, self.value) == (self.sign == "=")


def condition(word: str) -> Condition | None:
    """Return the condition that a word of the command line is, None for a word that is none; raises ConfigError."""
    match = CONDITION.fullmatch(word)
    if match and match["sign"] in SIGNS and not isinstance(parse_value(match["value"]), int | float):
        got = repr(match["value"])
        raise ConfigError(f"{word} needs a number to compare with", got=got, need="a number, as in 'hmean>0.9'")
    return Condition(match["key"], match["sign"], match["value"]) if match else None


def filter_by_conditions(runs: Sequence[Run], conditions: Iterable[Condition]) -> list[Run]:
    """Return the runs that meet every condition; raises ConfigError for a key that no run has, with the nearest one."""
    matching = list(runs)
    for wanted in conditions:
        key = resolve_key(wanted.key, runs)
        matching = [run for run in matching if has_key(run, key) and wanted.holds(value(run, key))]
    return matching


def filter_by_status(runs: Iterable[Run], wanted: Iterable[str]) -> list[Run]:
    """Return the runs of some statuses, `failure` being all ways to fail; raises ConfigError for an unknown one."""
    names: set[str] = set()
    for word in wanted:
        if word not in (*STATUSES, "failure"):
            near = get_close_matches(word, (*STATUSES, "failure"), n=1)
            do = f"Did you mean {near[0]}?" if near else None
            raise ConfigError(f"{word!r} is not a status", need=f"one of {', '.join(STATUSES)}, failure", do=do)
        names.update(FAILURES if word == "failure" else (word,))
    return [run for run in runs if run.status in names]


def filter_by_cause(runs: Iterable[Run], cause: str) -> list[Run]:
    """Return the runs of a cause: its id, a group as `host`, a pattern as `*.oom*`, or a part of why it failed."""
    if any(sign in cause for sign in "*?["):
        return [run for run in runs if fnmatch.fnmatchcase(run.cause, cause)]
    return [run for run in runs if f"{run.cause}.".startswith(f"{cause}.") or cause.lower() in run.why.lower()]


def filter_by_name(runs: Iterable[Run], text: str) -> list[Run]:
    """Return the runs whose folder's name holds a text, or fits a pattern with * and ?."""
    pattern = text if any(sign in text for sign in "*?[") else f"*{text}*"
    return [run for run in runs if fnmatch.fnmatchcase(run.name.lower(), pattern.lower())]


def filter_since(runs: Iterable[Run], text: str, now: datetime | None = None) -> list[Run]:
    """Return the runs that started at a time or later: `3d`, `12h`, `2026-11-20`, local time; raises ConfigError."""
    age = AGE.fullmatch(text)
    now = now or datetime.now(timezone.utc)
    try:
        if age:
            begin = now - timedelta(minutes=float(age["count"]) * MINUTES[age["unit"]])
        else:
            begin = datetime.fromisoformat(text).astimezone()  # a date without a zone is the user's own
    except (ValueError, OverflowError):
        need = "an age as 90m, 12h, 3d or 2w, or a date as 2026-11-20 or 2026-11-20T14:30"
        raise ConfigError("--since cannot be read", got=text, need=need) from None
    return [run for run in runs if moment(run.started) >= begin]


def filter_by_failure(runs: Iterable[Run], fingerprint: str) -> list[Run]:
    """Return the runs whose failure has a fingerprint; its beginning is enough."""
    return [run for run in runs if run.failure and run.failure.id.startswith(fingerprint)]


def sort_runs(runs: Sequence[Run], key: str, reverse: bool = False) -> list[Run]:
    """Return runs by a key, the largest or newest first, or last with `reverse`; those without it always come last.

    Raises ConfigError for a key that no run has.
    """
    if key == "started":
        ranked = sorted(runs, key=lambda run: (moment(run.started), run.name), reverse=True)
    elif key in ("name", "status", "cause"):
        ranked = sorted((run for run in runs if getattr(run, key)), key=lambda run: str(getattr(run, key)))
    else:
        key = resolve_key(key, runs)
        there = [run for run in runs if has_key(run, key) and value(run, key) == value(run, key)]  # NaN is not there
        numbers = [run for run in there if _number(value(run, key))]
        texts = [run for run in there if not _number(value(run, key))]
        ranked = sorted(numbers, key=lambda run: float(value(run, key)), reverse=True)
        ranked += sorted(texts, key=lambda run: format_value(value(run, key)))
    valued = {id(run) for run in ranked}  # comparing runs with each other takes seconds of thousands
    return [*(ranked[::-1] if reverse else ranked), *(run for run in runs if id(run) not in valued)]


def resolve_key(key: str, runs: Sequence[Run]) -> str:
    """Return the whole name of a key among the settings and figures of runs; raises ConfigError with the nearest."""
    settings = dict.fromkeys(name for run in runs for name in run.settings)
    figures = dict.fromkeys(["seconds", *(name for run in runs for name in run.metrics)])
    if key in settings or key in figures:
        return key
    if key in FIGURES:
        return FIGURES[key]
    ends = [name for name in settings if name.endswith(f".{key}")]
    if len(ends) == 1 or not runs:
        return ends[0] if ends else key
    if ends:
        raise ConfigError(f"{key} can be several settings", need=f"one of {', '.join(sorted(ends))}")
    short = {name.rpartition(".")[2]: name for name in settings}
    near = get_close_matches(key, [*settings, *short, *figures, *FIGURES], n=1)
    do = f"Did you mean {near[0]}?" if near else "ocrlab train --keys lists the settings"
    raise ConfigError(f"None of these runs has {key}", need="a setting or a figure", do=do)


def has_key(run: Run, key: str) -> bool:
    """Return whether a run has a setting or a figure."""
    return key in run.settings or key in run.metrics or (key == "seconds" and run.seconds is not None)


def value(run: Run, key: str) -> Value:
    """Return the setting or the figure of a run, None where it has neither."""
    if key in run.settings:
        return run.settings[key]
    return run.seconds if key == "seconds" else run.metrics.get(key)


def differing_settings(runs: Iterable[Run]) -> list[str]:
    """Return the settings in which runs differ, in the order of the config.

    A setting that a run does not have makes no difference: an older ocrlab did not know it.
    """
    several = [run.settings for run in runs if run.settings]
    varying: set[str] = set()
    for settings in several:  # sets of pairs are compared in C, which is ten times as fast as comparing one by one
        varying.update(key for key, _ in settings.items() ^ several[0].items())
    varying.difference_update(OWN)
    differing = [key for key in sorted(varying) if len({own[key] for own in several if key in own}) > 1]
    order = list(several[0]) if several else []
    return sorted(differing, key=lambda key: order.index(key) if key in order else len(order))


def common_settings(runs: Sequence[Run], keys: Iterable[str]) -> Settings:
    """Return the value that most runs have of each setting; none where no two runs have the same."""
    common = {}
    for key in keys:
        [(value, count)] = Counter(run.settings[key] for run in runs if key in run.settings).most_common(1)
        if count > 1:
            common[key] = value
    return common


def short_names(keys: Iterable[str], runs: Iterable[Run]) -> dict[str, str]:
    """Return for each setting the last part of its name, the whole where another setting of the runs ends alike."""
    names: set[str] = set()
    for run in runs:
        names.update(run.settings)
    ends = Counter(name.rpartition(".")[2] for name in names)
    return {key: end if ends[end := key.rpartition(".")[2]] < 2 else key for key in keys}


def format_value(value: Value) -> str:
    """Return a value as `key=value` takes it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return f"[{','.join(map(format_value, value))}]" if isinstance(value, tuple) else str(value)


def _number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(actual: Value, wanted: Value, text: str) -> bool:
    if _number(actual) and _number(wanted):
        return math.isclose(actual, wanted, rel_tol=1e-9)
    if isinstance(actual, str):
        return fnmatch.fnmatchcase(actual, text) or actual == text
    return bool(actual == wanted) if not isinstance(actual, tuple) else format_value(actual) == text.replace(" ", "")


@dataclass(frozen=True)
class FailureGroup:
    """All runs with the same failure, newest first; `first` and `last` are when it was seen (ISO 8601, UTC)."""

    failure: Fingerprint
    runs: tuple[Run, ...]

    @property
    def first(self) -> str:
        """When it was seen first."""
        return failure_time(self.runs[-1])

    @property
    def last(self) -> str:
        """When it was seen last."""
        return failure_time(self.runs[0])


def group_failures(runs: Iterable[Run]) -> list[FailureGroup]:
    """Return the failures of runs by fingerprint, the most frequent first, of equals the one seen last."""
    by_id: dict[str, list[Run]] = {}
    for run in runs:
        if run.failure:
            by_id.setdefault(run.failure.id, []).append(run)
    groups = []
    for same in by_id.values():
        same.sort(key=lambda run: moment(failure_time(run)), reverse=True)
        assert same[0].failure is not None, "only failures were taken"
        groups.append(FailureGroup(same[0].failure, tuple(same)))
    return sorted(groups, key=lambda group: (len(group.runs), moment(group.last)), reverse=True)


def failure_time(run: Run) -> str:
    """Return when a run failed, as far as that is known."""
    return run.ended or run.started
