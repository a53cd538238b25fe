"""The cells of an executed notebook as HTML: prose, folded code, and of each output the side that needs no script.

Whatever an output holds, what comes out is safe to show (`safe`), described (alt), and within `Limits`.
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

SKIPPED = "this cell never ran"
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
SHOWN = 40_000  # bytes; a smaller picture is left as it is
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
class Page:
    """What the cells of one page share: its headings, the style sheets of outputs, where pictures may come from."""

    folder: Path | None = None
    limits: Limits = field(default_factory=Limits)
    headings: html_markdown.Headings = field(default_factory=html_markdown.Headings)
    sheets: dict[str, str] = field(default_factory=dict)  # CSS of outputs -> the class of those that it is for

    def classes(self, css: tuple[str, ...]) -> str:
        """Return the classes for an output that brought these style sheets."""
        return " ".join(self.sheets.setdefault(sheet, f"s{len(self.sheets)}") for sheet in css)


def markdown(cell: Any, page: Page) -> str:
    """Return a Markdown cell."""
    html = html_markdown.markdown(cell.source, cell.get("attachments", {}), page.folder)
    html = page.headings.put(limit_pictures(html, page.limits))
    return f'<div class="prose">{html}</div>' if html.strip() else ""


def code(cell: Any, number: int, page: Page, language: str = "python") -> str:
    """Return a code cell: its source folded, what it put out below."""
    status = cell.metadata.get("papermill", {}).get("status", "")
    status = "failed" if any(output.output_type == "error" for output in cell.outputs) else status
    shown = "".join(output(item, cell, page) for item in joined(cell.outputs))
    folded = ""
    if cell.source.strip() and not cell.metadata.get("jupyter", {}).get("source_hidden"):
        opened = " open" if status == "failed" else ""
        source = cell.source if len(cell.source) <= page.limits.text else cell.source[: page.limits.text] + "\n…"
        folded = (
            f'<details class="code {escape(status)}"{opened}><summary>{label(cell, status)}</summary>'
            f"{highlighted(source, language)}</details>"
        )
    return f'<section class="cell" id="code-{number}" aria-label="code cell {number}">{folded}{shown}</section>'


def label(cell: Any, status: str) -> str:
    """Return what stands beside the folded code of a cell: its number, how it went, how long it took."""
    number = f" [{cell.execution_count}]" if cell.execution_count is not None else ""
    if status == "pending":
        return f"Code: {SKIPPED}"
    took = seconds(cell)
    time = f" · {took:.1f} s" if took >= 0.1 else ""
    return f"Code{number}{' · failed' if status == 'failed' else ''}{time}"


def seconds(cell: Any) -> float:
    """Return how long a cell took as papermill measured it, 0 where nobody did."""
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
    for output in outputs:
        last = merged[-1] if merged else None
        if last and output["output_type"] == last["output_type"] == "stream" and output["name"] == last["name"]:
            merged[-1] = {**last, "text": last["text"] + output["text"]}
        else:
            merged.append(output)
    return merged


def output(cell_output: Any, cell: Any, page: Page) -> str:
    """Return one output of a cell."""
    kind = cell_output["output_type"]
    if kind == "stream":
        shown = "stderr" if cell_output["name"] == "stderr" else "stdout"
        return (
            _out(ansi.block(cell_output["text"], shown, page.limits.text), shown) if cell_output["text"].strip() else ""
        )
    if kind == "error":
        return _error(cell_output, page)
    return shown_data(cell_output.get("data", {}), cell_output.get("metadata", {}), cell, page)


def _error(error: Any, page: Page) -> str:
    lines = RULED.sub("", "\n".join(error.get("traceback", [])))
    name, message = str(error.get("ename", "")), str(error.get("evalue", ""))
    text = ansi.block(lines or message, "", page.limits.text)
    return _out(f'<p class="raised"><b>{escape(name)}</b></p>{text}', "error")


def shown_data(data: Mapping[str, Any], about: Mapping[str, Any], cell: Any, page: Page) -> str:
    """Return the side of a bundle that a page without scripts shows best."""
    count = cell.execution_count
    alt = f"picture of cell [{count}]" if count is not None else "picture of a cell"
    text = _text(data.get("text/plain", ""))
    described = alt if not text or text.startswith("<") else f"{alt}: {text[:200]}"
    ran = False
    if "text/html" in data:
        shown, ran = _html(_text(data["text/html"]), described, page)
        if shown:
            return shown
    if "text/markdown" in data:
        return _out(sanitizer.flat(html_markdown.markdown(_text(data["text/markdown"]), {}, page.folder)), "prose")
    if "image/svg+xml" in data:
        svg = base64.b64encode(_text(data["image/svg+xml"]).encode()).decode()
        return _picture(f"data:image/svg+xml;base64,{svg}", about.get("image/svg+xml", {}), described, page)
    for kind in RASTER:
        if kind in data:
            code64 = re.sub(r"[^A-Za-z0-9+/=]", "", _text(data[kind]))
            return _picture(f"data:{kind};base64,{code64}", about.get(kind, {}), described, page)
    if "text/latex" in data:
        return _out(sanitizer.text(html_markdown.formula(_text(data["text/latex"]), display=True)), "formula")
    return _plain(data, text, page, ran)


def _plain(data: Mapping[str, Any], text: str, page: Page, ran: bool) -> str:
    """Return what is left to be said of a bundle that has no picture and no HTML which is seen without scripts."""
    if "application/json" in data:
        text = json.dumps(data["application/json"], indent=1, ensure_ascii=False)
    body = ansi.block(text, "", page.limits.text) if text.strip() else ""
    scripted = ran or any(kind in data for kind in ("application/javascript", "text/html")) or WIDGET_MIME in data
    if scripted:
        what = "A widget" if WIDGET_MIME in data else "An output"
        body += f'<p class="gone">{what} that needs scripts; it lives in the notebook only.</p>'
    elif not body and results.MIME not in data and data:
        body = f'<p class="gone">An output of type {escape(", ".join(data))}; it is in the notebook.</p>'
    return _out(body, "text") if body else ""


def _html(html: str, alt: str, page: Page) -> tuple[str, bool]:
    """Return HTML of an output as it may be shown, "" where nothing of it is seen; and whether it had scripts."""
    if len(html) > page.limits.html:
        return _out(f'<p class="gone">{len(html):,} characters of HTML are in the notebook</p>', "text"), False
    piece = sanitizer.piece(html, alt)
    clean = limit_pictures(piece.html, page.limits)
    if not VISIBLE.search(clean):
        return "", piece.ran
    ours = '<div class="ocrlab"' in clean
    coloured = "<svg" in clean or any(COLOURED.search(css) for css in (clean, *piece.css))
    kind = "" if ours else "paper" if coloured else "html"  # colours of its own are meant for white paper
    clean = clean if ours else NUMBER.sub(r"<td data-n\1>\2</td>", clean)
    note = '<p class="gone">Its scripts do not run here.</p>' if piece.ran and not ours else ""
    return _out(clean + note, f"{kind} {page.classes(piece.css)}".strip()), piece.ran


def _picture(address: str, about: Any, alt: str, page: Page) -> str:
    attributes = about if isinstance(about, Mapping) else {}
    size = "".join(
        f' {name}="{int(attributes[name])}"' for name in ("width", "height") if str(attributes.get(name, "")).isdigit()
    )
    words = escape(str(attributes.get("alt") or alt))
    if not sanitizer.whole(address):
        return _out(f'<p class="gone">{words}: it cannot be read.</p>', "text")
    return _out(limit_pictures(f'<img src="{address}"{size} alt="{words}">', page.limits), "picture")


def limit_pictures(html: str, limits: Limits) -> str:
    """Return HTML whose large pictures are within `limits`; one that cannot be read stays."""
    if not limits.quality:
        return html
    return DATA.sub(lambda match: reduce_picture(match[0], match[2], limits.pixels, limits.quality), html)


@lru_cache(maxsize=512)
def reduce_picture(address: str, code: str, pixels: int, quality: int) -> str:
    """Return a picture's address with at most `pixels` on the long side, or the same where that is no smaller."""
    from PIL import Image

    if len(code) < SHOWN * pixels // 1600:
        return address
    try:
        with Image.open(io.BytesIO(base64.b64decode(code))) as image:
            image.thumbnail((pixels, pixels), Image.Resampling.LANCZOS)
            data = io.BytesIO()
            image.convert("RGBA" if "A" in image.getbands() or "transparency" in image.info else "RGB").save(
                data, "webp", quality=quality, method=4
            )
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return address
    reduced = f"data:image/webp;base64,{base64.b64encode(data.getvalue()).decode('ascii')}"
    return reduced if len(reduced) < len(address) else address


def _out(html: str, kind: str) -> str:
    return f'<div class="out {kind}">{html}</div>'


def _text(value: Any) -> str:
    return "".join(value) if isinstance(value, list) else str(value)
