"""A bug report as one HTML page in the style of the reports: nothing fetched, no script, light and dark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

from ocrlab.report.bugreport_parts import Section, html, inline, plain
from ocrlab.report.view import ACCENT, INK, LINE, MUTED

SHEET = f"""
:root {{ color-scheme: light dark; --ink: {INK}; --muted: {MUTED}; --line: {LINE}; --ground: #f5f7f9; --paper: #fff;
  --accent: {ACCENT}; --good: #116b39; }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ --ink: #dfe5ec; --muted: #9fabb8; --line: #3a434d;
  --ground: #22282f; --paper: #171b20; --accent: #86bdf2; --good: #7fcf9f; }} }}
* {{ box-sizing: border-box; }}
body {{ font: 16px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  color: var(--ink); background: var(--paper); margin: 0 auto; padding: 32px 28px 56px; max-width: 1000px; }}
h1 {{ font-size: 28px; line-height: 1.25; margin: 0 0 12px; overflow-wrap: anywhere; }}
h2 {{ font-size: 20px; margin: 36px 0 6px; padding-top: 16px; border-top: 1px solid var(--line); }}
p {{ margin: 8px 0; overflow-wrap: anywhere; }}
.meta {{ display: flex; flex-wrap: wrap; gap: 4px 22px; font-size: 14px; margin: 0; }}
.meta div {{ display: flex; gap: 6px; }}
.meta dt {{ color: var(--muted); }}
.meta dd {{ margin: 0; overflow-wrap: anywhere; }}
code {{ font: .86em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; background: var(--ground);
  border-radius: 3px; padding: 1px 5px; overflow-wrap: anywhere; }}
pre {{ font: 13px/1.55 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; background: var(--ground);
  border-radius: 6px; padding: 12px 16px; margin: 8px 0; overflow-x: auto; tab-size: 4; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 14px; margin: 10px 0; font-variant-numeric: tabular-nums; }}
td, th {{ padding: 5px 16px 5px 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }}
th {{ font-weight: 600; }}
summary {{ cursor: pointer; color: var(--muted); font-size: 14px; margin: 6px 0; }}
:focus-visible {{ outline: 2px solid var(--accent); outline-offset: 2px; }}
.checks {{ list-style: none; padding: 0; }}
.checks span {{ display: inline-block; width: 1.4em; font-weight: 700; }}
.checks .done span {{ color: var(--good); }}
.checks i {{ font-style: normal; font-size: 13px; color: var(--muted); margin-left: 6px; }}
footer {{ margin-top: 44px; padding-top: 14px; border-top: 1px solid var(--line); font-size: 13px;
  color: var(--muted); }}
@media print {{ body {{ padding: 0; max-width: none; font-size: 10.5pt; }} pre {{ white-space: pre-wrap; }} }}
"""


def page(title: str, front: Mapping[str, object], sections: Iterable[Section], note: str) -> str:
    """Return a whole page; every text in it is escaped."""
    shown = [(escape(name), escape(_value(value))) for name, value in front.items() if name != "title"]
    pairs = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in shown)
    policy = "default-src 'none'; style-src 'unsafe-inline'"  # whatever a stranger's text holds, nothing is fetched
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><meta '
        f'http-equiv="Content-Security-Policy" content="{policy}"><title>{inline(title)}</title><style>{SHEET}</style>'
    )
    top = f'<header><h1>{inline(title)}</h1><dl class="meta">{pairs}</dl></header>'
    body = f"{top}<main>{html(sections)}</main><footer>{inline(note)}</footer>"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _value(value: object) -> str:
    return plain(", ".join(map(str, value)) if isinstance(value, list) else str(value))
