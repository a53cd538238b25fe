"""The sections of the inspect notebook: one detector, one page after another, and what its settings make of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocrlab.notebook.page_viewer import drawing
from ocrlab.notebook.page_viewer.connection import Link
from ocrlab.notebook.page_viewer.messages import Judged, Listed, Opened, Seen, Small, Source
from ocrlab.notebook.page_viewer.widgets import Panel
from ocrlab.redaction import clean
from ocrlab.reports.html import page_images, tables
from ocrlab.reports.html.page_images import Layer
from ocrlab.reports.view import View, say

if TYPE_CHECKING:
    from ocrlab.notebook.lab_session import Lab

_open: list[Link] = []  # the newest child; one notebook needs no two of them


@dataclass(frozen=True)
class Looking:
    """A detector that is open, and the page that is shown first."""

    link: Link
    opened: Opened
    pages: Listed
    source: Source
    seen: Seen
    judged: Judged  # by the detector's own settings
    small: Small


def look(lab: Lab, checkpoint: str, place: int) -> Looking:
    """Open a detector in a child and let it see a page; raises CheckpointError, DataError, ChildFailed.

    `checkpoint` is a path, `newest` for the best of the newest successful run, or `receipts`, the shipped one.
    """
    for link in _open:
        link.close()
    config = lab.config
    first = ("open", checkpoint, config.runs, config.data, config.exif)
    link = Link(first, Path(config.runs))
    _open[:] = [link]
    opened: Opened = link.ask(*first)
    listed: Listed = link.ask("pages", config.val_split)
    source = Source(config.val_split, place % len(listed.names))
    seen: Seen = link.ask("see", source)
    return Looking(
        link, opened, listed, source, seen, link.ask("judge", source, opened.post), link.ask("small", source)
    )


def about(looking: Looking) -> View:
    """Return which detector looks, with which settings, and at what."""
    opened, post, pages = looking.opened, looking.opened.post, looking.pages
    unclip = f"exact, shrink ratio {opened.shrink_ratio:g}" if post.unclip == "exact" else f"ratio {post.unclip:g}"
    rows = [
        ("detector", clean(opened.origin)),
        ("network", opened.network),
        ("threshold / of a box", f"{post.threshold:g} / {post.box_threshold:g}"),
        ("unclip", unclip),
        ("min size, shape", f"{post.min_size:g} px, {post.shape}"),
        ("pages", f"{len(pages.names)} of {pages.split}"),
    ]
    left = f"{len(pages.problems)} pages cannot be used: {clean(pages.problems[0])}" if pages.problems else ""
    finding = f"{Path(looking.seen.name).name}: {_found(looking.judged)}"
    return tables.table(("what", "is"), rows, finding, left)


def _found(judged: Judged) -> str:
    if judged.figures is None:
        return f"{len(judged.polygons)} text regions"
    return f"{len(judged.pairs)} of {len(judged.polygons)} detections are right, hmean@0.5 {judged.figures[0]:.3f}"


@dataclass(frozen=True)
class Live(View):
    """A page in a report; where a kernel runs, sliders beside it instead."""

    widget: Any = None

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        live = self.widget._repr_mimebundle_() if self.widget is not None else {}
        kind = "application/vnd.jupyter.widget-view+json"
        return super()._repr_mimebundle_() | {name: value for name, value in live.items() if name == kind}


def page(looking: Looking) -> Live:
    """Return the page with its sliders for JupyterLab and voila, which in a report are the page and its maps."""
    names: dict[str, list[str]] = {split: [] for split in looking.opened.splits} | {
        looking.pages.split: looking.pages.names
    }
    panel = Panel(looking.link, looking.opened, names, looking.source, looking.seen, looking.judged, looking.judged)
    still = static(looking)
    return Live(still.html, still.text, panel.root)


def static(looking: Looking) -> View:
    """Return the page with its polygons beside its probability map and its threshold map, with lists and figures."""
    seen, judged, small = looking.seen, looking.judged, looking.small
    drawn = drawing.layers(seen, judged)
    height, width = small.image.shape[:2]
    share = (width / seen.width, height / seen.height)
    layers = [
        Layer(one.name, [polygon * share for polygon in one.polygons], one.colour, one.dash, one.fill) for one in drawn
    ]
    told = ", ".join(f"{len(layer.polygons)} {layer.name}" for layer in drawn)
    shown = [
        page_images.picture(small.image, f"{seen.name}: {told}", layers, "<b>Polygons</b> by what they are"),
        page_images.picture(small.heat, "probability map", (), f"<b>Probability</b> {page_images.scale(0, 1)}"),
        page_images.picture(small.threshold, "threshold map", (), f"<b>Threshold map</b> {page_images.scale(0, 1)}"),
    ]
    rest = [
        '<div style="height:10px"></div>',
        drawing.figures(judged, judged),
        drawing.legend(drawn),
        drawing.listed(seen, judged),
    ]  # no links that save: a report takes such addresses out, and no name inside one could be redacted
    note = "In JupyterLab and under voila sliders stand here: other thresholds, other pages, your own images."
    style = f"<style>{drawing.STYLE}</style>"
    row = f'<div class="row">{"".join(shown)}</div>'
    finding = f"{seen.name}: {_found(judged)}"
    html = f'{style}{say(finding)}{row}{"".join(rest)}<p class="note">{note}</p>'
    return View(html, f"{finding}. {told}")


def judge(lab: Lab, looking: Looking, limit: float) -> None:
    """Judge the page that was shown first; a page without text that counts says nothing, and is not judged."""
    lab.next = "ocrlab predict PAGES --out found"
    if looking.judged.figures is not None and not looking.seen.ignored.all():
        lab.outcome("hmean@0.5 of the page", looking.judged.figures[0], limit)
