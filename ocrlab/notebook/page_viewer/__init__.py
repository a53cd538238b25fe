"""The sections of the inspect notebook: one detector, one page after another, and what its settings make of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ocrlab.notebook.page_viewer import drawing
from ocrlab.notebook.page_viewer.connection import Link
from ocrlab.notebook.page_viewer.messages import Detections, DetectorInfo, PageList, Source, ViewedPage
from ocrlab.notebook.page_viewer.widgets import Panel
from ocrlab.redaction import clean
from ocrlab.reports.html import page_images, tables
from ocrlab.reports.view import View, WidgetView, heading

if TYPE_CHECKING:
    from ocrlab.notebook.lab_session import Lab

_open: list[Link] = []  # the newest child; one notebook needs no two of them


@dataclass(frozen=True)
class Viewer:
    """A detector that is open, and the page that is shown first."""

    link: Link
    opened: DetectorInfo
    pages: PageList
    source: Source
    page: ViewedPage
    judged: Detections  # by the detector's own settings
    small: tuple[str, str, str]  # pictures of the page and its two maps, for a report


def look(lab: Lab, checkpoint: str, place: int) -> Viewer:
    """Open a detector in a child and let it see a page; raises CheckpointError, DataError, ChildFailed.

    `checkpoint` is a path, `newest` for the best of the newest successful run, or `receipts`, the included one.
    """
    for link in _open:
        link.close()
    config = lab.config
    first = ("open", checkpoint, config.runs, config.data, config.exif)
    link = Link(first, Path(config.runs))
    _open[:] = [link]
    opened: DetectorInfo = link.ask(*first)
    pages: PageList = link.ask("pages", config.val_split)
    source = Source(config.val_split, place % len(pages.names))
    page = link.ask("see", source)
    return Viewer(link, opened, pages, source, page, link.ask("judge", source, opened.post), link.ask("small", source))


def about(viewer: Viewer) -> View:
    """Return which detector looks, with which settings, and at what."""
    opened, post, pages = viewer.opened, viewer.opened.post, viewer.pages
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
    finding = f"{Path(viewer.page.name).name}: {_scores_text(viewer.judged)}"
    return tables.table(("what", "is"), rows, finding, left)


def _scores_text(judged: Detections) -> str:
    assert judged.figures is not None, "every page of a split has its annotation"
    return f"{len(judged.pairs)} of {len(judged.polygons)} detections are right, hmean@0.5 {judged.figures[0]:.3f}"


def page(viewer: Viewer) -> WidgetView:
    """Return the page with its sliders for JupyterLab and voila, which in a report are the page and its maps."""
    names: dict[str, list[str]] = {split: [] for split in viewer.opened.splits}
    names[viewer.pages.split] = viewer.pages.names
    panel = Panel(viewer.link, viewer.opened, names, viewer.source, viewer.page, viewer.judged)
    page, judged, size = viewer.page, viewer.judged, (viewer.page.width, viewer.page.height)
    layers = drawing.layers(page, judged)
    counts = ", ".join(f"{len(layer.polygons)} {layer.name}" for layer in layers)
    image, heat, threshold = viewer.small
    color_scale = page_images.scale(0, 1)
    pictures = [
        page_images.figure(image, size, f"{page.name}: {counts}", layers, "<b>Polygons</b> by what they are"),
        page_images.figure(heat, size, "probability map", (), f"<b>Probability</b> {color_scale}"),
        page_images.figure(threshold, size, "threshold map", (), f"<b>Threshold map</b> {color_scale}"),
    ]
    rest = [drawing.figures(judged, judged), drawing.legend(layers), drawing.listed(page, judged)]
    note = "In JupyterLab and under voila sliders stand here: other thresholds, other pages, your own images."
    finding = f"{page.name}: {_scores_text(judged)}"
    html = f'<style>{drawing.STYLE}</style>{heading(finding)}<div class="row">{"".join(pictures)}</div>'
    html += f'<div style="height:10px"></div>{"".join(rest)}<p class="note">{note}</p>'
    return WidgetView(html, f"{finding}. {counts}", panel.root)


def judge(lab: Lab, viewer: Viewer, limit: float) -> None:
    """Judge the page that was shown first; a page without text that counts says nothing, and is not judged."""
    lab.next = "ocrlab predict PAGES --out found"
    if viewer.judged.figures is not None and not viewer.page.ignored.all():
        lab.outcome("hmean@0.5 of the page", viewer.judged.figures[0], limit)
