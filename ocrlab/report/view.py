"""One thing to look at: HTML that stands alone, and the same in words for screen readers, terminals and diffs.

Every view brings its style with it: JupyterLab takes cells that are out of sight off the page, and their styles too.
JupyterLab also has rules of its own for code and lists (`.jp-ThemedContainer .jp-RenderedHTMLCommon :not(pre) > code`),
which only a longer selector overrules; that is why some classes below are written twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

INK, MUTED, LINE, PAPER, ACCENT = "#1f2933", "#5f6b7a", "#d8dee6", "#ffffff", "#2563a8"
GOOD, BAD, MISSED, IGNORED = "#00805a", "#c8450c", "#1d6fb8", "#8a94a0"  # told apart also by the colour-blind

CSS = f"""
.ocrlab {{ font: 14px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  color: var(--jp-content-font-color1, {INK}); max-width: 960px; margin: 4px 0; font-variant-numeric: tabular-nums; }}
.ocrlab p {{ margin: 2px 0; }}
.ocrlab .say {{ font-size: 15px; font-weight: 600; margin: 0 0 6px; }}
.ocrlab .note {{ font-size: 12.5px; opacity: .78; margin: 6px 0 0; }}
.ocrlab.ocrlab.ocrlab code {{ font: 12.5px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  background: none; padding: 0; overflow-wrap: anywhere; color: inherit; }}
.ocrlab dl dt, .ocrlab dl dd {{ float: none; width: auto; }}
.ocrlab dl dt {{ font-weight: 400; }}
.ocrlab ol.rungs.rungs, .ocrlab ul.lines.lines {{ padding-left: 0; }}
.ocrlab img, .ocrlab svg {{ max-width: 100%; height: auto; display: block; }}
.ocrlab .row {{ display: flex; flex-wrap: wrap; gap: 16px; align-items: flex-start; }}
.ocrlab figure {{ margin: 0; }}
.ocrlab figcaption {{ font-size: 12.5px; margin: 5px 0 0; }}
.ocrlab .sheet {{ border: 1px solid {LINE}; border-radius: 4px; background: {PAPER}; }}
"""


@dataclass(frozen=True)
class View:
    """`html` for a page, `text` for everyone else; a notebook shows it by itself."""

    html: str
    text: str

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/html": page(self.html), "text/plain": self.text}


def page(html: str, css: str = "") -> str:
    """Return HTML with the style that it needs."""
    return f'<style>{CSS}{css}</style><div class="ocrlab">{html}</div>'


def say(finding: str, note: str = "") -> str:
    """Return a title that says the finding, with a note for what goes below the picture."""
    return f'<p class="say">{escape(finding)}</p>' + (f'<p class="note">{escape(note)}</p>' if note else "")


def together(views: Iterable[View]) -> View:
    """Return views below each other as one."""
    every = list(views)
    return View("".join(view.html for view in every), "\n".join(view.text for view in every))
