"""The stacked timeline of one training step, with the modules named; plain data in, matplotlib out, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ocrlab.debug.instruments.memory.timeline import KINDS, LABELS, OUTSIDE, Segment, Step, size
from ocrlab.plot_style import BAD, INK, MUTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {  # cool for what stays, warm for what comes and goes; in lightness apart, for the colour-blind
    "parameters": "#1f4e79",
    "buffers": "#16324f",
    "optimizer": "#4a86b8",
    "gradients": "#9cc4e4",
    "earlier": "#b0356b",
    "input": "#c9ced6",
    "activations": "#e8b04a",
    "workspace": BAD,
}
BAND = ("#eef1f4", "#dde3ea")
NARROW = 0.018  # of the width, below which a part has no room for its name
APART = 0.03  # of the width, below which two slanted names lie over each other
UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))


def figure(step: Step) -> Any:
    """Return the timeline of a step as a matplotlib figure of 9 x 4.2 inches."""
    from matplotlib.figure import Figure

    figure_ = Figure(figsize=(9, 4.2), layout="constrained")
    draw(figure_.subplots(), step)
    return figure_


def draw(axes: Axes, step: Step) -> str:
    """Draw the timeline of a step and return what it shows in one sentence."""
    unit, name = next((u for u in UNITS if step.peak.bytes >= u[0]), UNITS[-1])
    kinds = [kind for kind in KINDS if any(step.timeline[kind])]
    count = len(step.timeline["parameters"])
    series = [[value / unit for value in step.timeline[kind]] for kind in kinds]
    axes.stackplot(range(count), *series, colors=[COLOURS[k] for k in kinds], labels=[LABELS[k] for k in kinds], lw=0)
    total = [sum(values) for values in zip(*series, strict=True)] or [0.0]
    at = total.index(max(total))
    axes.plot([at], [total[at]], marker="o", markersize=5, color=INK, zorder=5)
    place, side = (f"{_place(step)}  ", "right") if at > count / 2 else (f"  {_place(step)}", "left")
    style: Any = {"textcoords": "offset points", "ha": side, "color": INK, "fontsize": 9}
    axes.annotate(place, (at, total[at]), xytext=(0, 7), **style)
    axes.set_xlim(0, max(1, count - 1))
    axes.set_ylim(0, 1.16 * max(total) or 1)
    axes.set_ylabel(f"alive tensors ({name})")
    axes.set_xticks([])
    axes.grid(axis="x", visible=False)
    _parts(axes, step.segments, count)
    handles, labels = axes.get_legend_handles_labels()
    style = {"frameon": False, "fontsize": 9, "handlelength": 1.0, "handleheight": 1.0}
    axes.legend(handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.005, 1.0), **style)
    peak = f"peaks at {size(step.peak.bytes)}, {_place(step)}"
    axes.set_title(f"A step {peak}", loc="left")
    return f"Stacked timeline of one training step: it {peak}"


def _parts(axes: Axes, segments: Sequence[Segment], count: int) -> None:
    """Name the parts of the model below the timeline, and the directions below them."""
    below, named = axes.get_xaxis_transform(), -APART * count
    for number, part in enumerate(segments):
        width = part.end - part.start
        axes.axvspan(part.start, part.end, ymin=-0.045, ymax=-0.01, color=BAND[number % 2], clip_on=False, lw=0)
        middle = (part.start + part.end) / 2
        if width > NARROW * count and middle - named >= APART * count and part.module != "outside":
            named = middle
            style: Any = {"rotation": 38, "rotation_mode": "anchor", "ha": "right", "va": "top", "fontsize": 7.5}
            axes.text(middle, -0.06, part.module.strip("()"), transform=below, color=MUTED, **style)
    for name in ("forward", "backward", "optimiser"):
        mine = [part for part in segments if part.phase == name]
        if mine:
            axes.axvline(mine[0].start, color=MUTED, linewidth=0.7, linestyle=(0, (3, 3)))
            axes.text(
                mine[0].start + 0.006 * count, 0.965, f"{name} →", transform=below, fontsize=8.5, color=MUTED, va="top"
            )


def _place(step: Step) -> str:
    """Return the label of the peak."""
    direction = {"backward": "backward", "forward": "forward", "recompute": "recomputed", "optimizer": "optimiser"}
    phase = direction.get(step.peak.phase, step.peak.phase)
    if step.peak.module == OUTSIDE:
        return "outside the model" if phase in ("outside", "") else phase
    return f"{step.peak.module}, {phase}"
