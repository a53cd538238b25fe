"""The page that one looks around in: sliders beside the picture, in JupyterLab and under voila.

A slider asks the detector's child for polygons only; the picture below them stays in the browser.
"""

from __future__ import annotations

import importlib
import itertools
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ocrlab.config.schema import Post
from ocrlab.errors import OcrlabError
from ocrlab.notebook import child_runner
from ocrlab.notebook.page_viewer import drawing
from ocrlab.notebook.page_viewer.connection import Link
from ocrlab.notebook.page_viewer.messages import Detections, DetectorInfo, Source, ViewedPage
from ocrlab.redaction import clean
from ocrlab.reports.view import CSS

LISTED = 2000  # pages that one list can offer
HEIGHT = 660  # pixels of a page that is shown whole
UPLOADS = 20  # of the last files that were uploaded
PAGE, HEAT, BORDER, MASK = "page", "probability map", "threshold map", "text mask"  # what lies under the polygons
WIDE = {"description_width": "92px"}


@dataclass
class Panel:
    """The widgets of one notebook, and what they show."""

    link: Link
    opened: DetectorInfo
    names: dict[str, list[str]]  # of the pages, by split
    source: Source
    page: ViewedPage
    baseline: Detections  # by the detector's own settings
    judged: Detections
    widgets: Any = None
    at: dict[str, Any] = field(default_factory=dict)  # widgets by name
    uploads: dict[str, Path] = field(default_factory=dict)
    folder: Any = field(default_factory=lambda: tempfile.TemporaryDirectory(prefix="ocrlab-uploads-"))
    thresholds: dict[Source, str] = field(default_factory=dict)
    quiet: bool = False  # widgets are being set by the program
    took: float = 0.0  # seconds from a slider's new value to the new picture, in the kernel

    def __post_init__(self) -> None:
        self.widgets = importlib.import_module("ipywidgets")  # it has no types
        self._make()
        self._wire()
        self._draw(page=True)

    @property
    def root(self) -> Any:
        """The widget that holds all others."""
        return self.at["root"]

    def post(self) -> Post:
        """Return the settings as the sliders have them."""
        at = self.at
        ratio = "exact" if at["unclip"].value == "exact" else round(at["ratio"].value, 2)
        values = {"threshold": at["threshold"].value, "box_threshold": at["box_threshold"].value, "unclip": ratio}
        return self.opened.post.model_copy(
            update={**values, "min_size": at["min_size"].value, "shape": at["shape"].value}
        )

    def _make(self) -> None:
        """Make the widgets."""
        w, post, at = self.widgets, self.opened.post, self.at
        wide = w.Layout(width="100%")
        at["split"] = w.Dropdown(
            options=list(self.names), value=self.source.split, description="split", style=WIDE, layout=wide
        )
        at["page"] = w.Dropdown(options=self._choices(), value=self.source, description="page", style=WIDE, layout=wide)
        at["back"] = w.Button(description="previous page", icon="arrow-left", layout=w.Layout(width="50%"))
        at["next"] = w.Button(description="next page", icon="arrow-right", layout=w.Layout(width="50%"))
        at["upload"] = w.FileUpload(accept="image/*", multiple=False, description="your own image", layout=wide)
        at["base"] = w.ToggleButtons(options=(PAGE, HEAT, BORDER, MASK), style={"button_width": "48%"}, layout=wide)
        unit = {"min": 0.0, "max": 1.0, "step": 0.01, "readout_format": ".2f", "style": WIDE, "layout": wide}
        at["threshold"] = w.FloatSlider(post.threshold, description="threshold", **unit)
        at["box_threshold"] = w.FloatSlider(post.box_threshold, description="box threshold", **unit)
        exact = post.unclip == "exact"
        at["unclip"] = w.Dropdown(
            options=["exact", "ratio"],
            value="exact" if exact else "ratio",
            description="unclip",
            style=WIDE,
            layout=wide,
        )
        unit |= {"min": 0.5, "max": 4.0, "step": 0.05}
        at["ratio"] = w.FloatSlider(1.5 if exact else post.unclip, description="ratio", disabled=exact, **unit)
        unit |= {"min": 0.0, "max": 30.0, "step": 0.5, "readout_format": ".1f"}
        at["min_size"] = w.FloatSlider(post.min_size, description="min size, px", **unit)
        at["shape"] = w.Dropdown(
            options=["quad", "polygon"], value=post.shape, description="shape", style=WIDE, layout=wide
        )
        at["reset"] = w.Button(description="the detector's own settings", icon="undo", layout=wide)
        unit |= {"min": 1.0, "max": 5.0, "step": 0.25, "readout_format": ".2f"}
        at["zoom"] = w.FloatSlider(1.0, description="zoom", **unit)
        box = {"indent": False, "layout": w.Layout(width="auto", margin="0 14px 0 0")}
        at["numbers"] = w.Checkbox(False, description="numbers", **box)
        at["annotation"] = w.Checkbox(False, description="annotation", **box)
        for name in ("style", "facts", "legend", "message", "lists", "picture", "overlay"):
            at[name] = w.HTML(layout=w.Layout(width="100%", margin="0"))
        at["style"].value = f"<style>{CSS}{drawing.STYLE}</style>"
        at["root"] = self._laid_out()

    def _laid_out(self) -> Any:
        """Return everything in its place: what is set on the left, what is seen on the right, lists below."""
        w, at = self.widgets, self.at
        steps = w.HBox([at["back"], at["next"]])
        splits = [at["split"]] if len(self.names) > 1 else []
        shown = w.HBox([at["numbers"], at["annotation"]])
        sliders = ("threshold", "box_threshold", "unclip", "ratio", "min_size", "shape", "reset")
        choice = [*splits, at["page"], steps, at["upload"], at["message"]]
        side = w.VBox(
            [*choice, at["facts"], at["legend"], *(at[name] for name in sliders), at["base"], at["zoom"], shown]
        )
        side.add_class("ocrlab-side")
        side.layout = w.Layout(flex="0 0 306px", width="306px", max_width="100%")
        at["stack"] = w.Box([at["picture"], at["overlay"]], layout=w.Layout(margin="0"))
        at["stack"].add_class("ocrlab-stack")
        scroll = w.Box(
            [at["stack"]],
            layout=w.Layout(flex="1 1 240px", min_width="0", max_height=f"{HEIGHT + 20}px", display="block"),
        )
        scroll.add_class("ocrlab-scroll")
        both = w.Box(
            [side, scroll],
            layout=w.Layout(display="flex", flex_flow="row wrap", grid_gap="18px", align_items="flex-start"),
        )
        root = w.VBox([at["style"], both, at["lists"]])
        root.add_class("ocrlab-inspect")
        return root

    def _wire(self) -> None:
        at = self.at
        for name in ("threshold", "box_threshold", "ratio", "min_size", "shape", "numbers", "annotation"):
            at[name].observe(self._guarded(lambda _: self._draw()), "value")
        at["unclip"].observe(self._guarded(self._unclip), "value")
        at["base"].observe(self._guarded(lambda _: self._draw(page=True)), "value")
        at["zoom"].observe(lambda _: self._size(), "value")
        at["page"].observe(self._guarded(lambda change: self._go(change["new"])), "value")
        at["split"].observe(self._guarded(self._split), "value")
        at["upload"].observe(self._guarded(self._upload), "value")
        at["back"].on_click(lambda _: self._step(-1))
        at["next"].on_click(lambda _: self._step(1))
        at["reset"].on_click(self._guarded(self._reset))

    def _guarded(self, act: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return a callback that says in a sentence what went wrong; the page stays as it was."""

        def acting(change: Any) -> None:
            if self.quiet:
                return
            self._show_message("")
            try:
                act(change)
            except (OcrlabError, child_runner.Stopped) as error:
                self._show_message(str(error))

        return acting

    def _show_message(self, text: str) -> None:
        html = drawing.alert(clean(text)) if text else ""
        if self.at["message"].value != html:
            self.at["message"].value = html

    def _draw(self, page: bool = False) -> None:
        """Ask for polygons by the settings of now and show them; with `page` what lies under them, too."""
        began, at, what = time.perf_counter(), self.at, self.at["base"].value
        masked = what == MASK
        self.judged = self.link.ask("judge", self.source, self.post(), masked)
        if page or masked:
            pictures = {PAGE: self.page.image, HEAT: self.page.heat, MASK: self.judged.mask}
            at["picture"].value = drawing.base(self.page, pictures.get(what) or self._threshold(), what)
        layers = drawing.layers(self.page, self.judged, at["annotation"].value)
        labels = {m: str(m + 1) for m in range(len(self.judged.polygons))} if at["numbers"].value else {}
        at["overlay"].value = drawing.overlay(self.page, layers, labels, self.judged.polygons)
        at["legend"].value = f'<div class="ocrlab">{drawing.legend(layers)}</div>'
        about = drawing.about(self.page, self.judged, self.baseline)
        at["facts"].value = f'<div class="ocrlab">{about}</div>'
        rest = drawing.listed(self.page, self.judged) + drawing.saved(self.page, self.judged)
        at["lists"].value = f'<div class="ocrlab">{rest}</div>'
        if page:
            self._size()
        self.took = time.perf_counter() - began

    def _threshold(self) -> str:
        if self.source not in self.thresholds:
            self.thresholds[self.source] = self.link.ask("threshold", self.source)
        return self.thresholds[self.source]

    def _size(self) -> None:
        """Give the picture its size: at zoom 1 the whole page is seen."""
        whole = HEIGHT * self.page.width / self.page.height
        self.at["stack"].layout.width = f"calc({self.at['zoom'].value:g} * min(100%, {whole:.0f}px))"

    def _go(self, source: Source) -> None:
        """Show another page; raises what the child says of a page that cannot be read."""
        page = self.link.ask("see", source)
        self.baseline = self.link.ask("judge", source, self.opened.post)
        self.source, self.page = source, page
        self.thresholds.clear()
        self._draw(page=True)
        if page.notes:
            self._show_message(f"{page.name}: {'; '.join(page.notes)}.")

    def _step(self, by: int) -> None:
        places = [source for _, source in self.at["page"].options]
        at = places.index(self.at["page"].value) + by
        if 0 <= at < len(places):
            self.at["page"].value = places[at]

    def _split(self, change: Any) -> None:
        split = change["new"]
        if not self.names[split]:
            self.names[split] = self.link.ask("pages", split).names
        self._offer(Source(split, 0))

    def _offer(self, source: Source) -> None:
        """Let the list of pages offer those of a page's split, and show that page."""
        self.quiet = True
        self.source = source if source.split else self.source
        self.at["page"].options = self._choices()
        self.at["page"].value = source
        self.quiet = False
        self._go(source)

    def _choices(self) -> list[tuple[str, Source]]:
        """Return the pages that can be chosen: what was uploaded, and those of the split around the one shown."""
        split = self.at["split"].value if "split" in self.at else self.source.split
        names, place = self.names[split], self.source.place
        first = max(0, place - LISTED // 2) if isinstance(place, int) and len(names) > LISTED else 0
        listed = enumerate(names[first : first + LISTED], first)
        uploads = [(f"uploaded: {path.name}", Source("", str(path))) for path in reversed(self.uploads.values())]
        return uploads + [(name, Source(split, n)) for n, name in listed]

    def _upload(self, change: Any) -> None:
        """Take a file that somebody uploaded; what it is, the child says."""
        if not change["new"]:
            return
        [file, *_] = change["new"]
        name = drawing.plain_name(file["name"])
        data = bytes(file["content"])
        self.quiet = True
        self.at["upload"].value = ()  # the same file again is an upload again
        self.quiet = False
        path = Path(self.folder.name, str(next(_numbers)), name)
        path.parent.mkdir()
        path.write_bytes(data)
        try:
            self.link.ask("see", Source("", str(path)))
        except OcrlabError:
            path.unlink()
            raise
        self.uploads[str(path)] = path
        while len(self.uploads) > UPLOADS:
            self.uploads.pop(next(iter(self.uploads))).unlink()
        self._offer(Source("", str(path)))

    def _unclip(self, _: Any) -> None:
        self.at["ratio"].disabled = self.at["unclip"].value == "exact"
        self._draw()

    def _reset(self, _: Any) -> None:
        """Set the sliders as the detector was measured."""
        post, at = self.opened.post, self.at
        exact = post.unclip == "exact"
        self.quiet = True
        at["unclip"].value, at["ratio"].disabled = "exact" if exact else "ratio", exact
        at["ratio"].value = 1.5 if exact else post.unclip
        for name in ("threshold", "box_threshold", "min_size", "shape"):
            at[name].value = getattr(post, name)
        self.quiet = False
        self._draw()


_numbers = itertools.count(1)
