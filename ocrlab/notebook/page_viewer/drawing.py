"""How the inspect notebook draws a page: polygons by what they are, the figures, and the lists.

What a polygon is, its dash or its fill tells as well as its colour. Shapes: N ground truths, M detections, P points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from ocrlab.notebook.page_viewer.messages import Detections, ViewedPage
from ocrlab.reports.html import tables
from ocrlab.reports.html.page_images import Layer, match_layers, path_data
from ocrlab.reports.view import ACCENT, IGNORED, load_css

RIGHT, WRONG, SPARE = "found", "wrong", "on ignored text"  # what a detection is
FIGURES = ("hmean@0.5", "precision", "recall")
LISTED = 400  # rows of a list; a browser bears no more of them at each move of a slider
STYLE = load_css("page_viewer")


def layers(page: ViewedPage, judged: Detections) -> list[Layer]:
    """Return the polygons of a page by what they are."""
    if not page.annotated:
        return [Layer("text", judged.polygons, ACCENT)]
    kinds = zip(of_detections(judged), judged.polygons, strict=True)
    spare = Layer(SPARE, [polygon for kind, polygon in kinds if kind == SPARE], IGNORED)
    return [spare, *match_layers(page.truth, page.ignored, judged.polygons, judged.pairs, judged.counts)]


def of_detections(judged: Detections) -> list[str]:
    """Return what each detection is: found, wrong, or on ignored text."""
    right = {detection for _, detection in judged.pairs}
    return [RIGHT if m in right else WRONG if judged.counts[m] else SPARE for m in range(len(judged.polygons))]


def overlay(page: ViewedPage, layers: Sequence[Layer]) -> str:
    """Return the polygons as an SVG that lies over the page."""
    filled = [(layer, path_data(layer.polygons)) for layer in layers if len(layer.polygons)]
    halo = "".join(path for _, path in filled)
    paths = "".join(
        f'<path class="{layer.name.replace(" ", "-")}" d="{path}" {layer.style(2)}/>' for layer, path in filled
    )
    alt = f"{page.name}: " + ", ".join(f"{len(layer.polygons)} {layer.name}" for layer in layers)
    return (
        f'<svg viewBox="0 0 {page.width} {page.height}" role="img" aria-label="{escape(alt)}">'
        f'<path d="{halo}" fill="none" stroke="#fff" stroke-opacity=".8" stroke-width="4" '
        f'vector-effect="non-scaling-stroke"/>{paths}</svg>'
    )


def base(page: ViewedPage, picture: str, what: str) -> str:
    """Return what lies under the polygons: the page or one of its maps, stretched to the size of the page."""
    alt = f"{what} of {page.name}"
    return (
        f'<svg viewBox="0 0 {page.width} {page.height}" role="img" aria-label="{escape(alt)}"><image href="{picture}" '
        f'width="{page.width}" height="{page.height}" preserveAspectRatio="none"/></svg>'
    )


def legend(layers: Sequence[Layer]) -> str:
    """Return what the lines mean: a small piece of each, with its number of polygons."""
    keys = "".join(
        '<li><svg class="day" width="28" height="15" viewBox="0 0 30 15" aria-hidden="true" '
        'style="flex:none;background:#fff;border-radius:2px"><rect x="2.5" y="2.5" width="25" height="10" '
        f"{layer.style(2)}/></svg>{escape(layer.name)}<b>{len(layer.polygons)}</b></li>"
        for layer in layers
    )
    return f'<ul class="keys">{keys}</ul>'


def figures(judged: Detections, baseline: Detections) -> str:
    """Return hmean, precision and recall of the page, each with its difference to the detector's own settings."""
    if judged.figures is None:
        many = f"{len(judged.polygons)} text region" + ("" if len(judged.polygons) == 1 else "s")
        return f'<div role="status"><p class="say">{many}</p><p class="note">No annotation to compare with.</p></div>'
    cells = ""
    for name, value, own in zip(FIGURES, judged.figures, baseline.figures or judged.figures, strict=True):
        change = f"{value - own:+.3f}".replace("-", "\u2212") if abs(value - own) >= 5e-4 else "as set"
        cells += f"<div><small>{name}</small><b>{value:.3f}</b><small>{change}</small></div>"
    return f'<div class="figures" role="status">{cells}</div>'


def alert(text: str) -> str:
    """Return a sentence about something that went wrong, or that one should know."""
    return f'<div class="ocrlab"><p class="problem" role="alert">{escape(text)}</p></div>'


def listed(page: ViewedPage, judged: Detections) -> str:
    """Return the lists of what was found and of what was missed, the doubtful ones first."""
    kinds = of_detections(judged)
    worst = sorted(range(len(kinds)), key=lambda m: (kinds[m] != WRONG, float(judged.scores[m])))
    spans = {m: np.ptp(judged.polygons[m], axis=0) for m in worst[:LISTED]}
    columns = {
        "no.": [str(m + 1) for m in spans],
        "is": [kinds[m] for m in spans],
        "score": [f"{judged.scores[m]:.3f}" for m in spans],
        "best IoU": [f"{judged.best[m]:.2f}" for m in spans],
        "width × height": [f"{across:.0f} × {down:.0f}" for across, down in spans.values()],
    }
    if not page.annotated:
        del columns["is"], columns["best IoU"]
        return f'<div class="row">{_table(f"{len(kinds)} found", columns)}</div>'
    matched = {truth for truth, _ in judged.pairs}
    lost = [n for n in range(len(page.truth)) if n not in matched and not page.ignored[n]]
    missed = {
        "text": [page.texts[n] or "·" for n in lost[:LISTED]],
        "highest probability": [f"{page.peaks[n]:.2f}" for n in lost[:LISTED]],
        "best IoU": [f"{judged.reached[n]:.2f}" for n in lost[:LISTED]],
    }
    return f'<div class="row">{_table(f"{len(kinds)} found", columns)}{_table(f"{len(lost)} missed", missed)}</div>'


def _table(title: str, columns: Mapping[str, Sequence[str]]) -> str:
    table = tables.table(list(columns), list(zip(*columns.values(), strict=True)), title)
    return f'<div class="list" tabindex="0" role="region" aria-label="{title}">{table.html}</div>'


def plain_name(name: str) -> str:
    """Return the name of an uploaded file without folders and without what no file system takes."""
    last = "".join(letter for letter in name.replace("\\", "/").rpartition("/")[2] if letter.isprintable())
    return last.strip(". ")[-80:] or "image"
