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
from ocrlab.notebook.chooser import chooser
from ocrlab.notebook.layers_job import LayersReport, PageMaps, PlantedFault, ShortTraining
from ocrlab.reports import plots
from ocrlab.reports.html import page_images, tables
from ocrlab.reports.view import BAD, INK, View, WidgetView, heading, join_views

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ocrlab.notebook.lab_session import Lab

DENSE = """.ocrlab table.plain.dense { font-size: 12px; width: 100%; }
.ocrlab table.plain.dense td, .ocrlab table.plain.dense th { padding: 3px 9px 3px 0; }
.ocrlab table.plain.dense th { white-space: normal; vertical-align: bottom; }"""  # ten columns in 912 pixels
WRAPPED = ".ocrlab table.wrapped.wrapped td { white-space: normal; vertical-align: top; min-width: 60px; }"
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
    """Return the page beside the strongest maps of the module."""
    count, (height, width) = len(page_maps.maps), page_maps.maps.shape[1:]
    silent = sum(figures["zeros"] >= EMPTY * figures["count"] for figures in page_maps.figures)
    pictures = [_page_picture(page_maps)]
    for channel in page_maps.different(STRONGEST):
        pictures.append(_picture(page_maps, channel, f"<b>Map {channel}</b> · {page_maps.describe_channel(channel)}"))
    finding = f"{page_maps.module} gives {'one map' if count == 1 else f'{count} maps'} of {width} × {height}; "
    finding += f"{silent} of them {'is' if silent == 1 else 'are'} empty on this page" if silent else "none is empty"
    note = f"{len(pictures) - 1} that vary most and differ, each" if len(pictures) > 2 else "It is drawn"
    note += f" from its lowest (dark) to its highest value. Weights: {page_maps.origin}."
    return page_images.row(finding, pictures, note=note)


def _picture(page_maps: PageMaps, channel: int, caption: str, **size: int) -> str:
    """Return a map as a picture, thinned to about twice its width where it is shown small."""
    levels = page_maps.maps[channel]
    step = max(1, levels.shape[1] // (2 * size["width"])) if size else 1
    shares = levels[::step, ::step].astype(np.float32) / np.float32(255)
    alt = f"map {channel} of {page_maps.module}: {page_maps.describe_channel(channel)}"
    return page_images.picture(shares, alt, (), caption, **size)


def _page_picture(page_maps: PageMaps, **size: int) -> str:
    name = page_maps.name
    return page_images.picture(page_maps.canvas, f"page {name}", (), f"<b>{escape(name)}</b>", **size)


def slider(page_maps: PageMaps) -> WidgetView:
    """Return a slider over the maps for JupyterLab, which is a sheet of all of them in a report."""
    count, strongest = len(page_maps.maps), page_maps.strongest
    finding = f"All {count} maps" if count > 1 else "The only map"
    finding += f" of {page_maps.module}" + (", the one that varies most first" if count > 1 else "")
    row = page_images.row(finding, [_picture(page_maps, channel, f"{channel}", width=SMALL) for channel in strongest])

    def show(place: int) -> View:
        channel = strongest[place]
        words = f"<b>map {channel} · {page_maps.describe_channel(channel)}</b>"
        pictures = _page_picture(page_maps, width=380) + _picture(page_maps, channel, words, width=380)
        return View(f'<div class="row">{pictures}</div>', "")

    range_ = {"value": 0, "min": 0, "max": count - 1}
    return WidgetView(row.html, row.text, chooser("IntSlider", show, **range_, description="map", readout=False))


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
    axes.set_xlabel("optimiser step")
    plots.counted(axes)
    axes.set_ylabel(f"{what}: {unit}")
    axes.grid(visible=False)
    if not finite:
        axes.set_title(f"There was no {what}")
        return f"There was no {what}"
    low, high = np.quantile(np.concatenate(list(finite.values())), (0.002, 0.998))
    edges = np.linspace(low, max(high, low + 1e-6), BINS + 1)
    shares = np.stack([np.histogram(some, edges)[0] / some.size for some in finite.values()], axis=1)  # (BINS, steps)
    steps = np.array(list(finite))
    width = steps[1] - steps[0] if len(steps) > 1 else 1
    across = np.append(steps, steps[-1] + width) - width / 2
    axes.pcolormesh(across, edges, np.sqrt(shares), cmap="viridis", rasterized=True)  # rare values stay visible
    middle = [float(np.median(some)) for some in finite.values()]
    axes.plot(steps, middle, color="white", linewidth=1.4, marker="o" if len(steps) == 1 else "", markersize=5)
    axes.set_xlim(across[0], across[-1])
    first, last = (f"{10**value:.1e}" if "power" in unit else f"{value:.2g}" for value in (middle[0], middle[-1]))
    title = f"Median of the {what}s: {first} to {last}"
    axes.set_title(title)
    return title


def curves(training: ShortTraining) -> View:
    """Return how the values of all modules are spread, along the network."""
    if training.plot is None:
        return View("", "")
    title = View(heading("Outputs and gradients along the network, in the last watched step"), "")
    return join_views([title, plots.finished(*training.plot)])


def modules(training: ShortTraining) -> View:
    """Return the table of all modules with the figures of the last watched step."""
    rows = []
    for module in training.table:
        shape = "\u00a0×\u00a0".join(map(str, module["shape"])) if module["shape"] else "never called"
        zeros, gradient = module["zeros"], module["grad_std"]
        figures = [module["mean"], module["std"], None if zeros is None else 100 * float(zeros)]
        figures += [None if gradient is None else 1e6 * float(gradient), module["ms"], module["backward_ms"]]
        texts = [None if value is None else _short(float(value)) for value in figures]
        rows.append((module["module"], module["class"], shape, module["memory_format"] or "", *texts))
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


def _short(value: float) -> float | int:
    """Return a figure of three digits; what three decimals cannot tell from 0 is 0, without a sign."""
    return 0 if abs(value) < 0.0005 else float(f"{value:.3g}")


def faults(planted: Sequence[PlantedFault]) -> View:
    """Return what was planted and what was reported, and how the share of NaN and Inf grows from module to module."""
    right = sum(fault.right for fault in planted)
    rows = [(fault.planted, fault.reported, "yes" if fault.right else "NO") for fault in planted]
    finding = f"{right} of {len(planted)} planted faults are located where they were planted"
    table = tables.table(("planted", "reported", "right"), rows, finding)
    wrapped = table.html.replace('class="plain"', 'class="plain wrapped"')
    texts = []
    with plots.styled(len(planted), height=3.2) as (figure, panels):
        for axes, fault in zip(panels, planted, strict=True):
            shares = [100 * share for _, share in fault.spread]
            axes.plot(range(len(shares)), shares, color=BAD, drawstyle="steps-mid")
            axes.set_ylim(-3, 119)
            axes.set_yticks(range(0, 101, 20))
            axes.set_xlabel(f"module, in {'backward' if fault.backward else 'forward'} order")
            axes.set_ylabel(f"NaN and Inf, % of {'gradients' if fault.backward else 'outputs'}")
            reached = [at for at, share in enumerate(shares) if share > 0]
            affected = f"{len(reached)} of {len(shares)} modules affected"
            axes.set_title(f"{fault.short}\n{affected}", linespacing=1.4)
            if reached:
                axes.plot([reached[0]] * 2, [0, 106], color=INK, linewidth=1, linestyle=":")
                first = f"from {fault.spread[reached[0]][0]} on"
                axes.text(0.02, 108, first, fontsize=8, color=INK, transform=axes.get_yaxis_transform())
            texts.append(f"{fault.planted}: {affected}")
        plot = plots.finished(figure, ". ".join(texts) + ".")
    return join_views([View(f"<style>{WRAPPED}</style>{wrapped}", table.text), plot])


def share(planted: Sequence[PlantedFault]) -> float:
    """Return the share of planted faults that were located where they were planted."""
    return sum(fault.right for fault in planted) / len(planted)
