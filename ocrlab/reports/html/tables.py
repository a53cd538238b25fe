"""Small tables as HTML: figures to the right, words to the left, and a grid of scores with its best cell marked."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ocrlab.reports.view import INK, View, coded, heading, load_css

CSS = load_css("tables")
FIGURE = re.compile(
    r"[-+−±~<>≤≥]?\s?\d[\d.,\u202f]*(?:\s?(?:%|[KMGT]?i?B|[mµn]?s|px|x|×|[KMG]))?(?:/s)?$|[·–-]?$"
)  # with its unit
LIGHT, DEEP = (0xF3, 0xF6, 0xFA), (0x8F, 0xBD, 0xE8)  # of the grid's worst and best cell; dark text is read on both


def table(
    head: Sequence[str], rows: Sequence[Sequence[object]], finding: str, note: str = "", total: bool = False
) -> View:
    """Return a table under a title that says the finding; words left, figures right, `total` sets off the last row."""
    words = [any(isinstance(row[i], str) and not FIGURE.match(str(row[i])) for row in rows) for i in range(len(head))]
    texts = [[shown(cell) for cell in row] for row in rows]
    sums = [""] * (len(rows) - 1) + ["sum" if total else ""]
    body = [_row(row, words, "td", kind) for row, kind in zip(texts, sums, strict=True)] if rows else []
    table_html = f'<div class="wide"><table class="plain">{_parts(_row(head, words, "th"), body)}</table></div>'
    html = f"<style>{CSS}</style>{heading(finding)}{table_html}{_note(note)}"
    lines = [finding, "  ".join(head), *map("  ".join, texts)]
    return View(html, "\n".join(lines))


def grid(
    scores: Mapping[tuple[Any, Any], Sequence[float]],
    names: tuple[str, str],
    used: tuple[Any, Any],
    measure: str,
    small: str,
    note: str = "",
) -> View:
    """Return scores over two settings as a heat map: `names` names rows and columns, `used` is the setting in use.

    Each value is (score, second score); the first one decides. The best cell is marked by a frame and a star.
    """
    across, down = list(dict.fromkeys(c for _, c in scores)), list(dict.fromkeys(r for r, _ in scores))
    best = max(scores, key=lambda key: (_comparable(scores[key][0]), key == used))
    low, high = (limit(_comparable(value[0]) for value in scores.values()) for limit in (min, max))
    head = f"<tr><th scope='col'>{escape(names[0])} ↓ &nbsp; {escape(names[1])} →</th>"
    head += "".join(f"<th scope='col'>{escape(_named(c))}</th>" for c in across) + "</tr>"
    body = []
    for r in down:
        cells = "".join(_cell(scores[r, c], low, high, (r, c) == best, (r, c) == used) for c in across)
        body.append(f"<tr><th scope='row'>{escape(_named(r))}</th>{cells}</tr>")
    score, ours = scores[best][0], scores[used][0]
    gain = "the settings in use" if best == used else f"the settings in use give {ours:.3f}"
    finding = f"Best: {names[0]} {_named(best[0])} with {names[1]} {_named(best[1])}, {measure} {score:.3f} ({gain})"
    if high <= 0:
        finding = f"No {names[0]} and no {names[1]} helps: {measure} is 0 everywhere"
    legend = f"★ best, ● in use; large: {measure}, small: {small}. {note}"
    table_html = f'<div class="wide"><table class="grid">{_parts(head, body)}</table></div>'
    return View(f"<style>{CSS}</style>{heading(finding)}{table_html}{_note(legend)}", finding)


def shown(value: object) -> str:
    """Return a cell's text: whole numbers with thin spaces, fractions with three digits."""
    if isinstance(value, bool) or value is None:
        return "" if value is None else "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}".replace(",", "\u202f")
    if isinstance(value, float):
        return "not a number" if math.isnan(value) else f"{value:.3f}" if abs(value) < 1 else f"{value:.4g}"
    return str(value)


def _parts(head: str, body: Sequence[str]) -> str:
    """Return the rows of a table with its head set apart: on paper it then stands on each page."""
    return f"<thead>{head}</thead><tbody>{''.join(body)}</tbody>"


def _row(cells: Sequence[str], words: Sequence[bool], tag: str, kind: str = "") -> str:
    head = f'{tag} scope="col"' if tag == "th" else tag
    pairs = zip(words, cells, strict=True)
    parts = [f'<{head} class="{"words" if left else ""}">{escape(cell)}</{tag}>' for left, cell in pairs]
    return f'<tr class="{kind}">{"".join(parts)}</tr>'


def _cell(value: Sequence[float], low: float, high: float, best: bool, used: bool) -> str:
    share = (_comparable(value[0]) - low) / ((high - low) or 1)
    colour = "#" + bytes(round(a + (b - a) * share) for a, b in zip(LIGHT, DEEP, strict=True)).hex()
    sign = ("★ " if best else "") + ("● " if used else "")
    kind = "day best" if best else "day"  # its ground is light at any hour
    look = f'class="{kind}" style="background:{colour};color:{INK}"'
    return f"<td {look}>{sign}{value[0]:.3f}<small>{value[1]:.3f}</small></td>"


def _named(setting: object) -> str:
    return f"{setting:g}" if isinstance(setting, float) else str(setting)


def _comparable(value: float) -> float:
    return -1.0 if math.isnan(value) else value


def _note(text: str) -> str:
    return f'<p class="note">{coded(text)}</p>' if text else ""
