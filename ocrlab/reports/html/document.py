"""An executed notebook as one HTML file: the outcome first, code folded, nothing fetched, no script needed or run."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from ocrlab import redaction
from ocrlab.errors import DataError
from ocrlab.reports import progress_view, view
from ocrlab.reports.html import cells, markdown, sanitizer
from ocrlab.reports.html.cells import Limits, Rendering
from ocrlab.reports.notebooks import executed_file, outcome, results
from ocrlab.reports.notebooks.outcome import Outcome
from ocrlab.run_folder import write_text

LARGEST = 2_000_000  # bytes of a report
LISTED = 3  # sections from which on they are listed beside the page
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
PLACE = re.compile(r"\bcell \[(\d+)\]")
UNJUDGED = "Nothing in this notebook was judged, so it cannot count as good."


@dataclass(frozen=True)
class WrittenReport:
    """The outcome at the top of a report, None without one in its notebook, and how many texts were replaced in it."""

    outcome: str | None
    redacted: int


def write(notebook: Path | str, path: Path | str, most: int = LARGEST) -> WrittenReport:
    """Write an executed notebook as HTML of at most `most` bytes, without secrets, whole or not at all.

    Raises OSError, DataError.
    """
    read = executed_file.read(notebook)
    try:
        text, written = _render(read, Path(notebook).stem, Path(notebook).parent, most)
    except RecursionError as error:
        raise DataError(f"{notebook} cannot be shown", got="objects nested too deeply in each other") from error
    write_text(path, text)
    return written


def notebook_to_html(path: Path | str, out: Path | str | None = None) -> Path:
    """Write an executed notebook as one HTML page without secrets and return its path; by default beside it.

    An existing page is replaced. Raises DataError if `path` is not a notebook, OSError if it cannot be written.
    """
    target = Path(out) if out is not None else Path(path).with_suffix(".html")
    write(path, target)
    return target


def page(notebook: Any, name: str = "notebook", folder: Path | None = None) -> str:
    """Return an executed notebook as one HTML page without secrets, of at most 2 MB.

    `name` is the title of a notebook without a heading; pictures that its prose names are looked for in `folder`.
    """
    return _render(notebook, name, folder, LARGEST)[0]


def warm() -> None:
    """Import what exporting needs, so that a dead kernel's report need not wait for it."""
    markdown.markdown("$x$ `y`", {}, None)
    cells.highlighted("pass", "python")
    sanitizer.piece("<style>a{b:c}</style>")


def _render(notebook: Any, name: str, folder: Path | None, most: int) -> tuple[str, WrittenReport]:
    clean, count = executed_file.redacted(notebook)
    count += clean.metadata.get("ocrlab", {}).get("redacted", 0)
    outputs = [output for cell in clean.cells for output in cell.get("outputs", [])]
    outcomes = [result.outcome for output in outputs if (result := results.from_bundle(output.get("data", {})))]
    top = _take_outcome(clean)
    for limits in cells.STEPS:
        rendering = Rendering(folder, limits)
        text = _page(clean, top, rendering, name, count, most)
        if len(text.encode("utf-8", errors="backslashreplace")) <= most:
            break
    return text, WrittenReport(outcomes[0] if outcomes else None, count)


def _page(notebook: Any, top: str, rendering: Rendering, name: str, count: int, most: int) -> str:
    """Return the page within the limits of `rendering`, which are there for `most` bytes."""
    body, listed = _body(notebook, rendering)
    title = rendering.headings.title or escape(name)
    words = markdown.plain(title)
    head = _top(top or view.page(outcome.view(Outcome(words, "INCOMPLETE", UNJUDGED)).html), notebook, rendering)
    sheets = "".join(f".{own}{{{css}}}" for css, own in rendering.sheets.items())
    about = notebook.metadata.get("papermill", {})
    facts = [escape(Path(str(about.get("input_path") or name)).stem)]
    with contextlib.suppress(ValueError, TypeError):
        facts.append(datetime.fromisoformat(about.get("start_time")).strftime("%-d %B %Y, %H:%M"))
    if isinstance(about.get("duration"), int | float):
        facts.append(progress_view.duration(about["duration"]))
    notes = [redaction.note(count)]
    if rendering.limits != Limits():
        notes.append(f"Pictures and texts were cut so that this file stays below {most / 1e6:g} MB.")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">'
        f"<title>{escape(words)}</title><style>{view.report_css()}</style><style>{sheets}</style></head>\n"
        f'<body class="report{" listed" if listed else ""}">'
        f'<header><p class="meta">{" · ".join(facts)}</p><h1>{title}</h1>{head}</header>\n'
        f"{listed}<main>{body}</main>\n<footer>{' '.join([*notes, 'Written by ocrlab.'])}</footer></body></html>\n"
    )


def _body(notebook: Any, rendering: Rendering) -> tuple[str, str]:
    """Return the cells, and the list of their sections with how each went; "" if there are few."""
    language = notebook.metadata.get("kernelspec", {}).get("language") or "python"
    parts: list[str] = []
    ran: dict[str, list[Any]] = {}  # the code cells below each heading of the second level
    number = 0
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cells.markdown(cell, rendering))
        elif cell.cell_type == "code":
            number += 1
            parts.append(cells.code(cell, number, rendering, language))
            if rendering.headings.listed:
                ran.setdefault(rendering.headings.listed[-1][0], []).append(cell)
    items = []
    for name, text in rendering.headings.listed:
        below = ran.get(name, [])
        seconds, states = sum(map(cells.seconds, below)), set(map(cells.status, below))
        kind, note = "", progress_view.duration(seconds) if seconds >= 1 else ""
        if states & {"failed", "pending"}:
            kind, note = ("bad", "failed") if "failed" in states else ("none", "never ran")
        took = f" <small>{note}</small>" if note else ""
        items.append(f'<li class="{kind}"><a href="#{escape(name)}">{escape(text)}</a>{took}</li>')
    listed = f'<nav aria-label="Sections"><div><ol>{"".join(items)}</ol></div></nav>\n'
    return "\n".join(filter(None, parts)), listed if len(items) >= LISTED else ""


def _take_outcome(notebook: Any) -> str:
    """Take the outcome block out of a notebook and return its HTML, made anew if it does not show what it should."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            result = results.from_bundle(data)
            if result and result.outcome in outcome.OUTCOMES:
                cell.outputs.remove(output)
                html = "".join(data.get("text/html", ""))
                if 'class="outcome"' in sanitizer.piece(html).html:
                    return html
                return view.page(outcome.view(Outcome(result.name, result.outcome, result.sentence)).html)
    return ""


def _top(html: str, notebook: Any, rendering: Rendering) -> str:
    """Return the outcome block as it stands at the top; cells that it names are links."""
    block = sanitizer.piece(html, "sign")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    places = {str(cell.execution_count): number for number, cell in reversed(list(enumerate(code, 1)))}

    def linked(match: re.Match[str]) -> str:
        number = places.get(match[1])
        return f'<a href="#code-{number}">{match[0]}</a>' if number else match[0]

    parts = re.split(r"(<[^>]*>)", block.html)
    inside = "".join(part if part.startswith("<") else PLACE.sub(linked, part) for part in parts)
    return f'<div class="out {rendering.classes(block.css)}">{inside}</div>'
