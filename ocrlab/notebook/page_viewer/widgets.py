"""The page that one looks around in: sliders beside the picture, in JupyterLab and under voila.

A slider asks the detector's child for polygons only; the picture below them stays in the browser.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable
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
PAGE, HEAT, BORDER = "page", "probability map", "threshold map"  # what lies under the polygons
SETTINGS = ("threshold", "box_threshold", "min_size", "shape")  # which have a widget of the same name
RATIO = 1.5  # unclip ratio that is offered to a detector with exact unclipping
WIDE = {"description_width": "92px"}


class Panel:
    """The widgets of one notebook by name (`at`), and what they show; `names` are those of the pages, by split."""

    def __init__(
        self,
        link: Link,
        opened: DetectorInfo,
        names: dict[str, list[str]],
        source: Source,
        page: ViewedPage,
        judged: Detections,
    ) -> None:
        self.link, self.opened, self.names, self.source, self.page = link, opened, names, source, page
        self.baseline = judged  # by the detector's own settings
        self.upload: Path | None = None  # the newest one
        self.folder = tempfile.TemporaryDirectory(prefix="ocrlab-uploads-")
        self.quiet = False  # widgets are being set by the program
        self.at: dict[str, Any] = {}
        self._build(importlib.import_module("ipywidgets"))  # it has no types
        self._draw(page=True)

    def post(self) -> Post:
        """Return the settings as the sliders have them."""
        at = self.at
        unclip = "exact" if at["unclip"].value == "exact" else round(at["ratio"].value, 2)
        return self.opened.post.model_copy(update={name: at[name].value for name in SETTINGS} | {"unclip": unclip})

    def _build(self, w: Any) -> None:
        """Build the widgets: what is set on the left, what is seen on the right, lists below."""
        post, at = self.opened.post, self.at
        wide, half = w.Layout(width="100%"), w.Layout(width="50%")

        def choose(name: str, label: str, options: Any, value: Any, act: Callable[[Any], None]) -> None:
            at[name] = w.Dropdown(options=options, value=value, description=label, style=WIDE, layout=wide)
            at[name].observe(self._guarded(act), "value")

        def slide(name: str, label: str, value: float, low: float, high: float, step: float, digits: int = 2) -> None:
            form = {"readout_format": f".{digits}f", "style": WIDE, "layout": wide}
            at[name] = w.FloatSlider(value, min=low, max=high, step=step, description=label, **form)
            at[name].observe(self._guarded(lambda _: self._draw()), "value")

        def press(name: str, label: str, icon: str, layout: Any, act: Callable[[Any], None]) -> None:
            at[name] = w.Button(description=label, icon=icon, layout=layout)
            at[name].on_click(self._guarded(act))

        choose("split", "split", list(self.names), self.source.split, self._choose_split)
        choose(
            "page",
            "page",
            self._choices(self.source.split, self.source),
            self.source,
            lambda change: self._go(change["new"]),
        )
        press("back", "previous page", "arrow-left", half, lambda _: self._step(-1))
        press("next", "next page", "arrow-right", half, lambda _: self._step(1))
        at["upload"] = w.FileUpload(accept="image/*", multiple=False, description="your own image", layout=wide)
        at["upload"].observe(self._guarded(self._upload), "value")
        slide("threshold", "threshold", post.threshold, 0.0, 1.0, 0.01)
        slide("box_threshold", "box threshold", post.box_threshold, 0.0, 1.0, 0.01)
        exact = post.unclip == "exact"
        choose("unclip", "unclip", ["exact", "ratio"], "exact" if exact else "ratio", self._choose_unclip)
        slide("ratio", "ratio", RATIO if post.unclip == "exact" else post.unclip, 0.5, 4.0, 0.05)
        at["ratio"].disabled = exact
        slide("min_size", "min size, px", post.min_size, 0.0, 30.0, 0.5, 1)
        choose("shape", "shape", ["quad", "polygon"], post.shape, lambda _: self._draw())
        press("reset", "the detector's own settings", "undo", wide, self._reset)
        at["base"] = w.ToggleButtons(options=(PAGE, HEAT, BORDER), style={"button_width": "48%"}, layout=wide)
        at["base"].observe(self._guarded(lambda _: self._draw(page=True)), "value")
        slide("zoom", "zoom", 1.0, 1.0, 5.0, 0.25)
        for name in ("facts", "legend", "message", "lists", "picture", "overlay"):
            at[name] = w.HTML(layout=w.Layout(width="100%", margin="0"))
        style = w.HTML(f"<style>{CSS}{drawing.STYLE}</style>", layout=w.Layout(margin="0"))

        pages = [*(["split"] if len(self.names) > 1 else []), "page"]
        below = (
            "upload message facts legend threshold box_threshold unclip ratio min_size shape reset base zoom".split()
        )
        steps = w.HBox([at["back"], at["next"]])
        left = w.Layout(flex="0 0 306px", width="306px", max_width="100%")
        side = w.VBox([*(at[name] for name in pages), steps, *(at[name] for name in below)], layout=left)
        at["stack"] = w.Box([at["picture"], at["overlay"]], layout=w.Layout(margin="0"))
        right = {"flex": "1 1 240px", "min_width": "0", "max_height": f"{HEIGHT + 20}px", "display": "block"}
        scroll = w.Box([at["stack"]], layout=w.Layout(**right))
        row = {"display": "flex", "flex_flow": "row wrap", "grid_gap": "18px", "align_items": "flex-start"}
        self.root = w.VBox([style, w.Box([side, scroll], layout=w.Layout(**row)), at["lists"]])
        for name, widget in (("side", side), ("stack", at["stack"]), ("scroll", scroll), ("inspect", self.root)):
            widget.add_class(f"ocrlab-{name}")

    def _guarded(self, act: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return a callback that says in a sentence what went wrong; the page stays as it was."""

        def acting(change: Any) -> None:
            if self.quiet:
                return
            self.at["message"].value = ""
            try:
                act(change)
            except (OcrlabError, child_runner.Stopped) as error:
                self.at["message"].value = drawing.alert(clean(str(error)))

        return acting

    def _set(self, **values: Any) -> None:
        """Set widgets without acting on their new values."""
        self.quiet = True
        try:
            for name, value in values.items():
                self.at[name].value = value
        finally:
            self.quiet = False

    def _draw(self, page: bool = False) -> None:
        """Ask for polygons by the settings of now and show them; with `page` what lies under them, too."""
        at, what = self.at, self.at["base"].value
        judged = self.link.ask("judge", self.source, self.post())
        if page:
            pictures = {PAGE: self.page.image, HEAT: self.page.heat}
            picture = pictures.get(what) or self.link.ask("threshold", self.source)
            at["picture"].value = drawing.base(self.page, picture, what)
        layers = drawing.layers(self.page, judged)
        at["overlay"].value = drawing.overlay(self.page, layers)
        size = f'<p class="plainly">{self.page.width} × {self.page.height} px</p>'
        blocks = {"legend": drawing.legend(layers), "lists": drawing.listed(self.page, judged)}
        for name, html in (blocks | {"facts": drawing.figures(judged, self.baseline) + size}).items():
            at[name].value = f'<div class="ocrlab">{html}</div>'
        whole = HEIGHT * self.page.width / self.page.height  # at zoom 1 the whole page is seen
        at["stack"].layout.width = f"calc({at['zoom'].value:g} * min(100%, {whole:.0f}px))"

    def _go(self, source: Source) -> None:
        """Show another page; raises what the child says of a page that cannot be read."""
        page = self.link.ask("see", source)
        self.baseline = self.link.ask("judge", source, self.opened.post)
        self.source, self.page = source, page
        self._draw(page=True)

    def _step(self, by: int) -> None:
        places = [source for _, source in self.at["page"].options]
        at = places.index(self.at["page"].value) + by
        if 0 <= at < len(places):
            self.at["page"].value = places[at]

    def _choose_split(self, change: Any) -> None:
        split = change["new"]
        if not self.names[split]:
            self.names[split] = self.link.ask("pages", split).names
        self._offer(Source(split, 0))

    def _offer(self, source: Source) -> None:
        """Let the list of pages offer those of the split, and the upload, and show one of them."""
        self.quiet = True
        try:
            self.at["page"].options = self._choices(self.at["split"].value, source)
        finally:
            self.quiet = False
        self._set(page=source)
        self._go(source)

    def _choices(self, split: str, source: Source) -> list[tuple[str, Source]]:
        """Return the pages that can be chosen: what was uploaded, and those of a split around the one to show."""
        names, place = self.names[split], source.place
        first = max(0, place - LISTED // 2) if isinstance(place, int) and len(names) > LISTED else 0
        uploads = [(f"uploaded: {self.upload.name}", Source("", str(self.upload)))] if self.upload else []
        return uploads + [(name, Source(split, n)) for n, name in enumerate(names[first : first + LISTED], first)]

    def _upload(self, change: Any) -> None:
        """Take a file that somebody uploaded; what it is, the child says."""
        if not change["new"]:
            return
        [file, *_] = change["new"]
        data = bytes(file["content"])
        self._set(upload=())  # the same file again is an upload again
        path = Path(tempfile.mkdtemp(dir=self.folder.name), drawing.plain_name(file["name"]))
        path.write_bytes(data)
        try:
            self.link.ask("see", Source("", str(path)))
        except OcrlabError:
            path.unlink()
            raise
        if self.upload:
            self.upload.unlink()
        self.upload = path
        self._offer(Source("", str(path)))

    def _choose_unclip(self, _: Any) -> None:
        self.at["ratio"].disabled = self.at["unclip"].value == "exact"
        self._draw()

    def _reset(self, _: Any) -> None:
        """Set the sliders as the detector was measured."""
        post = self.opened.post
        unclip = {"unclip": "exact"} if post.unclip == "exact" else {"unclip": "ratio", "ratio": post.unclip}
        self._set(**{name: getattr(post, name) for name in SETTINGS}, **unclip)
        self.at["ratio"].disabled = post.unclip == "exact"
        self._draw()
