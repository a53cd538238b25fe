"""The page that one looks around in: sliders beside the picture, in JupyterLab and under voila.

A slider asks the detector's child for polygons only; the picture below them stays in the browser.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
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
SETTINGS = ("threshold", "box_threshold", "min_size", "shape")  # which have a widget of the same name
RATIO = 1.5  # unclip ratio that is offered to a detector with exact unclipping
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
    judged: Detections = field(init=False)  # by the settings of the sliders
    widgets: Any = field(init=False)
    at: dict[str, Any] = field(default_factory=dict)  # widgets by name
    uploads: dict[str, Path] = field(default_factory=dict)
    folder: Any = field(default_factory=lambda: tempfile.TemporaryDirectory(prefix="ocrlab-uploads-"))
    thresholds: dict[Source, str] = field(default_factory=dict)
    quiet: bool = False  # widgets are being set by the program
    took: float = 0.0  # seconds from a slider's new value to the new picture, in the kernel

    def __post_init__(self) -> None:
        self.judged = self.baseline
        self.widgets = importlib.import_module("ipywidgets")  # it has no types
        self._build()
        self._lay_out()
        self._wire()
        self._draw(page=True)

    @property
    def root(self) -> Any:
        """The widget that holds all others."""
        return self.at["root"]

    def post(self) -> Post:
        """Return the settings as the sliders have them."""
        at = self.at
        values = {name: at[name].value for name in SETTINGS}
        unclip = "exact" if at["unclip"].value == "exact" else round(at["ratio"].value, 2)
        return self.opened.post.model_copy(update={**values, "unclip": unclip})

    def _build(self) -> None:
        """Build the widgets."""
        w, post, at = self.widgets, self.opened.post, self.at
        wide, half = w.Layout(width="100%"), w.Layout(width="50%")

        def choose(options: Any, value: Any, label: str) -> Any:
            return w.Dropdown(options=options, value=value, description=label, style=WIDE, layout=wide)

        def slide(value: float, label: str, low: float, high: float, step: float, digits: int = 2) -> Any:
            form = {"readout_format": f".{digits}f", "style": WIDE, "layout": wide}
            return w.FloatSlider(value, min=low, max=high, step=step, description=label, **form)

        def press(label: str, icon: str, layout: Any = wide) -> Any:
            return w.Button(description=label, icon=icon, layout=layout)

        exact = post.unclip == "exact"
        at["split"] = choose(list(self.names), self.source.split, "split")
        at["page"] = choose(self._choices(), self.source, "page")
        at["back"] = press("previous page", "arrow-left", half)
        at["next"] = press("next page", "arrow-right", half)
        at["upload"] = w.FileUpload(accept="image/*", multiple=False, description="your own image", layout=wide)
        at["base"] = w.ToggleButtons(options=(PAGE, HEAT, BORDER, MASK), style={"button_width": "48%"}, layout=wide)
        at["threshold"] = slide(post.threshold, "threshold", 0.0, 1.0, 0.01)
        at["box_threshold"] = slide(post.box_threshold, "box threshold", 0.0, 1.0, 0.01)
        at["unclip"] = choose(["exact", "ratio"], "exact" if exact else "ratio", "unclip")
        at["ratio"] = slide(RATIO if post.unclip == "exact" else post.unclip, "ratio", 0.5, 4.0, 0.05)
        at["ratio"].disabled = exact
        at["min_size"] = slide(post.min_size, "min size, px", 0.0, 30.0, 0.5, 1)
        at["shape"] = choose(["quad", "polygon"], post.shape, "shape")
        at["reset"] = press("the detector's own settings", "undo")
        at["zoom"] = slide(1.0, "zoom", 1.0, 5.0, 0.25)
        for name in ("numbers", "annotation"):
            layout = w.Layout(width="auto", margin="0 14px 0 0")
            at[name] = w.Checkbox(False, description=name, indent=False, layout=layout)
        for name in ("style", "facts", "legend", "message", "lists", "picture", "overlay"):
            at[name] = w.HTML(layout=w.Layout(width="100%", margin="0"))
        at["style"].value = f"<style>{CSS}{drawing.STYLE}</style>"

    def _lay_out(self) -> None:
        """Put everything in its place: what is set on the left, what is seen on the right, lists below."""
        w, at = self.widgets, self.at
        splits = ["split"] if len(self.names) > 1 else []
        steps, marks = w.HBox([at["back"], at["next"]]), w.HBox([at["numbers"], at["annotation"]])
        above = [at[name] for name in (*splits, "page")]
        middle = ("upload", "message", "facts", "legend", "threshold", "box_threshold", "unclip", "ratio", "min_size")
        below = [at[name] for name in (*middle, "shape", "reset", "base", "zoom")]
        side = w.VBox(
            [*above, steps, *below, marks], layout=w.Layout(flex="0 0 306px", width="306px", max_width="100%")
        )
        at["stack"] = w.Box([at["picture"], at["overlay"]], layout=w.Layout(margin="0"))
        place = {"flex": "1 1 240px", "min_width": "0", "max_height": f"{HEIGHT + 20}px", "display": "block"}
        scroll = w.Box([at["stack"]], layout=w.Layout(**place))
        row = {"display": "flex", "flex_flow": "row wrap", "grid_gap": "18px", "align_items": "flex-start"}
        at["root"] = w.VBox([at["style"], w.Box([side, scroll], layout=w.Layout(**row)), at["lists"]])
        for name, widget in (("side", side), ("stack", at["stack"]), ("scroll", scroll), ("inspect", at["root"])):
            widget.add_class(f"ocrlab-{name}")

    def _wire(self) -> None:
        at = self.at
        for name in (*SETTINGS, "ratio", "numbers", "annotation"):
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

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        """Set widgets without acting on their new values."""
        self.quiet = True
        yield
        self.quiet = False

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
            if what == BORDER and self.source not in self.thresholds:
                self.thresholds[self.source] = self.link.ask("threshold", self.source)
            picture = pictures.get(what) or self.thresholds[self.source]
            at["picture"].value = drawing.base(self.page, picture, what)
        layers = drawing.layers(self.page, self.judged, at["annotation"].value)
        labels = {m: str(m + 1) for m in range(len(self.judged.polygons))} if at["numbers"].value else {}
        at["overlay"].value = drawing.overlay(self.page, layers, labels, self.judged.polygons)
        about = drawing.about(self.page, self.judged, self.baseline)
        lists = drawing.listed(self.page, self.judged) + drawing.saved(self.page, self.judged)
        for name, html in (("legend", drawing.legend(layers)), ("facts", about), ("lists", lists)):
            at[name].value = f'<div class="ocrlab">{html}</div>'
        if page:
            self._size()
        self.took = time.perf_counter() - began

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
        with self._quietly():
            self.source = source if source.split else self.source
            self.at["page"].options = self._choices()
            self.at["page"].value = source
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
        with self._quietly():
            self.at["upload"].value = ()  # the same file again is an upload again
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
        with self._quietly():
            at["unclip"].value, at["ratio"].disabled = "exact" if exact else "ratio", exact
            at["ratio"].value = RATIO if exact else post.unclip
            for name in SETTINGS:
                at[name].value = getattr(post, name)
        self._draw()


_numbers = itertools.count(1)
