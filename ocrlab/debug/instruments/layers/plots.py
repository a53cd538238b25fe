"""The figure of a layer watch: a few modules over the steps, many of them along the network."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ocrlab.debug.instruments.layers.table import GRADIENT, OUTPUT, FirstNonFinite, Row
from ocrlab.plot_style import ACCENT, BAD, GOOD, INK, MUTED, STYLE, VIOLET

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW = 5  # modules that get a curve of their own
COLOURS = (ACCENT, GOOD, VIOLET, "#b07a00", MUTED)


@dataclass(frozen=True)
class LayerFigure:
    """A matplotlib figure and its alternative text, which says what it shows; a notebook displays it by itself."""

    figure: Figure
    alt: str

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        data = io.BytesIO()
        self.figure.savefig(data, format="png", dpi=100)
        code = base64.b64encode(data.getvalue()).decode("ascii")
        html = f'<img style="max-width:100%" src="data:image/png;base64,{code}" alt="{escape(self.alt)}">'
        return {"text/html": html, "text/plain": self.alt}


def plot_layers(names: Sequence[str], rows: Sequence[Row], first: FirstNonFinite | None) -> LayerFigure:
    """Return deviations of outputs and of their gradients: over the steps of few modules, else along the network."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE | {"axes.titlesize": 10.5}):
        figure = Figure(figsize=(9.0, 3.6), layout="constrained")
        sentences = []
        for axes, what in zip(figure.subplots(1, 2), (OUTPUT, GRADIENT[OUTPUT]), strict=True):
            draw = _plot_over_steps if len(names) <= FEW else _plot_along_modules
            some = [row for row in rows if row.what == what and row.slot.figures is not None]
            axes.set_ylabel("standard deviation")
            sentences.append(draw(axes, names, some, what.replace("output", "the output")))
        if first is not None:
            sample = f", sample {first.sample}" if first.sample is not None else ""
            title = (
                f"First {'NaN' if first.nan else 'Inf'} at step {first.step}: {first.what} of {first.module}{sample}"
            )
            figure.suptitle(title, x=0.01, ha="left", color=BAD, fontsize=10.5, fontweight="bold")
            sentences.insert(0, first.sentence.rstrip("."))
        return LayerFigure(figure, ". ".join(sentences) + ".")


def _plot_over_steps(axes: Axes, names: Sequence[str], rows: Sequence[Row], what: str) -> str:
    """Draw one curve a module, the deviation over the steps, and a line at each step in which it is lost."""
    axes.set_xlabel("step")
    values: list[float] = []
    for name, colour in zip(names, COLOURS, strict=False):
        by_step = {row.call.step: _deviation(row) for row in rows if row.call.module == name}
        points = [(step, value) for step, value in sorted(by_step.items()) if math.isfinite(value)]
        if points:
            marker = "o" if len(points) < 4 else ""
            axes.plot(*zip(*points, strict=True), color=colour, label=name, linewidth=1.8, marker=marker, markersize=4)
        for step in by_step.keys() - dict(points).keys():
            axes.axvline(step, color=BAD, linewidth=1, linestyle=(0, (4, 3)))
        values += dict(points).values()
    return _finish_axes(axes, what, values, len(names) > 1, f"over the steps of {', '.join(names)}")


def _plot_along_modules(axes: Axes, names: Sequence[str], rows: Sequence[Row], what: str) -> str:
    """Draw one point a module in the order of computing: the deviation in the newest step, a cross where it is lost.

    The lowest and the highest are named.
    """
    axes.set_xlabel("module, in the order in which it computes")
    newest = {row.call.module: row for row in rows}
    last = sorted(newest.values(), key=lambda row: row.call.order)
    values = {place: _deviation(row) for place, row in enumerate(last)}
    good = [(place, value) for place, value in values.items() if math.isfinite(value)]
    bad = [place for place, value in values.items() if not math.isfinite(value)]
    if good:
        axes.plot(*zip(*good, strict=True), color=COLOURS[0], linewidth=0.8, marker="o", markersize=3.5)
    if bad:
        low = axes.get_xaxis_transform()
        axes.plot(bad, [0.04] * len(bad), "x", label="NaN or Inf only", color=BAD, markersize=5, transform=low)
    figures = [value for _, value in good]
    sentence = _finish_axes(axes, what, figures, bool(bad), f"along {len(last)} modules")
    axes.margins(y=0.12)
    for end, side, offset in ((min, "lowest", -9), (max, "highest", 9)) if len(set(figures)) > 1 else ():
        place, value = end(good, key=itemgetter(1))
        name = last[place].call.module
        style: Any = {"color": INK, "fontsize": 8, "ha": "left" if place < len(last) / 2 else "right", "va": "center"}
        axes.annotate(name, (place, value), (0, offset), textcoords="offset points", annotation_clip=False, **style)
        sentence += f", {side} in {name}"
    return sentence


def _finish_axes(axes: Axes, what: str, values: Sequence[float], legend: bool, where: str) -> str:
    """Set scale, title and legend, and return a sentence about the figures."""
    if not values:
        axes.set_title(f"No figures of {what}")
        return f"No figures of {what} {where}"
    low, high = min(values), max(values)
    if low > 0 and high / low > 20:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    if legend:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    span = f"{low:.2g} to {high:.2g}" if high > low else f"{high:.2g}"
    axes.set_title(f"{what[:1].upper()}{what[1:]}: {span}")
    return f"Standard deviation of {what} {where}: {span}"


def _deviation(row: Row) -> float:
    return row.slot.figures.std if row.slot.figures else math.nan
