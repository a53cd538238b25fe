"""The one style sheet of a report: by day, by night, on paper, and on a screen of 400 pixels."""

from __future__ import annotations

import functools
import re

from ocrlab.reports.html import ansi
from ocrlab.reports.view import ACCENT, INK, LINE, MUTED, NIGHT, PAPER, themed

SANS = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
GROUND, RED = "#f5f7f9", "#ab1f24"
SYNTAX = {  # pygments' classes -> by day, by night
    "k kn kd kr kt kc ow": ("#7b1f79", "#dda0db"),
    "s s1 s2 sa sb sc sd se sh si sx sr": ("#116b39", "#7fcf9f"),
    "c c1 cm ch cs cp": ("#5f6b7a", "#9fabb8"),
    "m mi mf mh mo il mb": ("#8f3d05", "#f0ab7c"),
    "nb bp": ("#1d5c94", "#86bdf2"),
    "nf nc nd fm": ("#2563a8", "#8fc1f7"),
    "err gr": ("#ab1f24", "#ff9494"),
}
# What goes on sideways fades at its right edge (`cut`), until it was moved there; what fits has no timeline to fade by.
SHEET = f"""
:root {{ color-scheme: light dark; --ground: {GROUND}; --red: {RED}; --red-ground: #fcecec; --amber-ground: #fbf6ea; }}
* {{ box-sizing: border-box; }}
html {{ scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }}
body {{ font: 16px/1.6 {SANS}; color: {INK}; background: {PAPER}; margin: 0 auto; padding: 32px 28px 56px;
  max-width: 1220px; display: grid; gap: 0 48px; grid-template-columns: minmax(0, 1fr);
  text-rendering: optimizeLegibility; }}
a {{ color: {ACCENT}; text-underline-offset: .15em; text-decoration-thickness: 1px; overflow-wrap: anywhere; }}
:focus-visible {{ outline: 2px solid {ACCENT}; outline-offset: 2px; border-radius: 2px; }}
h1, h2, h3, h4, h5, h6 {{ line-height: 1.25; text-wrap: balance; overflow-wrap: anywhere; scroll-margin-top: 16px; }}
h1 {{ font-size: 30px; letter-spacing: -.012em; margin: 0 0 16px; }}
h2 {{ font-size: 21px; letter-spacing: -.005em; margin: 44px 0 6px; padding-top: 20px; border-top: 1px solid {LINE}; }}
h3 {{ font-size: 17px; margin: 28px 0 4px; }}
h4, h5, h6 {{ font-size: 15.5px; margin: 22px 0 4px; }}
.here {{ text-decoration: none; opacity: 0; font-weight: 400; margin-left: .1em; }}
:is(h2, h3, h4, h5, h6):hover > .here, .here:focus {{ opacity: 1; }}
.meta {{ font-size: 13px; color: {MUTED}; margin: 0 0 6px; font-variant-numeric: tabular-nums; }}
header {{ min-width: 0; }}
main {{ min-width: 0; }}
nav {{ font-size: 14px; margin: 20px 0 0; }}
nav ol {{ list-style: none; margin: 0; padding: 0; display: flex; flex-wrap: wrap; gap: 2px 20px; }}
nav a {{ color: inherit; text-decoration: none; }}
nav a:hover {{ text-decoration: underline; }}
nav small {{ color: {MUTED}; font-variant-numeric: tabular-nums; white-space: nowrap; margin-left: 6px; }}
nav .bad {{ color: var(--red); font-weight: 600; }}
nav .none {{ color: {MUTED}; }}
.prose, h1 {{ position: relative; contain: layout paint; }}
.prose > :not(h2, table, pre, .highlight) {{ max-width: 74ch; }}
.task-list-item {{ list-style: none; margin-left: -1.3em; }}
.prose p, .prose ul, .prose ol {{ margin: 8px 0; }}
.prose blockquote {{ margin: 12px 0; padding: 0 0 0 16px; border-left: 3px solid {LINE}; color: {MUTED}; }}
.prose hr {{ border: 0; border-top: 1px solid {LINE}; margin: 24px 0; }}
code, kbd, samp, tt {{ font: .86em/1.5 {MONO}; overflow-wrap: anywhere; }}
.prose :not(pre) > code {{ background: var(--ground); border-radius: 3px; padding: 1px 5px; }}
pre {{ font: 13px/1.55 {MONO}; margin: 0; overflow-x: auto; white-space: pre; tab-size: 4; }}
pre.wrap {{ white-space: pre-wrap; overflow-wrap: anywhere; max-height: 460px; overflow-y: auto; }}
img, svg {{ max-width: 100%; height: auto; }}
math {{ font-size: 1.05em; overflow-x: auto; overflow-y: hidden; max-width: 100%; }}
math[display=block] {{ display: block math; margin: 10px 0; padding: 2px 0; }}
.cell {{ scroll-margin-top: 16px; }}
.cell:target > .code > summary {{ background: var(--amber-ground); }}
summary {{ cursor: pointer; }}
.code {{ margin: 10px 0 4px; }}
.code > summary {{ font-size: 13px; color: {MUTED}; width: fit-content; border-radius: 3px; padding: 0 4px 0 0;
  font-variant-numeric: tabular-nums; }}
.code > summary:hover {{ color: {INK}; }}
.code.failed > summary {{ color: var(--red); font-weight: 600; }}
.highlight pre, .prose pre {{ background: var(--ground); border-radius: 6px; padding: 12px 16px; margin: 6px 0; }}
.out {{ position: relative; contain: layout paint; overflow-x: auto; margin: 10px 0; padding: 1px; }}
@keyframes cut {{ from, 95% {{ mask-image: linear-gradient(to right, #000 calc(100% - 36px), transparent); }} }}
.wide {{ overflow-x: auto; }}
.wide, pre, .out.html, .out.paper {{ animation: cut linear; animation-timeline: scroll(self inline); }}
.stdout pre, .text pre {{ padding: 2px 0; }}
.stderr pre {{ background: var(--amber-ground); border-radius: 6px; padding: 10px 14px; }}
.long > details {{ margin: 4px 0; }}
.long > details > summary, .gone {{ font-size: 13px; color: {MUTED}; }}
p.gone {{ margin: 4px 0; }}
.error {{ background: var(--red-ground); border-left: 4px solid var(--red); border-radius: 0 6px 6px 0;
  padding: 12px 16px; }}
.raised {{ color: var(--red); margin: 0 0 6px; }}
.error pre {{ white-space: pre-wrap; overflow-wrap: anywhere; }}
.paper, .picture {{ color-scheme: light; color: #1e2832; }}
.paper {{ background: #fff; border-radius: 4px; padding: 8px 10px; }}
.paper a {{ color: #24629f; }}
.paper .gone {{ color: #5c6876; }}
.picture img, .html img {{ background: #fff; border-radius: 4px; display: block; }}
.prose img {{ border-radius: 4px; }}
.prose svg {{ background: #fff; color-scheme: light; border-radius: 4px; }}
.out > :is(p, ul, ol, dl) {{ margin: 4px 0; }}
.formula {{ padding: 4px 0; }}
table {{ border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }}
.prose table, .html table, .paper table {{ margin: 10px 0; border: 0; }}
.prose :is(td, th), :is(.html, .paper) :is(td, th) {{ padding: 5px 14px 5px 0; text-align: left; vertical-align: top;
  border: 0; border-bottom: 1px solid {LINE}; }}
:is(.prose, .html, .paper) th {{ font-weight: 600; }}
:is(.prose, .html, .paper) thead th {{ border-bottom: 2px solid {LINE}; }}
.html .dataframe :is(th, td), .paper .dataframe :is(th, td) {{ padding: 5px 0 5px 18px; }}
.dataframe thead th {{ text-align: right !important; }}
td[data-n] {{ text-align: right !important; white-space: nowrap; }}
.paper :is(td, th) {{ border-color: #d6dce4 !important; }}
[data-h] {{ font-weight: 600; margin: 10px 0 4px; }}
footer {{ margin-top: 48px; padding-top: 14px; border-top: 1px solid {LINE}; font-size: 13px; color: {MUTED}; }}
.ansi-bold {{ font-weight: 700; }} .ansi-italic {{ font-style: italic; }}
.ansi-underline {{ text-decoration: underline; }}
body .ocrlab {{ font-family: {SANS}; color: {INK}; margin: 0; }}
header .ocrlab {{ max-width: none; }}
@media (min-width: 1120px) {{
  body.listed {{ grid-template-columns: minmax(0, 1fr) 172px; gap: 0 28px; }}
  body.listed > header, body.listed > main, body.listed > footer {{ grid-column: 1; }}
  body.listed > nav {{ grid-column: 2; grid-row: 1 / span 3; margin: 0; }}
  body.listed > nav > div {{ position: sticky; top: 28px; border-left: 1px solid {LINE}; padding-left: 16px; }}
  body.listed > nav ol {{ display: block; }}
  body.listed > nav li {{ margin: 0 0 7px; line-height: 1.4; }}
  body.listed > nav li small {{ display: block; margin: 0; }}
}}
@media (max-width: 600px) {{
  body {{ padding: 18px 16px 40px; font-size: 15.5px; }}
  h1 {{ font-size: 24px; }} h2 {{ font-size: 19px; }}
  nav li small {{ display: none; }}
  .plot.plot.plot {{ max-width: none; width: 640px; }}
  .ocrlab .outcome {{ padding: 12px 14px; gap: 12px; }}
  .out table :is(td, th) {{ padding-right: 10px !important; }}
  .out table :is(th, td.words) {{ white-space: normal !important; }}
}}
@media print {{
  @page {{ margin: 16mm 15mm; }}
  :root {{ color-scheme: light; }}
  body {{ display: block; padding: 0; max-width: none; font-size: 10.5pt; }}
  .row > figure {{ max-width: calc(50% - 8px); }}
  .row:has(> figure:nth-child(3)) > :is([style*="width:2"], [style*="width:3"]) {{ max-width: calc(33.3% - 11px); }}
  nav, .here, .code:not([open]), .long > details:not([open]) {{ display: none; }}
  pre {{ white-space: pre-wrap; overflow-wrap: anywhere; font-size: 8.5pt; max-height: none !important; }}
  .out, .out .wide, .out [style*="max-height"] {{ overflow: visible !important; max-height: none !important;
    contain: none; }}
  .out table {{ font-size: 8pt !important; }}
  .out table :is(td, th) {{ padding-right: 10px !important; }}
  .out table :is(th, td.words) {{ white-space: normal !important; }}
  table:not(:has(tr:nth-child(24))) {{ break-inside: avoid; }}
  .picture, figure, svg, tr, dl, .outcome, .error, .say {{ break-inside: avoid; }}
  h1, h2, h3, h4, .say, .prose:has(h2, h3, h4) {{ break-after: avoid; }}
  * {{ print-color-adjust: exact; -webkit-print-color-adjust: exact; }}
}}
"""


@functools.cache
def sheet() -> str:
    """Return the style sheet of a report."""
    by_day = "".join(_syntax(classes, day) for classes, (day, _) in SYNTAX.items())
    by_night = "".join(_syntax(classes, night) for classes, (_, night) in SYNTAX.items())
    dark = (
        f":root{{{NIGHT}--ground:#22282f;--red:#ff9494;--red-ground:#331b1c;--amber-ground:#2b2618}}"
        f"[style*=--night]{{--ansi:var(--night)}}{by_night}{ansi.palette(ansi.GROUNDS[1])}"
        ".picture img,.html img,.sheet:is(img){filter:brightness(.92)}"
    )
    light = f"{themed(SHEET)}{by_day}{ansi.palette(ansi.GROUNDS[0])}{ansi.GROUNDED}"
    text = f"{light}@media screen and (prefers-color-scheme:dark){{{dark}}}"
    return re.sub(r"\s*\n\s*", " ", text).replace("; }", "}").replace(" { ", "{").replace(": ", ":").strip()


def _syntax(classes: str, colour: str) -> str:
    names = ",".join(f".{name}" for name in classes.split())
    return f".highlight :is({names}){{color:{colour}}}"
