"""One thing to look at: HTML that stands alone, and the same in words for screen readers, terminals and diffs.

Every view brings its style with it: JupyterLab removes cells that are out of sight from the page, and their styles
too. Style sheets name colours as variables; each has its value by day as a default, and is set only where it is dark:
in JupyterLab's dark theme, and in a report on a screen that prefers it. A photograph of paper keeps the colours of day.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from ocrlab import plot_style

INK, MUTED, LINE, ACCENT = plot_style.INK, plot_style.MUTED, plot_style.LINE, plot_style.ACCENT
GOOD, BAD, VIOLET = plot_style.GOOD, plot_style.BAD, plot_style.VIOLET
PAPER, MISSED, IGNORED = "#ffffff", "#1d6fb8", "#8a94a0"
DARK = {  # by day -> name, and the same by night: text is read on its ground at 4.5:1 in both
    INK: ("ink", "#e4e9ee"),
    MUTED: ("muted", "#9fabb8"),
    LINE: ("line", "#36404a"),
    PAPER: ("paper", "#171c21"),
    ACCENT: ("accent", "#74b0f4"),
    GOOD: ("good", "#43c290"),
    BAD: ("bad", "#ff8f5e"),
    MISSED: ("missed", "#6cb4f7"),
    IGNORED: ("ignored", "#8a94a0"),
    VIOLET: ("violet", "#bf95e8"),
    "#116b39": ("pass", "#6fd39b"),
    "#e9f6ee": ("pass-ground", "#12281c"),
    "#e3f3e9": ("pass-pill", "#17372a"),
    "#855600": ("warn", "#e9b949"),
    "#7a4f00": ("warn-deep", "#f0c660"),
    "#fdf4dc": ("warn-ground", "#2b230f"),
    "#fcefcb": ("warn-pill", "#3b2e10"),
    "#ab1f24": ("fail", "#ff9494"),
    "#9c1a20": ("fail-deep", "#ff9f9f"),
    "#fcecec": ("fail-ground", "#331b1c"),
    "#fbe3e3": ("fail-pill", "#402022"),
    "#7b1f79": ("crashed", "#e5a3e3"),
    "#f8ebf8": ("crashed-ground", "#2e1b2e"),
    "#8f3d05": ("stuck", "#f5a873"),
    "#fcefe5": ("stuck-ground", "#312014"),
    "#46525f": ("neutral", "#b6c1cc"),
    "#eef1f4": ("neutral-ground", "#222a32"),
    "#e8ecf1": ("neutral-pill", "#2b343d"),
    "#dde3ea": ("band", "#3a4550"),
    "#1f4e79": ("deep", "#3f78b0"),
    "#16324f": ("deepest", "#6f8fb0"),
}
WIDGET_MIME = "application/vnd.jupyter.widget-view+json"
NIGHT = "".join(f"--ocr-{name}:{dark};" for name, dark in DARK.values())
DAY = "".join(f"--ocr-{name}:initial;" for name, _ in DARK.values())
BY_NAME = {name: colour for colour, (name, _) in DARK.items()}
THEME_COLOURS = re.compile(rf"(?<![a-z],)(?:{'|'.join(DARK)})(?![0-9a-f])", re.IGNORECASE)
STYLES = Path(__file__).with_name("styles")


def load_css(name: str) -> str:
    """Return a style sheet of `styles/`, in which each colour has its value by day as a default."""
    text = (STYLES / f"{name}.css").read_text(encoding="utf-8")
    text = re.sub(r"/\*.*?\*/\s*", "", text, flags=re.DOTALL)
    return re.sub(r"var\(--ocr-([a-z-]+)\)", lambda match: f"var(--ocr-{match[1]},{BY_NAME[match[1]]})", text)


CSS = (
    f'{load_css("view")}[data-jp-theme-light="false"] .ocrlab, .vscode-dark .ocrlab {{ {NIGHT} }}\n'
    f".ocrlab .day {{ {DAY} }}\n"
)


@functools.cache
def report_css() -> str:
    """Return the style sheet of a report, on few lines."""
    text = f"{load_css('report')}@media screen and (prefers-color-scheme:dark){{:root{{{NIGHT}}}}}"
    return re.sub(r"\s*\n\s*", " ", text).replace("; }", "}").replace(" { ", "{").replace(": ", ":").strip()


@dataclass(frozen=True)
class View:
    """`html` for a page, `text` for everyone else; a notebook shows it by itself."""

    html: str
    text: str

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/html": page(self.html), "text/plain": self.text}


@dataclass(frozen=True)
class WidgetView(View):
    """A view that stands in a report, and a widget that takes its place where a kernel runs."""

    widget: Any = None

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        live = self.widget._repr_mimebundle_() if self.widget is not None else {}
        return super()._repr_mimebundle_() | {kind: data for kind, data in live.items() if kind == WIDGET_MIME}


def page(html: str, css: str = "") -> str:
    """Return HTML with the style that it needs, in colours that also know the dark."""
    return themed(f'<style>{CSS}{css}</style><div class="ocrlab">{html}</div>')


def themed(text: str) -> str:
    """Return CSS, HTML or SVG whose known colours are variables with the colour by day as a default."""
    return THEME_COLOURS.sub(lambda match: f"var(--ocr-{DARK[match[0].lower()][0]},{match[0]})", text)


def heading(finding: str, note: str = "") -> str:
    """Return a title that states the finding, with a note for what goes below the picture."""
    return f'<p class="say">{coded(finding)}</p>' + (f'<p class="note">{coded(note)}</p>' if note else "")


def coded(text: str) -> str:
    """Return text for HTML, with what stands between backquotes as code."""
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", escape(text))


def join_views(views: Iterable[View]) -> View:
    """Return views below each other as one."""
    every = list(views)
    return View("".join(view.html for view in every), "\n".join(view.text for view in every))
