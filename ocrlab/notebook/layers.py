"""The sections of the layers notebook: maps of a module, its values over a training, all modules, and planted faults.

What needs torch is computed in a child (`layers_job`) and comes back as arrays and records, without torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ocrlab.config.schema import Config
from ocrlab.notebook.layers_messages import LayersReport, PageMaps, PlantedFault, Progress, ShortTraining
from ocrlab.reports import plots
from ocrlab.reports.html import page_images, tables
from ocrlab.reports.view import BAD, INK, View, WidgetView, heading, join_views

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ocrlab.notebook.lab_session import Lab

DENSE = """.ocrlab table.plain.dense { font-size: 12px; width: 100%; }
.ocrlab table.plain.dense td, .ocrlab table.plain.dense th { padding: 3px 9px 3px 0; }
.ocrlab table.plain.dense th { white-space: normal; vertical-align: bottom; }"""  # ten columns in 912 pixels
STRONGEST = 5  # maps shown large, beside the page
SMALL = 104  # pixels, width of a map in the sheet of all
EMPTY = 0.99  # of zeros, above which a map says nothing
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


def inspect_layers(
    config: Config, module: str, page: int, checkpoint: str, every: int, progress: Progress
) -> LayersReport:
    """Look, train and plant in this process, as most of a short child's time goes into importing torch."""
    from ocrlab.notebook import layers_job

    maps = layers_job.look(config, module, page, checkpoint)
    training = layers_job.learn(config, module, every, progress)
    return LayersReport(maps, training, layers_job.plant(config, checkpoint, progress))


def look(lab: Lab, module: str, page: int, checkpoint: str, every: int) -> LayersReport:
    """Return maps of a page, a short training with every module watched, and planted faults; raises ChildFailed."""
    title = f"Looking at a page, training with {module} and every other module watched, planting faults"
    report: LayersReport = lab.run(inspect_layers, lab.config, module, page, checkpoint, every, title=title)
    return report


def _counted(number: int) -> str:
    return "one map" if number == 1 else f"{number} maps"


def _steps(number: int) -> str:
    return "one step" if number == 1 else f"{number} steps"


def maps(page_maps: PageMaps) -> View:
    """Return the page beside the strongest maps of the module."""
    height, width = page_maps.maps.shape[1:]
    silent = [
        channel for channel, figures in enumerate(page_maps.figures) if figures["zeros"] >= EMPTY * figures["count"]
    ]
    pictures = [page_images.picture(page_maps.canvas, f"page {page_maps.name}", (), f"<b>{escape(page_maps.name)}</b>")]
    for channel in page_maps.different(STRONGEST):
        words = page_maps.describe_channel(channel)
        alt = f"map {channel} of {page_maps.module}: {words}"
        pictures.append(page_images.picture(_shares(page_maps, channel), alt, (), f"<b>Map {channel}</b> · {words}"))
    finding = f"{page_maps.module} gives {_counted(len(page_maps.maps))} of {width} × {height}; "
    empty = f"{len(silent)} of them {'is' if len(silent) == 1 else 'are'} empty on this page"
    finding += empty if silent else "each of them has something to say"
    note = f"{len(pictures) - 1} that vary most and differ, each" if len(pictures) > 2 else "It is drawn"
    note += " from its lowest (dark) to its highest value. "
    note += f"Weights: {page_maps.origin}."
    return page_images.row(finding, pictures, note=note)


def slider(page_maps: PageMaps) -> WidgetView:
    """Return a slider over the maps for JupyterLab, which is a sheet of all of them in a report."""
    many = len(page_maps.maps) > 1
    finding = f"All {len(page_maps.maps)} maps" if many else "The only map"
    finding += f" of {page_maps.module}" + (", the one that varies most first" if many else "")
    sheet = [
        page_images.picture(
            _shares(page_maps, channel, SMALL),
            f"map {channel}: {page_maps.describe_channel(channel)}",
            (),
            f"{channel}",
            width=SMALL,
        )
        for channel in page_maps.strongest
    ]
    row = page_images.row(finding, sheet)
    return WidgetView(row.html, row.text, _widget(page_maps))


def _widget(page_maps: PageMaps) -> Any:
    """Return a slider with the picture that it chooses."""
    ipywidgets = importlib.import_module("ipywidgets")  # it has no types
    place = ipywidgets.IntSlider(0, 0, len(page_maps.maps) - 1, description="map", readout=False)
    shown = ipywidgets.HTML()

    def show(_: object = None) -> None:
        channel = page_maps.strongest[place.value]
        words = f"map {channel} · {page_maps.describe_channel(channel)}"
        page = page_images.picture(
            page_maps.canvas, f"page {page_maps.name}", (), f"<b>{escape(page_maps.name)}</b>", width=380
        )
        beside = page_images.picture(_shares(page_maps, channel), words, (), f"<b>{words}</b>", width=380)
        shown.value = View(f'<div class="row">{page}{beside}</div>', "")._repr_mimebundle_()["text/html"]

    place.observe(show, "value")
    show()
    return ipywidgets.VBox([place, shown])


def _shares(page_maps: PageMaps, channel: int, width: int | None = None) -> NDArray[np.float32]:
    """Return a map (h, w) in 0..1, thinned to about twice `width` where it is shown small."""
    levels = page_maps.maps[channel]
    step = max(1, levels.shape[1] // (2 * width)) if width else 1
    return levels[::step, ::step].astype(np.float32) / np.float32(255)


def histograms(training: ShortTraining) -> View:
    """Return how a module's outputs and gradients are distributed over the steps of the training."""
    import matplotlib

    with matplotlib.rc_context(plots.STYLE):
        figure, (left, right) = plots.blank(2, height=3.7)
        first = _heat(left, training.outputs, "output", "value that is not 0")
        sizes = {step: np.log10(np.abs(values[values != 0])) for step, values in training.gradients.items()}
        second = _heat(right, sizes, "gradient", "size, power of ten")
        zeros = [100 * float((values == 0).mean()) for values in training.outputs.values() if values.size] or [0.0]
        zeros_text = f"{training.module}: {zeros[0]:.0f} % zeros at first, {zeros[-1]:.0f} % at last"
        loss = f"loss {training.losses[0]:.2f} to {training.losses[-1]:.2f} in {_steps(len(training.losses))}"
        plot = plots.finished(figure, f"{zeros_text}; {loss}. {first}. {second}.")
    note = "Bright: many values. White line: the middle value of each step."
    return join_views(
        [View(heading(f"{zeros_text}; {loss}"), zeros_text), plot, View(f'<p class="note">{note}</p>', note)]
    )


def _heat(axes: Axes, values: dict[int, NDArray[np.float32]], what: str, unit: str) -> str:
    """Draw the distribution of values by step, and return where its middle began and ended."""
    finite = {step: step_values[np.isfinite(step_values) & (step_values != 0)] for step, step_values in values.items()}
    finite = {step: step_values for step, step_values in finite.items() if step_values.size}
    axes.set_xlabel("optimiser step")
    plots.counted(axes)
    axes.set_ylabel(f"{what}: {unit}")
    axes.grid(visible=False)
    if not finite:
        axes.set_title(f"There was no {what}")
        return f"There was no {what}"
    every = np.concatenate(list(finite.values()))
    low, high = np.quantile(every, (0.002, 0.998))
    edges = np.linspace(low, max(high, low + 1e-6), BINS + 1)
    shares = np.stack(
        [np.histogram(step_values, edges)[0] / step_values.size for step_values in finite.values()], axis=1
    )  # (BINS, S)
    steps = np.array(list(finite))
    width = steps[1] - steps[0] if len(steps) > 1 else 1
    across = np.append(steps, steps[-1] + width) - width / 2
    axes.pcolormesh(across, edges, np.sqrt(shares), cmap="viridis", rasterized=True)  # rare values stay visible
    middle = [float(np.median(step_values)) for step_values in finite.values()]
    axes.plot(steps, middle, color="white", linewidth=1.4, marker="o" if len(steps) == 1 else "", markersize=5)
    axes.set_xlim(across[0], across[-1])
    first, last = (f"{10**value:.1e}" if "power" in unit else f"{value:.2g}" for value in (middle[0], middle[-1]))
    title = f"Middle of the {what}s: {first} to {last}"
    axes.set_title(title)
    return title


def curves(training: ShortTraining) -> View:
    """Return how the values of all modules are spread, along the network."""
    if training.plot is None:
        return View("", "")
    figure, alt = training.plot
    title = View(heading("Outputs and gradients along the network, in the last step that was looked at"), "")
    return join_views([title, plots.finished(figure, alt)])


def modules(training: ShortTraining) -> View:
    """Return the table of all modules with the figures of the last step that was looked at."""
    rows = [_row(module) for module in training.table]
    bad = [module["module"] for module in training.table if module["worst"]]
    timed = [module for module in training.table if module["ms"]]
    whole = next((module["ms"] for module in timed if module["module"].startswith("(")), None)
    slow = max(
        (module for module in timed if "." in module["module"]), key=lambda module: float(module["ms"]), default=None
    )
    finding = f"{len(rows)} modules, "
    finding += f"{len(bad)} of them with NaN or Inf, first {bad[0]}" if bad else "every value finite"
    finding += f"; {slow['module']} takes {slow['ms']:.0f} of {whole:.0f} ms forward" if slow and whole else ""
    view = tables.table(HEAD, rows, finding, training.note)
    start = view.html.index("<table")
    end = view.html.index("</table>") + len("</table>")
    dense = view.html[start:end].replace('class="plain"', 'class="plain dense"')
    box = f'<style>{DENSE}</style><div style="max-height:430px;overflow:auto" tabindex="0">{dense}</div>'
    return View(view.html[:start] + box + view.html[end:], view.text)


def _row(module: dict[str, Any]) -> tuple[object, ...]:
    shape = "\u00a0×\u00a0".join(map(str, module["shape"])) if module["shape"] else "never called"
    zeros = None if module["zeros"] is None else 100 * float(module["zeros"])
    gradient = None if module["grad_std"] is None else 1e6 * float(module["grad_std"])
    figures = (module["mean"], module["std"], zeros, gradient, module["ms"], module["backward_ms"])
    words = (module["module"], module["class"], shape, module["memory_format"] or "")
    return (*words, *(None if value is None else _short(float(value)) for value in figures))


def _short(value: float) -> float | int:
    """Return a figure of three digits; what three decimals cannot tell from 0 is 0, without a sign."""
    return 0 if abs(value) < 0.0005 else float(f"{value:.3g}")


def faults(planted: Sequence[PlantedFault]) -> View:
    """Return what was planted and what was found, and how far each fault went."""
    right = sum(fault.right for fault in planted)
    rows = [(fault.planted, fault.reported, "yes" if fault.right else "NO") for fault in planted]
    finding = f"{right} of {len(planted)} planted faults are found where they were planted"
    table = tables.table(("planted", "found", "right"), rows, finding)
    wrapped = table.html.replace('class="plain"', 'class="plain told"')
    style = "<style>.ocrlab table.told.told td { white-space: normal; vertical-align: top; min-width: 60px; }</style>"
    return join_views([View(style + wrapped, table.text), _spread(planted)])


def _spread(faults: Sequence[PlantedFault]) -> View:
    """Return how the share of NaN and Inf grows from module to module."""
    import matplotlib

    with matplotlib.rc_context(plots.STYLE):
        figure, panels = plots.blank(len(faults), height=3.2)
        texts = []
        for axes, fault in zip(panels, faults, strict=True):
            shares = [100 * share for _, share in fault.spread]
            axes.plot(range(len(shares)), shares, color=BAD, drawstyle="steps-mid")
            axes.set_ylim(-3, 119)
            axes.set_yticks(range(0, 101, 20))
            axes.set_xlabel(f"module, in {'backward' if fault.backward else 'forward'} order")
            axes.set_ylabel(f"NaN and Inf, % of {'gradients' if fault.backward else 'outputs'}")
            reached = [at for at, share in enumerate(shares) if share > 0]
            title = f"{fault.short}\n{len(reached)} of {len(shares)} modules spoilt"
            axes.set_title(title, linespacing=1.4)
            if reached:
                axes.plot([reached[0]] * 2, [0, 106], color=INK, linewidth=1, linestyle=":")
                first = f"from {fault.spread[reached[0]][0]} on"
                axes.text(0.02, 108, first, fontsize=8, color=INK, transform=axes.get_yaxis_transform())
            texts.append(f"{fault.planted}: {title.partition(chr(10))[2]}")
        return plots.finished(figure, ". ".join(texts) + ".")


def share(planted: Sequence[PlantedFault]) -> float:
    """Return the share of planted faults that were found where they were planted."""
    return sum(fault.right for fault in planted) / len(planted)
