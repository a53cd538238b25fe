"""The sections of the layers notebook: maps of a module, its values over a training, all modules, and planted faults.

What needs torch is computed in a child (`layers_job`) and comes back as arrays and records.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ocrlab.notebook import layers_job
from ocrlab.notebook.layers_job import LayersReport, PageMaps, PlantedFault, ShortTraining
from ocrlab.reports import plots
from ocrlab.reports.html import page_images, tables
from ocrlab.reports.view import View, heading, join_views

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ocrlab.notebook.lab_session import Lab

DENSE = """.ocrlab table.plain.dense { font-size: 12px; width: 100%; }
.ocrlab table.plain.dense td, .ocrlab table.plain.dense th { padding: 3px 9px 3px 0; }
.ocrlab table.plain.dense th { white-space: normal; vertical-align: bottom; }"""  # ten columns in 912 pixels
STRONGEST = 5  # maps shown large, beside the page
SMALL = 104  # pixels, width of a map in the sheet of all
EMPTY = 0.99  # share of zeros from which a map counts as empty
BINS = 60
HEAD = (
    "module",
    "class",
    "output",
    "format",
    "mean",
    "std",
    "zeros %",
    "gradient std, 1e-6",
    "forward ms",
    "backward ms",
)


def look(lab: Lab, module: str, page: int, checkpoint: str, every: int) -> LayersReport:
    """Return maps of a page, a short training with every module watched, and planted faults; raises ChildFailed."""
    title = f"Looking at a page, training with {module} and every other module watched, planting faults"
    report: LayersReport = lab.run(layers_job.inspect_layers, lab.config, module, page, checkpoint, every, title=title)
    return report


def maps(page_maps: PageMaps) -> View:
    """Return the page beside the maps of the module that vary most."""
    count, (height, width) = len(page_maps.maps), page_maps.maps.shape[1:]
    silent = sum(figures["zeros"] >= EMPTY * figures["count"] for figures in page_maps.figures)
    name = page_maps.name
    pictures = [page_images.picture(page_maps.canvas, f"page {name}", (), f"<b>{escape(name)}</b>")]
    for channel in page_maps.strongest[:STRONGEST]:
        figures = page_maps.figures[channel]
        zeros = 100 * figures["zeros"] / figures["count"]
        words = f"{figures['min']:.2g} to {figures['max']:.2g}, {zeros:.0f} % zeros"
        alt, caption = f"map {channel} of {page_maps.module}: {words}", f"<b>Map {channel}</b> · {words}"
        pictures.append(page_images.picture(page_maps.maps[channel] / np.float32(255), alt, (), caption))
    finding = f"{page_maps.module} gives {'one map' if count == 1 else f'{count} maps'} of {width} × {height}; "
    finding += f"{silent} of them {'is' if silent == 1 else 'are'} empty on this page" if silent else "none is empty"
    note = f"The maps that vary most, each from its lowest (dark) to its highest value. Weights: {page_maps.origin}."
    return page_images.row(finding, pictures, note=note)


def sheet(page_maps: PageMaps) -> View:
    """Return all maps of the module, small, the one that varies most first."""
    step = max(1, page_maps.maps.shape[2] // (2 * SMALL))  # thinned to about twice the width of the picture
    pictures = []
    for channel in page_maps.strongest:
        values = page_maps.maps[channel, ::step, ::step] / np.float32(255)
        pictures.append(page_images.picture(values, f"map {channel} of {page_maps.module}", (), f"{channel}", SMALL))
    return page_images.row(f"Every map of {page_maps.module}, the one that varies most first", pictures)


def histograms(training: ShortTraining) -> View:
    """Return how a module's outputs and gradients are distributed over the steps of the training."""
    with plots.styled(2, height=3.7) as (figure, (left, right)):
        first = _heat(left, training.outputs, "output", "value that is not 0")
        sizes = {step: np.log10(np.abs(values[values != 0])) for step, values in training.gradients.items()}
        second = _heat(right, sizes, "gradient", "size, power of ten")
        zeros = [100 * float((values == 0).mean()) for values in training.outputs.values() if values.size] or [0.0]
        zeros_text = f"{training.module}: {zeros[0]:.0f} % zeros at first, {zeros[-1]:.0f} % at last"
        steps = "one step" if len(training.losses) == 1 else f"{len(training.losses)} steps"
        loss = f"loss {training.losses[0]:.2f} to {training.losses[-1]:.2f} in {steps}"
        plot = plots.finished(figure, f"{zeros_text}; {loss}. {first}. {second}.")
    title = View(heading(f"{zeros_text}; {loss}"), zeros_text)
    note = "Bright: many values. White line: the median of each step."
    return join_views([title, plot, View(f'<p class="note">{note}</p>', note)])


def _heat(axes: Axes, values: dict[int, NDArray[np.float32]], what: str, unit: str) -> str:
    """Draw the distribution of values by step, and return its first and last median in words."""
    finite = {step: some[np.isfinite(some) & (some != 0)] for step, some in values.items()}
    finite = {step: some for step, some in finite.items() if some.size}
    title = f"There was no {what}"
    if finite:
        low, high = np.quantile(np.concatenate(list(finite.values())), (0.002, 0.998))
        edges = np.linspace(low, max(high, low + 1e-6), BINS + 1)
        shares = np.stack([np.histogram(some, edges)[0] / some.size for some in finite.values()], axis=1)
        steps = np.array(list(finite))
        width = steps[1] - steps[0] if len(steps) > 1 else 1
        across = np.append(steps, steps[-1] + width) - width / 2
        axes.pcolormesh(across, edges, np.sqrt(shares), cmap="viridis", rasterized=True)  # rare values stay visible
        middle = [float(np.median(some)) for some in finite.values()]
        axes.plot(steps, middle, color="white", linewidth=1.4, marker="o" if len(steps) == 1 else "", markersize=5)
        axes.set_xlim(across[0], across[-1])
        ends = (f"{10**value:.1e}" if "power" in unit else f"{value:.2g}" for value in (middle[0], middle[-1]))
        title = f"Median of the {what}s: {' to '.join(ends)}"
    plots.counted(axes)
    axes.set(xlabel="optimizer step", ylabel=f"{what}: {unit}", title=title)
    axes.grid(visible=False)
    return title


def curves(training: ShortTraining) -> View:
    """Return how the values of all modules are spread, along the network."""
    title = View(heading("Outputs and gradients along the network, in the last watched step"), "")
    return join_views([title, plots.finished(*training.plot)])


def modules(training: ShortTraining) -> View:
    """Return the table of all modules with the figures of the last watched step."""
    rows = []
    for module in training.table:
        shape = "\u00a0×\u00a0".join(map(str, module["shape"])) if module["shape"] else "never called"
        scaled = ("mean", 1), ("std", 1), ("zeros", 100), ("grad_std", 1e6), ("ms", 1), ("backward_ms", 1)
        figures = [None if module[key] is None else float(f"{factor * module[key]:.3g}") for key, factor in scaled]
        rows.append((module["module"], module["class"], shape, module["memory_format"] or "", *figures))
    bad = [module["module"] for module in training.table if module["worst"]]
    timed = [module for module in training.table if module["ms"]]
    whole = next((module["ms"] for module in timed if module["module"].startswith("(")), None)
    parts = [module for module in timed if "." in module["module"]]
    finding = f"{len(rows)} modules, "
    finding += f"{len(bad)} of them with NaN or Inf, first {bad[0]}" if bad else "every value finite"
    if parts and whole:
        slow = max(parts, key=lambda module: float(module["ms"]))
        finding += f"; {slow['module']} takes {slow['ms']:.0f} of {whole:.0f} ms forward"
    view = tables.table(HEAD, rows, finding, training.note)
    html = view.html.replace('class="plain"', 'class="plain dense"', 1)
    box = f'<style>{DENSE}</style><div style="max-height:430px;overflow:auto" tabindex="0"><table'
    return View(html.replace("<table", box, 1).replace("</table>", "</table></div>", 1), view.text)


def faults(planted: Sequence[PlantedFault]) -> View:
    """Return what was planted and what was reported."""
    rows = [(fault.planted, fault.reported, "yes" if fault.right else "NO") for fault in planted]
    right = sum(fault.right for fault in planted)
    finding = f"{right} of {len(planted)} planted faults are located where they were planted"
    return tables.table(("planted", "reported", "right"), rows, finding)


def share(planted: Sequence[PlantedFault]) -> float:
    """Return the share of planted faults that were located where they were planted."""
    return sum(fault.right for fault in planted) / len(planted)
