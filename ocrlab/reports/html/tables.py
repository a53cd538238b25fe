"""Small tables as HTML: figures to the right, words to the left."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape

from ocrlab.reports.view import View, coded, heading, load_css

CSS = load_css("tables")
FIGURE = re.compile(
    r"[-+−±~<>≤≥]?\s?\d[\d.,\u202f]*(?:\s?(?:%|[KMGT]?i?B|[mµn]?s|px|x|×|[KMG]))?(?:/s)?$|[·–-]?$"
)  # with its unit


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


def _note(text: str) -> str:
    return f'<p class="note">{coded(text)}</p>' if text else ""
