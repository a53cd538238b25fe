"""Plots in one style: units on the axes, a title that says the finding, alt text; SVG while it is small, else PNG."""

from __future__ import annotations

import base64
import contextlib
import csv
import io
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ocrlab import plot_style, safe_read
from ocrlab.reports.view import ACCENT, BAD, GOOD, INK, MUTED, VIOLET, View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS = 2000  # of an SVG; above it a PNG is smaller and shows the same
DPI = 100
LOSSES = {"loss": "total", "bce": "probability (BCE)", "dice": "binary (dice)", "l1": "threshold (L1)"}
COLOURS = (ACCENT, GOOD, BAD, VIOLET, MUTED)
STYLE: Any = plot_style.STYLE | {
    "font.family": "DejaVu Sans",  # ships with matplotlib
    "axes.titlepad": 10,
    "lines.linewidth": 1.8,
    "svg.fonttype": "none",  # words as words: glyphs as outlines would be three quarters of the file
    "svg.hashsalt": "ocrlab",  # the same plot is the same file
}


@contextlib.contextmanager
def styled(columns: int = 1, *, width: float = 9.0, height: float = 3.2) -> Iterator[tuple[Figure, list[Axes]]]:
    """Yield a figure of `width` x `height` inches and its axes, side by side, with `STYLE` until the block ends."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, list(figure.subplots(1, columns, squeeze=False)[0])


def finished(figure: Figure, alt: str) -> View:
    """Return a figure as SVG if it has fewer than 2000 points, else as PNG at 100 dpi; `alt` says what it shows."""
    data, width = io.BytesIO(), round(DPI * figure.get_figwidth())
    if points(figure) < MOST_POINTS:
        figure.savefig(data, format="svg", dpi=2 * DPI, metadata={"Date": None})  # dpi of what is rasterized in it
        return View(_inline(data.getvalue().decode(), alt, width), alt)
    figure.savefig(data, format="png", dpi=DPI)
    code = base64.b64encode(data.getvalue()).decode("ascii")
    return View(f'<img class="sheet" width="{width}" src="data:image/png;base64,{code}" alt="{escape(alt)}">', alt)


def _inline(svg: str, alt: str, width: int) -> str:
    """Return an SVG as part of a page: with words for who cannot see it, and names of its own that no other plot has.

    What nobody sees is left out, places are hundredths of a point, and more fonts are named that are as wide.
    """
    text = re.sub(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(?<!scale\()(\d\.\d\d)\d+", r"\1", tag[0]), text)  # words stay
    text = re.sub(r">\s+<", "><", re.sub(r"\s+", " ", text)).strip()
    text = text.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")
    text = text.replace("stroke: #ffffff", "stroke: white")  # what is drawn white, on a map, stays so by night
    text = re.sub(r"<defs><style[^>]*>\*\{(.*?)\}</style></defs>", "", text)  # its rule would be one for the page
    own = f"{zlib.crc32(text.encode()):x}"
    used = set(re.findall(r"(?:url\(|href=\")#([^\")]+)", text))
    text = re.sub(r' id="([^"]*)"', lambda match: f' id="{own}-{match[1]}"' if match[1] in used else "", text)
    text = re.sub(r"(url\(|href=\")#", rf"\g<1>#{own}-", text)
    box = re.search(r'viewBox="[^"]*"', text)
    assert box is not None, "matplotlib writes one"
    inside = text[text.index(">") + 1 :]
    look = "stroke-linejoin:round;stroke-linecap:butt"
    about = f'width="{width}" style="{look}" role="img" aria-label="{escape(alt)}"'
    return f'<div class="wide"><svg class="sheet plot" {box[0]} {about}>{inside}</div>'


def counted(axes: Axes) -> None:
    """Number the x axis of `axes` in whole steps, also where there is only one."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))


def points(figure: Figure) -> int:
    """Return how many points a figure draws; an image counts its pixels, what is rasterized nothing."""
    count = 0
    for axes in figure.axes:
        count += sum(np.asarray(line.get_xydata()).size // 2 for line in axes.lines)
        count += sum(np.asarray(image.get_array()).size for image in axes.images)
        for collection in axes.collections:
            paths = [np.asarray(path.vertices).size // 2 for path in collection.get_paths()]
            count += (
                0 if collection.get_rasterized() else max(np.asarray(collection.get_offsets()).size // 2, *paths, 0)
            )
    return count


def read_metrics(path: Path | str) -> list[dict[str, float]]:
    """Return the rows of `metrics.csv`, each with the figures that it has; raises OSError."""
    with safe_read.open_table(path) as file:
        return [{name: float(text) for name, text in row.items() if name and text} for row in csv.DictReader(file)]


def curves(rows: Sequence[Mapping[str, float]], limit: float | None = None) -> View:
    """Return loss and hmean over the optimizer steps from the rows of `metrics.csv`; `limit` is a line at hmean@0.5."""
    with styled(2, height=3.7) as (figure, (left, right)):
        titles = [_loss(left, rows), _hmean(right, [row for row in rows if "hmean@0.5" in row], limit)]
        for axes in (left, right):
            axes.set_xlabel("optimizer step")
            if axes.lines:  # the legend goes below them, where no curve runs
                axes.legend(ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.18))
        return finished(figure, ". ".join(titles) + ".")


def _loss(axes: Axes, rows: Sequence[Mapping[str, float]]) -> str:
    """Draw the loss and its terms, and return what that shows."""
    losses = [(row["step"], row["loss"]) for row in rows if "loss" in row]
    title, ending = "No loss was logged", ""
    if losses:
        axes.set_yscale("log")
        for (name, label), colour in zip(LOSSES.items(), COLOURS, strict=False):
            curve = [(row["step"], row[name]) for row in rows if row.get(name, math.nan) > 0]
            if curve:
                marker, width = "o" if len(curve) < 4 else "", 2.2 if name == "loss" else 1.1
                axes.plot(*zip(*curve, strict=True), color=colour, label=label, marker=marker, linewidth=width)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
        first, last = losses[0][1], losses[-1][1]
        title = f"Loss {'fell' if last < first else 'did not fall'}: {first:.3g} to {last:.3g}"
        ending = f" in {losses[-1][0]:g} steps"
    axes.set(ylabel="loss, log scale", title=title)
    return title + ending


def _hmean(axes: Axes, rows: Sequence[Mapping[str, float]], limit: float | None) -> str:
    """Draw hmean at each IoU, and return how high it came."""
    for at, colour in zip(("0.5", "0.7", "0.8"), COLOURS, strict=False):
        curve = [(row["step"], row[f"hmean@{at}"]) for row in rows if f"hmean@{at}" in row]
        if curve:
            axes.plot(*zip(*curve, strict=True), color=colour, marker="o", markersize=4, label=f"IoU above {at}")
    if limit is not None:
        axes.axhline(limit, color=INK, linewidth=1, linestyle=(0, (4, 3)), label=f"limit {limit:g} at IoU 0.5")
    title = "No validation was logged"
    if rows:
        best = max(rows, key=lambda row: row["hmean@0.5"])
        reached = f"hmean@0.5 reached {best['hmean@0.5']:.3f} at step {best['step']:g}"
        title = reached if best["hmean@0.5"] else "hmean@0.5 stayed at 0: no text was found"
    axes.set(ylim=(0, 1), ylabel="hmean of validation pages, 0 to 1", title=title)
    return title
