"""The cells of an executed notebook as HTML: prose, folded code, and of each output the side that needs no script.

Whatever an output holds, the result is safe to show (`sanitizer`), described (alt), and within `Limits`.
"""

from __future__ import annotations

import base64
import io
import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any

from ocrlab.reports.html import ansi, sanitizer
from ocrlab.reports.html import markdown as html_markdown
from ocrlab.reports.notebooks import results
from ocrlab.reports.view import WIDGET_MIME

RASTER = ("image/png", "image/jpeg", "image/gif", "image/webp")
NUMBER = re.compile(  # no part of it can be read in two ways, so that time is linear
    r"<td((?: [\w-]+=\"[^\"]*\")*)>(\s{0,40}[-+−]?"
    r"(?:\d[\d,.\u202f ]{0,40}(?:e[-+]?\d{1,9})?\s?%?|[.,]\d{1,40}|nan|inf|None|NaT)\s{0,40})</td>",
    re.IGNORECASE,
)
COLOURED = re.compile(r"(?:[\s;\"'](?:background(?:-color)?|color|fill)\s*[:=])|\bbgcolor=", re.IGNORECASE)
RULED = re.compile(r"\A(?:\x1b\[[\d;]*m)*-{40,}(?:\x1b\[[\d;]*m)*\n")  # with which IPython begins a traceback
VISIBLE = re.compile(r"<(?:img|svg|hr|table|math)\b|>[^<\s][^<]*<|^[^<]*[^<\s]")
DATA = re.compile(r"data:image/(png|jpeg|gif|webp|avif|bmp);base64,([A-Za-z0-9+/=]+)")
SMALL = 40_000  # bytes; a smaller picture is left as it is
MANY = 10**9


@dataclass(frozen=True)
class Limits:
    """How much of one output is shown: characters of text and of HTML, pixels of a picture's long side, its quality."""

    text: int = MANY
    html: int = MANY
    pixels: int = MANY
    quality: int = 0  # of WebP, 0 for pictures as they are


STEPS = (
    Limits(),
    Limits(text=400_000, pixels=1600, quality=85),
    Limits(text=100_000, html=600_000, pixels=1100, quality=70),
    Limits(text=20_000, html=200_000, pixels=720, quality=55),
    Limits(text=4_000, html=40_000, pixels=400, quality=35),
    Limits(text=500, html=4_000, pixels=160, quality=20),
)


@dataclass
class Rendering:
    """What the cells of one report share: its headings, the style sheets of outputs, where pictures may come from."""

    folder: Path | None = None
    limits: Limits = field(default_factory=Limits)
    headings: html_markdown.Headings = field(default_factory=html_markdown.Headings)
    sheets: dict[str, str] = field(default_factory=dict)  # CSS of outputs -> the class of those that it is for

    def classes(self, css: tuple[str, ...]) -> str:
        """Return the classes for an output that brought these style sheets."""
        return " ".join(self.sheets.setdefault(sheet, f"s{len(self.sheets)}") for sheet in css)


def markdown(cell: Any, rendering: Rendering) -> str:
    """Return a Markdown cell."""
    html = html_markdown.markdown(cell.source, cell.get("attachments", {}), rendering.folder)
    html = rendering.headings.put(limit_pictures(html, rendering.limits))
    return f'<div class="prose">{html}</div>' if html.strip() else ""


def code(cell: Any, number: int, rendering: Rendering, language: str = "python") -> str:
    """Return a code cell: its source folded, its outputs below."""
    state, count, most = status(cell), cell.execution_count, rendering.limits.text
    outputs = "".join(output(item, cell, rendering) for item in joined(cell.outputs))
    folded = ""
    if cell.source.strip() and not cell.metadata.get("jupyter", {}).get("source_hidden"):
        time = f" · {seconds(cell):.1f} s" if seconds(cell) >= 0.1 else ""
        label = f"Code{f' [{count}]' if count is not None else ''}{' · failed' if state == 'failed' else ''}{time}"
        label = "Code: this cell never ran" if state == "pending" else label
        source = cell.source if len(cell.source) <= most else cell.source[:most] + "\n…"
        folded = (
            f'<details class="code {escape(state)}"{" open" if state == "failed" else ""}>'
            f"<summary>{label}</summary>{highlighted(source, language)}</details>"
        )
    return f'<section class="cell" id="code-{number}" aria-label="code cell {number}">{folded}{outputs}</section>'


def status(cell: Any) -> str:
    """Return papermill's status of a code cell; `failed` for one with an error, whoever executed it."""
    if any(item.output_type == "error" for item in cell.outputs):
        return "failed"
    return str(cell.metadata.get("papermill", {}).get("status", ""))


def seconds(cell: Any) -> float:
    """Return how long a cell took as papermill measured it, 0 if nobody did."""
    took = cell.metadata.get("papermill", {}).get("duration")
    return float(took) if isinstance(took, int | float) else 0.0


def highlighted(source: str, language: str) -> str:
    """Return source code with the classes of pygments; in a language that it does not know, as it is."""
    from nbconvert.filters.highlight import Highlight2HTML

    name = "ipython3" if language == "python" else language if re.fullmatch(r"[\w+#.-]{1,30}", language) else "text"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a language without a lexer
        return str(Highlight2HTML(pygments_lexer=name)(source.strip("\n")))


def joined(outputs: Any) -> list[Any]:
    """Return outputs with neighbouring pieces of one stream as one: kernels send them in pieces."""
    merged: list[Any] = []
    for item in outputs:
        last = merged[-1] if merged else None
        if last and item["output_type"] == last["output_type"] == "stream" and item["name"] == last["name"]:
            merged[-1] = {**last, "text": last["text"] + item["text"]}
        else:
            merged.append(item)
    return merged


def output(item: Any, cell: Any, rendering: Rendering) -> str:
    """Return one output of a cell."""
    most = rendering.limits.text
    if item["output_type"] == "stream":
        kind = "stderr" if item["name"] == "stderr" else "stdout"
        return _out(ansi.block(item["text"], kind, most), kind) if item["text"].strip() else ""
    if item["output_type"] == "error":
        lines = RULED.sub("", "\n".join(item.get("traceback", []))) or str(item.get("evalue", ""))
        name = escape(str(item.get("ename", "")))
        return _out(f'<p class="raised"><b>{name}</b></p>{ansi.block(lines, "", most)}', "error")
    return displayed(item.get("data", {}), item.get("metadata", {}), cell, rendering)


def displayed(data: Mapping[str, Any], about: Mapping[str, Any], cell: Any, rendering: Rendering) -> str:
    """Return the side of a bundle that a page without scripts shows best."""
    number = f" [{cell.execution_count}]" if cell.execution_count is not None else ""
    alt = f"picture of cell{number}" if number else "picture of a cell"
    text = _text(data.get("text/plain", ""))
    alt = alt if not text or text.startswith("<") else f"{alt}: {text[:200]}"
    ran = False
    if "text/html" in data:
        shown, ran = _html(_text(data["text/html"]), alt, rendering)
        if shown:
            return shown
    if "text/markdown" in data:
        html = html_markdown.markdown(_text(data["text/markdown"]), {}, rendering.folder)
        return _out(sanitizer.flat(html), "prose")
    if "image/svg+xml" in data:
        svg = base64.b64encode(_text(data["image/svg+xml"]).encode()).decode()
        return _picture("image/svg+xml", svg, about, alt, rendering)
    for kind in RASTER:
        if kind in data:
            return _picture(kind, re.sub(r"[^A-Za-z0-9+/=]", "", _text(data[kind])), about, alt, rendering)
    if "text/latex" in data:
        return _out(sanitizer.text(html_markdown.formula(_text(data["text/latex"]), display=True)), "formula")
    if "application/json" in data:
        text = json.dumps(data["application/json"], indent=1, ensure_ascii=False)
    body = ansi.block(text, "", rendering.limits.text) if text.strip() else ""
    if ran or any(kind in data for kind in ("application/javascript", "text/html", WIDGET_MIME)):
        what = "A widget" if WIDGET_MIME in data else "An output"
        body += f'<p class="gone">{what} that needs scripts; it lives in the notebook only.</p>'
    elif not body and results.MIME not in data and data:
        body = f'<p class="gone">An output of type {escape(", ".join(data))}; it is in the notebook.</p>'
    return _out(body, "text") if body else ""


def _html(html: str, alt: str, rendering: Rendering) -> tuple[str, bool]:
    """Return HTML of an output as it may be shown, "" if nothing of it is visible; and whether it had scripts."""
    if len(html) > rendering.limits.html:
        return _out(f'<p class="gone">{len(html):,} characters of HTML are in the notebook</p>', "text"), False
    piece = sanitizer.piece(html, alt)
    clean = limit_pictures(piece.html, rendering.limits)
    if not VISIBLE.search(clean):
        return "", piece.ran
    kind = ""  # a view of ocrlab
    if '<div class="ocrlab"' not in clean:
        coloured = "<svg" in clean or any(COLOURED.search(css) for css in (clean, *piece.css))
        kind = "paper" if coloured else "html"  # colours of its own are meant for white paper
        clean = NUMBER.sub(r"<td data-n\1>\2</td>", clean)
        clean += '<p class="gone">Its scripts do not run here.</p>' if piece.ran else ""
    return _out(clean, f"{kind} {rendering.classes(piece.css)}".strip()), piece.ran


def _picture(kind: str, data: str, about: Mapping[str, Any], alt: str, rendering: Rendering) -> str:
    address = f"data:{kind};base64,{data}"
    attributes: Mapping[str, Any] = about[kind] if isinstance(about.get(kind), Mapping) else {}
    sizes = {name: str(attributes.get(name, "")) for name in ("width", "height")}
    size = "".join(f' {name}="{int(value)}"' for name, value in sizes.items() if value.isdigit())
    words = escape(str(attributes.get("alt") or alt))
    if not sanitizer.whole(address):
        return _out(f'<p class="gone">{words}: it cannot be read.</p>', "text")
    return _out(limit_pictures(f'<img src="{address}"{size} alt="{words}">', rendering.limits), "picture")


def limit_pictures(html: str, limits: Limits) -> str:
    """Return HTML whose large pictures are within `limits`; one that cannot be read stays."""
    if not limits.quality:
        return html
    return DATA.sub(lambda match: reduce_picture(match[0], match[2], limits.pixels, limits.quality), html)


@lru_cache(maxsize=512)
def reduce_picture(address: str, code: str, pixels: int, quality: int) -> str:
    """Return a picture's address with at most `pixels` on the long side, or the same if that is not smaller."""
    from PIL import Image

    from ocrlab.data.image_formats import LARGEST_PICTURE, open_image

    if len(code) < SMALL * pixels // 1600:
        return address
    try:
        with open_image(io.BytesIO(base64.b64decode(code)), LARGEST_PICTURE) as image:
            image.thumbnail((pixels, pixels), Image.Resampling.LANCZOS)
            mode = "RGBA" if "A" in image.getbands() or "transparency" in image.info else "RGB"
            data = io.BytesIO()
            image.convert(mode).save(data, "webp", quality=quality, method=4)
    except (OSError, ValueError, SyntaxError):
        return address
    reduced = f"data:image/webp;base64,{base64.b64encode(data.getvalue()).decode('ascii')}"
    return reduced if len(reduced) < len(address) else address


def _out(html: str, kind: str) -> str:
    return f'<div class="out {kind}">{html}</div>'


def _text(value: Any) -> str:
    return "".join(map(str, value)) if isinstance(value, list) else str(value)
