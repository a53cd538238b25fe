"""Many runs as text: a table as wide as the terminal, or with tabs in a pipe; what differs, and failures in groups."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ocrlab.errors import escape_name
from ocrlab.reports import progress_view
from ocrlab.reports.run_history import query
from ocrlab.reports.run_history.config_reader import Settings
from ocrlab.reports.run_history.query import FailureGroup
from ocrlab.reports.run_history.run_list import FOREVER, STATUSES, Run, moment

GAP = "  "
SIDE_BY_SIDE = 4  # so many runs have their differences in columns
WIDE = 120  # characters; from there on the start has a column, and times have a year
LONGEST = 200  # characters of a value
LINES = 3  # of a cell that does not fit into one
LEFT_OUT = "…"
STAMPED = re.compile(r"\d{8}-\d{6}")


@dataclass(frozen=True)
class SettingDifferences:
    """The settings in which some runs differ: their short names, and the value of each that most of the runs have."""

    names: dict[str, str]
    common: Settings

    def of(self, run: Run) -> str:
        """Return the settings of a run that most of the runs do not have, as the command line takes them."""
        own, missing = run.settings, object()
        keys = [key for key in self.names if key in own and own[key] != self.common.get(key, missing)]
        return " ".join(f"{self.names[key]}={cut(query.format_value(own[key]), LONGEST)}" for key in keys)


def page(
    runs: Sequence[Run], chosen: Sequence[Run], shown: Sequence[Run], groups: Sequence[FailureGroup], width: int | None
) -> str:
    """Return everything: the table of `shown`, the common settings, the failures; `width` is None in a pipe."""
    if not runs:
        return "There are no runs here."
    keys = query.differing_settings(shown)
    differing = SettingDifferences(query.short_names(keys, shown), query.common_settings(shown, keys))
    if width is None:
        return _for_a_program(shown, groups, differing)
    few = 1 < len(shown) <= SIDE_BY_SIDE and bool(keys)
    parts = [table(shown, SettingDifferences({}, {}) if few else differing, width)] if shown else []
    if few:
        parts.append(_side_by_side(shown, differing, width))
    elif differing.common:
        words = [f"{differing.names[key]}={query.format_value(value)}" for key, value in differing.common.items()]
        lines = wrap(_printable(" ".join(words)), max(8, width - 11))
        parts.append("\n".join(f"{' ' * 11 if i else 'most have: '}{line}"[:width] for i, line in enumerate(lines)))
    if groups:
        rows = [["fingerprint", "runs", "first seen", "last seen", "failure"]]
        for group in groups:
            times = (local_time(group.first, width), local_time(group.last, width))
            rows.append([group.failure.id, str(len(group.runs)), *times, group.failure.title])
        parts.append(fit_rows(rows, width, right=(1,)))
    return "\n\n".join([*parts, _count(runs, chosen, shown, width)])


def table(runs: Sequence[Run], differing: SettingDifferences, width: int) -> str:
    """Return a line a run: name, status, hmean, time, why it failed, and its settings that differ from most."""
    dated = width >= WIDE or not all(STAMPED.match(run.name) for run in runs)
    rows = [["run", "status", "hmean@0.5", "time", *(["started"] if dated else []), "why; settings"]]
    for run in runs:
        description = GAP.join(filter(None, (run.why or run.problem, differing.of(run))))
        begun = [local_time(run.started, width)] if dated else []
        hmean = f"{run.hmean:.4f}" if run.hmean is not None and run.hmean == run.hmean else "-"
        hmean = hmean if run.final or hmean == "-" else f"({hmean})"  # in brackets while it is not final
        rows.append([run.name, run.status, hmean, _duration(run.seconds), *begun, description])
    return fit_rows(rows, width, right=(2, 3))


def fit_rows(rows: Sequence[Sequence[str]], width: int, right: Sequence[int] = ()) -> str:
    """Return rows in columns as wide as the terminal: the last column is wrapped, the first cut in its middle."""
    texts = [[_printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    fixed = sum(widths[1:-1]) + len(GAP) * (len(widths) - 1)
    room = max(16, width - fixed)
    widths[0] = min(widths[0], max(room // 2, room - widths[-1]))
    widths[-1] = room - widths[0]
    lines = []
    for row in texts:
        first, *between, last = row
        wrapped = wrap(last, widths[-1])
        cells = [cut(first, widths[0], middle=True), *between, wrapped[0]]
        sides = enumerate(zip(cells, widths, strict=True))
        lines.append(GAP.join(cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in sides))
        lines += [" " * (fixed + widths[0]) + more for more in wrapped[1:]]
    return "\n".join(line[:width].rstrip() for line in lines)


def wrap(text: str, width: int) -> list[str]:
    """Return a text in lines of at most `width` characters, broken between words, cut after the third."""
    lines = textwrap.wrap(
        text, width, max_lines=LINES, placeholder=f" {LEFT_OUT}", break_long_words=False, break_on_hyphens=False
    )
    return [cut(line, width) for line in lines] or [""]


def cut(text: str, width: int, middle: bool = False) -> str:
    """Return a text of at most `width` characters, with … where something was left out."""
    if len(text) <= width:
        return text
    if not middle:
        return text[: width - 1] + "…"
    end = (width - 1) // 2
    return text[: width - 1 - end] + "…" + text[len(text) - end :]


def _duration(seconds: float | None) -> str:
    return "-" if seconds is None or not 0 <= seconds < 1e9 else progress_view.duration(int(seconds))


def local_time(time: str, width: int) -> str:
    """Return the local time of a record, without the year where there is little room."""
    instant = moment(time)
    form = "%Y-%m-%d %H:%M" if width >= WIDE else "%m-%d %H:%M"
    return "-" if instant is FOREVER else instant.astimezone().strftime(form)


def _printable(text: str) -> str:
    """Return a text in one line, without control characters, with which a stranger's name could move the cursor."""
    return escape_name(text.replace("\t", " ").replace("\n", " "))


def _for_a_program(runs: Sequence[Run], groups: Sequence[FailureGroup], differing: SettingDifferences) -> str:
    """Return runs and failures for a program: tabs, ISO times, whole paths; each failure with its newest run."""
    tables: list[list[Sequence[object]]] = []
    if runs:
        tables.append([("run", "status", "hmean@0.5", "seconds", "started", "fingerprint", "why", "settings")])
    for run in runs:
        hmean = "" if run.hmean is None else f"{run.hmean:.6g}"
        seconds = "" if run.seconds is None else f"{run.seconds:.1f}"
        failure = run.failure.id if run.failure else ""
        tables[0].append((run.path, run.status, hmean, seconds, run.started, failure, run.why, differing.of(run)))
    if groups:
        failures = [(g.failure.id, len(g.runs), g.first, g.last, g.failure.title, g.runs[0].path) for g in groups]
        tables.append([("fingerprint", "runs", "first", "last", "failure", "newest"), *failures])
    lines = [["\t".join(_printable(str(cell)) for cell in row) for row in rows] for rows in tables]
    return "\n\n".join("\n".join(rows) for rows in lines)


def _side_by_side(runs: Sequence[Run], differing: SettingDifferences, width: int) -> str:
    """Return the settings in which a few runs differ, a column a run."""
    rows = [["setting", *(run.name for run in runs)]]
    for key, name in differing.names.items():
        rows.append([name, *(query.format_value(run.settings[key]) if key in run.settings else "-" for run in runs)])
    room = max(8, (width - max(len(row[0]) for row in rows)) // len(runs) - len(GAP))
    return fit_rows([[row[0], *(cut(cell, room) for cell in row[1:])] for row in rows], width)


def _count(runs: Sequence[Run], chosen: Sequence[Run], shown: Sequence[Run], width: int) -> str:
    counts = Counter(run.status for run in chosen)
    parts = ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])
    of = f" of {len(runs)}" if len(chosen) < len(runs) else ""
    lines = wrap(f"{len(chosen)}{of} {'run' if len(chosen) == 1 else 'runs'}{f': {parts}' if parts else ''}", width)
    left = len(chosen) - len(shown)
    return "\n".join([*lines, *([f"{left} more with --limit 0"] if left else [])])
