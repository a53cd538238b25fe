"""Render docs/measured.md from the figures in benchmarks/results/*.json: `python benchmarks/scoreboard.py`.

A figure is shown if its row has an `area`. `title` is its text on the page. `set` is "unread" (scored before anyone had
read the cases), "development" (rules were changed against the cases) or null. `peer_value` is the figure of `peer`, and
`history` holds earlier figures, which are not shown. `--check` changes nothing, and ends with 1 if the page differs.
"""

from __future__ import annotations

import argparse
import json
import operator
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "measured.md"
OPERATORS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
SETS = {
    None: "",
    "unread": "Unread sets: scored once, before anybody had read the cases. Expect these figures for your own cases.",
    "development": "Development sets: rules were changed against these cases. They show that nothing got worse.",
}
HEAD = """# What was measured

{met} of {judged} figures with a limit meet it; {missed} miss it. Figures are from two cores of a virtual machine,
AMD EPYC or Intel Xeon, without a GPU. What was measured on a GPU is in [gpu](gpu.md).

This page is rendered from `benchmarks/results/*.json` by `python benchmarks/scoreboard.py`. Machine, date, commit and
earlier figures of each row are in those files. All trials of the detector are in `benchmarks/results/accuracy.md`.
"""


def figures() -> list[dict[str, Any]]:
    """Return the rows of every file that belong on the page."""
    rows = [row for file in sorted(RESULTS.glob("*.json")) for row in json.loads(file.read_text(encoding="utf-8"))]
    return [row for row in rows if row.get("area")]


def met(row: dict[str, Any]) -> bool | None:
    """Return whether a figure meets its limit, such as "<= 1.2"; None without a limit."""
    if row["limit"] is None:
        return None
    sign, bound = row["limit"].split()
    return bool(OPERATORS[sign](row["value"], float(bound)))


def number(value: float, unit: str, *, percent: bool = False) -> str:
    """Return a figure with its unit."""
    if percent:
        return f"{100 * value:.3g} %"
    unit = unit.removesuffix("s") if value == 1 and len(unit) > 1 else unit
    return f"{value:,.6g}" if unit in ("share", "hmean", "relative") else f"{value:,.6g} {unit}"


def in_percent(row: dict[str, Any]) -> bool:
    """Return whether a row shows its shares in percent, as its value is small."""
    return bool(row["unit"] == "share" and row["value"] < 0.1)


def limit(row: dict[str, Any]) -> str:
    """Return a limit in words."""
    if row["limit"] is None:
        return "-"
    sign, bound = row["limit"].split()
    words = {"<=": "at most", ">=": "at least", "<": "below", ">": "above"}[sign]
    bound = number(float(bound), row["unit"], percent=in_percent(row))
    return bound if row["limit"] == "<= 0" else f"{words} {bound}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table with one row for each figure."""
    lines = ["| what | value | limit | best peer | result | how to repeat |", "|---|---|---|---|---|---|"]
    for row in rows:
        peer = row["peer"] or "-"
        if row.get("peer_value") is not None:
            peer += f": {number(row['peer_value'], row['unit'], percent=in_percent(row))}"
        result = {True: "met", False: "**missed**", None: "-"}[met(row)]
        value = number(row["value"], row["unit"], percent=in_percent(row))
        is_command = row["command"].split()[0] in ("ls", "make", "ocrlab", "python")
        command = f"`{row['command']}`" if is_command else row["command"]
        lines.append(
            f"| {row.get('title') or row['question']} | {value} | {limit(row)} | {peer} | {result} | {command} |"
        )
    return "\n".join(lines)


def render() -> str:
    """Return the page."""
    rows = figures()
    judged = [met(row) for row in rows if met(row) is not None]
    parts = [HEAD.format(met=sum(judged), judged=len(judged), missed=len(judged) - sum(judged))]
    for area in dict.fromkeys(row["area"] for row in sorted(rows, key=lambda row: AREAS.index(row["area"]))):
        parts.append(f"## {area}\n")
        for kind, words in SETS.items():
            chosen = [row for row in rows if row["area"] == area and row.get("set") == kind]
            if chosen:
                parts.append(f"{words}\n\n{table(chosen)}\n" if words else f"{table(chosen)}\n")
    return "\n".join(parts)


AREAS = (
    "Training and detection",
    "Core algorithms",
    "Diagnosis",
    "Silent failures and instruments",
    "Record, replay, bisect",
    "Memory",
    "Notebooks, sharing, ranks",
)


def main() -> int:
    """Write the page, or with `--check` compare it."""
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("--check", action="store_true", help="change nothing; end with 1 if the page differs")
    text = render()
    if command.parse_args().check:
        return int(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
