"""How the inspect notebook draws a page: polygons by what they are, the figures, the lists, and what can be saved.

What a polygon is, its dash tells as well as its colour. Shapes: N ground truths, M detections, P points.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from ocrlab.notebook.page_viewer.messages import Detections, ViewedPage
from ocrlab.records import Prediction, to_json
from ocrlab.reports.html.page_images import Layer, path_data
from ocrlab.reports.view import ACCENT, BAD, GOOD, IGNORED, MISSED, load_css

RIGHT, WRONG, LOST, NOT_COUNTED, SPARE, PLAIN, NOTED = (
    "found",
    "wrong",
    "missed",
    "ignored text",
    "on ignored text",
    "text",
    "annotation",
)
DASHES = {WRONG: "9 3 2 3", LOST: "6 4", NOT_COUNTED: "1.5 3", NOTED: "2 2"}
COLOURS = {RIGHT: GOOD, WRONG: BAD, LOST: MISSED, NOT_COUNTED: IGNORED, SPARE: IGNORED, PLAIN: ACCENT, NOTED: "#1f2933"}
FILLS = {WRONG: 0.14, LOST: 0.16, NOT_COUNTED: 0.18}
NAME = 80  # characters of an uploaded file's name
LISTED = 400  # rows of a list; a browser bears no more of them at each move of a slider
STYLE = load_css("page_viewer")


def layers(page: ViewedPage, judged: Detections, annotation: bool = False) -> list[Layer]:
    """Return the polygons of a page by what they are; `annotation` adds the ground truth of what was found."""
    if not page.annotated:
        return [Layer(PLAIN, judged.polygons, COLOURS[PLAIN])]
    kinds = of_detections(judged)
    matched = {truth for truth, _ in judged.pairs}
    by_kind: dict[str, list[NDArray[np.float32]]] = {NOT_COUNTED: [], LOST: [], WRONG: [], SPARE: [], RIGHT: []}
    for n, polygon in enumerate(page.truth):
        if n not in matched:
            by_kind[NOT_COUNTED if page.ignored[n] else LOST].append(polygon)
    for kind, polygon in zip(kinds, judged.polygons, strict=True):
        by_kind[kind].append(polygon)
    annotations = [page.truth[n] for n in sorted(matched)] if annotation else []
    kinds_to_draw = {**by_kind, NOTED: annotations} if annotation else by_kind
    return [
        Layer(name, them, COLOURS[name], DASHES.get(name, ""), FILLS.get(name, 0.0))
        for name, them in kinds_to_draw.items()
    ]


def of_detections(judged: Detections) -> list[str]:
    """Return what each detection is: found, wrong, or on ignored text."""
    right = {detection for _, detection in judged.pairs}
    return [RIGHT if m in right else WRONG if judged.counts[m] else SPARE for m in range(len(judged.polygons))]


def overlay(
    page: ViewedPage, layers: Sequence[Layer], labels: Mapping[int, str], numbered: Sequence[NDArray[np.float32]]
) -> str:
    """Return the polygons as an SVG that lies over the page; `labels` are written at the polygons of `numbered`."""
    halo = "".join(path_data(layer.polygons) for layer in layers if len(layer.polygons))
    paths = "".join(_layer(layer) for layer in layers if len(layer.polygons))
    size = max(page.width, page.height) / 62
    words = "".join(
        f'<text x="{numbered[m][:, 0].min():.0f}" y="{numbered[m][:, 1].min() - size / 6:.0f}">{escape(text)}</text>'
        for m, text in labels.items()
    )
    named = f'<g font-size="{size:.0f}" font-family="system-ui, sans-serif" fill="#1f2933" stroke="#fff" '
    named += f'paint-order="stroke" stroke-width="{size / 4:.1f}" stroke-linejoin="round">{words}</g>'
    alt = f"{page.name}: " + ", ".join(f"{len(layer.polygons)} {layer.name}" for layer in layers)
    return (
        f'<svg viewBox="0 0 {page.width} {page.height}" role="img" aria-label="{escape(alt)}">'
        f'<path d="{halo}" fill="none" stroke="#fff" stroke-opacity=".8" stroke-width="4" '
        f'vector-effect="non-scaling-stroke"/>'
        f"{paths}{named if words else ''}</svg>"
    )


def _layer(layer: Layer) -> str:
    dash = f' stroke-dasharray="{layer.dash}"' if layer.dash else ""
    fill = f'fill="{layer.colour}" fill-opacity="{layer.fill:g}"' if layer.fill else 'fill="none"'
    line = f'stroke="{layer.colour}" stroke-width="2" vector-effect="non-scaling-stroke"{dash}'
    return f'<path class="{layer.name.replace(" ", "-")}" d="{path_data(layer.polygons)}" {fill} {line}/>'


def base(page: ViewedPage, picture: str, what: str) -> str:
    """Return what lies under the polygons: the page or one of its maps, stretched to the size of the page."""
    alt = f"{what} of {page.name}"
    return (
        f'<svg viewBox="0 0 {page.width} {page.height}" role="img" aria-label="{escape(alt)}"><image href="{picture}" '
        f'width="{page.width}" height="{page.height}" preserveAspectRatio="none"/></svg>'
    )


def legend(layers: Sequence[Layer]) -> str:
    """Return what the lines mean, each with its number of polygons."""
    keys = "".join(f"<li>{sign(layer)}{escape(layer.name)}<b>{len(layer.polygons)}</b></li>" for layer in layers)
    return f'<ul class="keys">{keys}</ul>'


def sign(layer: Layer) -> str:
    """Return a small piece of a layer's line."""
    dash = f' stroke-dasharray="{layer.dash}"' if layer.dash else ""
    fill = f'fill="{layer.colour}" fill-opacity="{max(layer.fill, 0.0):g}"'
    return (
        '<svg class="day" width="28" height="15" viewBox="0 0 30 15" aria-hidden="true" '
        'style="flex:none;background:#fff;'
        f'border-radius:2px"><rect x="2.5" y="2.5" width="25" height="10" {fill} stroke="{layer.colour}" '
        f'stroke-width="2"{dash}/></svg>'
    )


def figures(judged: Detections, baseline: Detections) -> str:
    """Return hmean, precision and recall of the page, each with its difference to the detector's own settings."""
    if judged.figures is None:
        many = f"{len(judged.polygons)} text region" + ("" if len(judged.polygons) == 1 else "s")
        return f'<div role="status"><p class="say">{many}</p><p class="note">No annotation to compare with.</p></div>'
    before = baseline.figures or judged.figures
    names = ("hmean@0.5", "precision", "recall")
    cells = "".join(
        f"<div><small>{name}</small><b>{value:.3f}</b><small>{_change(value - was)}</small></div>"
        for name, value, was in zip(names, judged.figures, before, strict=True)
    )
    return f'<div class="figures" role="status">{cells}</div>'


def about(page: ViewedPage, judged: Detections, baseline: Detections) -> str:
    """Return the figures of a page, its size, and what the network and the way from its map took."""
    took = f"network {1000 * page.seconds:.0f} ms, map to polygons and figures {1000 * judged.seconds:.1f} ms"
    size = f"{page.width} × {page.height} px, maps {page.inner[0]} × {page.inner[1]}"
    return f'{figures(judged, baseline)}<p class="plainly">{size}; {took}</p>'


def alert(text: str) -> str:
    """Return a sentence about something that went wrong, or that one should know."""
    return f'<div class="ocrlab"><p class="told" role="alert">{escape(text)}</p></div>'


def _change(difference: float) -> str:
    return "as set" if abs(difference) < 5e-4 else f"{difference:+.3f}".replace("-", "\u2212")


def listed(page: ViewedPage, judged: Detections) -> str:
    """Return the lists of what was found and of what was missed, the doubtful ones first."""
    head = (
        ("no.", "is", "score", "best IoU", "width × height") if page.annotated else ("no.", "score", "width × height")
    )
    kinds = of_detections(judged)
    worst = sorted(range(len(kinds)), key=lambda m: (kinds[m] != WRONG, float(judged.scores[m])))
    rows = []
    for m in worst[:LISTED]:
        span = np.ptp(judged.polygons[m], axis=0)
        more = (kinds[m], f"{judged.scores[m]:.3f}", f"{judged.best[m]:.2f}")
        cells = more if page.annotated else more[1:2]
        rows.append((str(m + 1), *cells, f"{span[0]:.0f} × {span[1]:.0f}"))
    tables = _table(f"{len(kinds)} found", head, rows, words=("is",))
    if page.annotated:
        matched = {truth for truth, _ in judged.pairs}
        lost = [n for n in range(len(page.truth)) if n not in matched and not page.ignored[n]]
        gone = [(page.texts[n] or "·", f"{page.peaks[n]:.2f}", f"{judged.reached[n]:.2f}") for n in lost[:LISTED]]
        tables += _table(f"{len(lost)} missed", ("text", "highest probability", "best IoU"), gone, words=("text",))
    return f'<div class="row">{tables}</div>'


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[str]) -> str:
    kinds = ["words text" if name == "text" else "words" if name in words else "" for name in head]
    top = "".join(f'<th scope="col" class="{kind}">{name}</th>' for name, kind in zip(head, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f'<td class="{k}">{escape(cell)}</td>' for cell, k in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows
    )
    table = f'<table class="listed"><tr>{top}</tr>{body}</table>'
    scrolled = f'<div class="list" tabindex="0" role="region" aria-label="{title}">{table}</div>' if rows else ""
    return f'<div style="flex:1 1 280px;min-width:0"><p class="say">{title}</p>{scrolled}</div>'


def saved(page: ViewedPage, judged: Detections) -> str:
    """Return links that save what was found, as JSON and as ICDAR text; they hold the files themselves."""
    scored = [
        {"polygon": polygon.tolist(), "score": score}
        for polygon, score in zip(judged.polygons, judged.scores.tolist(), strict=True)
    ]
    record = to_json(Prediction(page.name, page.width, page.height)) | {"detections": scored}
    stem = page.name.rpartition(".")[0] or page.name
    files = (
        (f"{stem}.json", "application/json", json.dumps(record, ensure_ascii=False), "JSON"),
        (f"{stem}.txt", "text/plain", judged.icdar, "ICDAR text"),
    )
    links = "".join(
        f'<a class="save" download="{escape(name.replace("/", "-"))}" href="data:{kind};base64,'
        f'{base64.b64encode(text.encode(errors="replace")).decode("ascii")}">{words}</a>'
        for name, kind, text, words in files
    )
    return f"<p>Save the polygons: {links}</p>"


def plain_name(name: str) -> str:
    """Return the name of an uploaded file without folders and without what no file system takes."""
    last = "".join(letter for letter in name.replace("\\", "/").rpartition("/")[2] if letter.isprintable())
    return last.strip(". ")[-NAME:] or "image"
