"""An executed notebook as one HTML file: the outcome first, code folded, nothing fetched, no script needed."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import nbformat

from ocrlab.errors import DataError
from ocrlab.flight import write_text
from ocrlab.report import executed, outcome, results, view
from ocrlab.report.outcome import Outcome
from ocrlab.report.view import INK, LINE

SKIPPED = "this cell never ran"
TEMPLATE = """
{%- extends 'basic/index.html.j2' -%}
{%- block input_group -%}
{%- if cell.source.strip() -%}
{%- set status = cell.metadata.papermill.status -%}
<details class="code {{ status }}"{{ " open" if status == "failed" }}>
<summary>{{ cell.metadata.ocrlab_label }}</summary>{{ super() }}</details>
{%- endif -%}
{%- endblock input_group -%}
{%- block in_prompt -%}{%- endblock in_prompt -%}
{%- block output_area_prompt -%}{%- endblock output_area_prompt -%}
{%- block data_widget_view scoped -%}{%- endblock data_widget_view -%}
"""
STYLE = f"""
:root {{ color-scheme: light; }}
body {{ font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; color: {INK};
  background: #fff; margin: 0 auto; padding: 28px 24px 60px; max-width: 960px; }}
h1 {{ font-size: 27px; line-height: 1.25; margin: 26px 0 8px; }}
h2 {{ font-size: 19px; margin: 34px 0 4px; padding-top: 14px; border-top: 1px solid {LINE}; }}
h1 .anchor-link, h2 .anchor-link, h3 .anchor-link {{ display: none; }}
p {{ margin: 6px 0; }}
img, svg {{ max-width: 100%; height: auto; }}
pre {{ font: 12.5px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; margin: 4px 0; overflow-x: auto;
  white-space: pre-wrap; overflow-wrap: anywhere; }}
code {{ font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }}
table {{ border-collapse: collapse; }}
td, th {{ padding: 3px 10px; text-align: left; }}
.code summary {{ cursor: pointer; font-size: 12.5px; color: #5f6b7a; margin: 8px 0 2px; }}
.code .highlight {{ background: #f5f7f9; border: 1px solid {LINE}; border-radius: 4px; padding: 6px 12px; }}
.code.failed summary {{ color: #ab1f24; font-weight: 600; }}
.code.pending summary {{ color: #8a94a0; }}
.output_error pre {{ background: #fcecec; border-left: 4px solid #ab1f24; padding: 10px 14px; }}
.output_stderr pre {{ background: #fbf6ea; padding: 8px 12px; }}
.k, .kn, .ow, .kc {{ color: #7b1f79; }} .s, .s1, .s2, .sd {{ color: #116b39; }} .c, .c1 {{ color: #5f6b7a; }}
.mi, .mf {{ color: #8f3d05; }}
.ansi-red-fg {{ color: #ab1f24; }} .ansi-green-fg {{ color: #116b39; }} .ansi-blue-fg {{ color: #1d6fb8; }}
.ansi-bold {{ font-weight: 700; }}
footer {{ margin-top: 40px; font-size: 12.5px; color: #5f6b7a; }}
@media print {{ body {{ padding: 0; max-width: none; }} .code:not([open]) {{ display: none; }} }}
"""


@dataclass(frozen=True)
class Written:
    """What a report says at its top (None where its notebook said nothing), and how many texts were replaced in it."""

    outcome: str | None
    redacted: int


def write(notebook: Path | str, path: Path | str) -> Written:
    """Write an executed notebook as HTML without secrets, whole or not at all; raises OSError, DataError."""
    try:
        read = nbformat.read(str(notebook), as_version=4)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise DataError(f"{notebook} is not a notebook", got=f"{type(error).__name__}: {error}") from error
    clean, count = executed.redacted(read)
    about = clean.metadata.setdefault("ocrlab", {})
    about["redacted"] = about.get("redacted", 0) + count
    said = [found for output in _outputs(clean) if (found := results.from_bundle(output.get("data", {})))]
    write_text(path, page(clean))
    return Written(said[0].outcome if said else None, about["redacted"])


def _outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def page(notebook: Any) -> str:
    """Return an executed notebook as one HTML page."""
    notebook = copy.deepcopy(notebook)
    for cell in notebook.cells:
        cell.metadata["ocrlab_label"] = _label(cell)
        cell.metadata.setdefault("papermill", nbformat.from_dict({"status": ""}))
    title = next(
        (c.source.strip().splitlines()[0].lstrip("# ") for c in notebook.cells if c.source.strip()), "notebook"
    )
    top = _take_outcome(notebook) or _silent(title)
    body, _ = _exporter().from_notebook_node(notebook)
    count = notebook.metadata.get("ocrlab", {}).get("redacted")
    told = f"Replaced, because they named this machine or a secret: {count} texts. " if count else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><title>{escape(title)}</title><style>{STYLE}</style></head>'
        f"<body><header>{top}</header><main>{body}</main><footer>{told}Written by ocrlab.</footer></body></html>\n"
    )


@functools.cache
def _exporter() -> Any:
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(template_name="basic", raw_template=TEMPLATE, exclude_anchor_links=True)
    exporter.config.NbConvertBase.display_data_priority = ["text/html", "image/svg+xml", "image/png", "text/plain"]
    return exporter


def warm() -> None:
    """Import what exporting needs, so that a dead kernel's report need not wait for it."""
    _exporter()


def _take_outcome(notebook: Any) -> str:
    """Take the outcome block out of a notebook and return its HTML."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if results.MIME in data:
                cell.outputs.remove(output)
                return str(data.get("text/html", ""))
    return ""


def _silent(title: str) -> str:
    """Return the block of a notebook that said nothing about itself: silence is never green."""
    said = Outcome(title, "INCOMPLETE", "Nothing in this notebook was judged, so that nothing says that it is good.")
    return view.page(outcome.view(said).html)


def _label(cell: Any) -> str:
    """Return what stands beside the folded code of a cell: its number, how it went, how long it took."""
    if cell.cell_type != "code":
        return ""
    kept = cell.metadata.get("papermill", {})
    number = f"[{cell.execution_count}]" if cell.execution_count is not None else ""
    if kept.get("status") == "pending":
        return f"Code: {SKIPPED}"
    seconds = kept.get("duration")
    took = f" · {seconds:.1f} s" if isinstance(seconds, float) and seconds >= 0.1 else ""
    return f"Code {number}{' · failed' if kept.get('status') == 'failed' else ''}{took}"
