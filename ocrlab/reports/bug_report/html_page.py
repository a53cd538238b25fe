"""A bug report as one HTML page in the style of the reports: nothing fetched, no script, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

from ocrlab.reports.bug_report.markdown import Section, html, inline, plain
from ocrlab.reports.html import stylesheet

SHEET = """
.bug { max-width: 1000px; }
.bug .facts { display: flex; flex-wrap: wrap; gap: 4px 22px; font-size: 14px; margin: 0; }
.facts div { display: flex; gap: 6px; }
.facts dt { opacity: .75; }
.facts dd { margin: 0; overflow-wrap: anywhere; }
.bug code { background: var(--ground); border-radius: 3px; padding: 1px 5px; }
.bug pre { background: var(--ground); border-radius: 6px; padding: 12px 16px; margin: 8px 0; }
.bug p { margin: 8px 0; }
.bug p, .bug li { overflow-wrap: anywhere; }
.bug th[scope=row] { font-weight: 400; }
.wide { overflow-x: auto; }
.bug summary { font-size: 14px; margin: 6px 0; }
.checks { list-style: none; padding: 0; }
.checks span { display: inline-block; width: 1.4em; font-weight: 700; }
.checks i { font-style: normal; font-size: 13px; opacity: .75; margin-left: 6px; }
"""  # what a bug report has besides the style of all reports


def page(title: str, front: Mapping[str, object], sections: Iterable[Section], note: str) -> str:
    """Return a whole page; every text in it is escaped."""
    shown = [(escape(name), escape(_value(value))) for name, value in front.items() if name != "title"]
    pairs = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in shown)
    policy = "default-src 'none'; style-src 'unsafe-inline'"  # whatever a stranger's text holds, nothing is fetched
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><meta '
        f'http-equiv="Content-Security-Policy" content="{policy}"><title>{inline(title)}</title>'
        f"<style>{stylesheet.sheet()}{SHEET}</style>"
    )
    top = f'<header><h1>{inline(title)}</h1><dl class="facts">{pairs}</dl></header>'
    body = f"{top}<main class='html'>{html(sections)}</main><footer>{inline(note)}</footer>"
    return f'<!doctype html><html lang="en"><head>{head}</head><body class="bug">{body}</body></html>\n'


def _value(value: object) -> str:
    return plain(", ".join(map(str, value)) if isinstance(value, list) else str(value))
