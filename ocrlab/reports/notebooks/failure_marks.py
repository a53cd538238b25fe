"""What is written into a notebook that did not end by itself: the failed cell, the outcome at the top, the result."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat

from ocrlab.records import to_json
from ocrlab.redaction import clean
from ocrlab.reports import verdict_view
from ocrlab.reports.notebooks import outcome, results
from ocrlab.reports.notebooks.outcome import Outcome
from ocrlab.reports.notebooks.termination import Ending
from ocrlab.reports.view import View, join_views

ENAMES = {"killed": "KernelDied", "failed": "KernelEnded", "hung": "CellStuck", "stopped": "Stopped"}
TAG = "ocrlab-outcome"  # of the cell that holds the outcome of a notebook without one of its own
CELL_FILE = re.compile(r"[^\s\"(]*ipykernel_\d+/(?P<code>\d+)\.py")  # how ipykernel names the code of a cell
BLOCK = re.compile(r"(?m)^(?=(?:Current t|T)hread |Fatal Python error|Process \d+)")


def mark(manager: Any, ended: Ending, index: int | None) -> None:
    """Write how it ended into a notebook under papermill; `index` is that of the cell that began last."""
    notebook = manager.nb
    own_result = _own_result(notebook) if ended.status == "failed" else None
    if index is not None:
        cell = notebook.cells[index]
        if not any(output.output_type == "error" for output in cell.outputs):
            cell.outputs.append(_error(ended, notebook.cells))
        manager.cell_exception(cell, cell_index=index)
        manager.cell_complete(cell, cell_index=index)
    notebook.metadata.papermill["exception"] = True
    notebook.metadata["ocrlab"] = {
        "schema": 1,
        "outcome": own_result.outcome if own_result else ended.word,
        "exit_status": (own_result.ending or {}).get("exit_status", 1) if own_result else ended.exit_status,
        "cell": ended.cell,
        "verdict": to_json(ended.verdict) if ended.verdict else None,
    }
    if own_result is None:
        _top(notebook, ended)


def _own_result(notebook: Any) -> results.Result | None:
    """Return the result in which the notebook itself said how its child died: it knows more than the exception says."""
    place = _place(notebook)
    result = results.from_bundle(place.data) if place else None
    return result if result and result.ending else None


def _place(notebook: Any) -> Any:
    """Return the output that holds outcome and result, None where a notebook has none."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return next((output for output in outputs if results.MIME in output.get("data", {})), None)


def text_of(cell: Any) -> str:
    """Return what a cell has printed, and its error, as text."""
    parts = []
    for output in cell.get("outputs", []):
        if output.output_type == "stream":
            parts.append(output.text)
        elif output.output_type == "error":
            parts.append("\n".join(output.traceback))
    return "".join(parts)


def _error(ended: Ending, cells: Sequence[Any]) -> Any:
    parts = [ended.sentence]
    parts += [verdict_view.text(ended.verdict)] if ended.verdict and ended.verdict.causes else []
    parts += [cell_stack(ended.stack, cells)] if ended.stack.strip() else []
    lines = "\n\n".join(parts).splitlines()
    return nbformat.v4.new_output("error", ename=ENAMES[ended.status], evalue=ended.sentence, traceback=lines)


def _top(notebook: Any, ended: Ending) -> None:
    """Overwrite the outcome block and the result of a notebook; one that has none gets them in a cell of their own."""
    place = _place(notebook)
    old = results.from_bundle(place.data) if place else None
    name = old.name if old else Path(notebook.metadata.papermill.get("input_path") or "notebook").stem
    top = Outcome(name, ended.word, clean(ended.sentence))
    if old:
        result = replace(old, outcome=top.word, sentence=top.sentence, seconds=_seconds(notebook))
    else:
        result = results.build(top, metrics={}, parameters=notebook.metadata.papermill.get("parameters", {}))
    result = replace(result, ending=_ending_record(ended))
    data = {**_page(top, ended)._repr_mimebundle_(), **results.bundle(result)}
    if place:
        place.data = nbformat.from_dict(data)
        return
    shown = nbformat.v4.new_output("display_data", data=data)
    metadata = {"tags": [TAG], "jupyter": {"source_hidden": True}, "papermill": {"status": "completed"}}
    cell = nbformat.v4.new_code_cell("", outputs=[shown], metadata=metadata)
    notebook.cells.insert(0, cell)


def _page(top: Outcome, ended: Ending) -> View:
    block = outcome.view(top)
    return join_views([block, verdict_view.view(ended.verdict, clean(ended.texts))]) if ended.verdict else block


def _ending_record(ended: Ending) -> dict[str, Any]:
    """Return how it ended as it stands in the result."""
    fields = {name: getattr(ended, name) for name in ("status", "cell", "exit_code", "signal", "exit_status")}
    return {**fields, "verdict": to_json(ended.verdict) if ended.verdict else None}


def _seconds(notebook: Any) -> float | None:
    began = notebook.metadata.papermill.get("start_time")
    return time.time() - datetime.fromisoformat(began).timestamp() if began else None


def cell_stack(stack: str, cells: Sequence[Any] = ()) -> str:
    """Return the frames from the newest down to the cell; other threads and ipykernel's own frames say nothing.

    Takes what faulthandler and py-spy write; a stack in which no cell is found is returned whole.
    """
    frames: list[str] = []
    names = _cell_names(cells)
    for block in BLOCK.split(stack):
        lines = block.rstrip().splitlines()
        last = max((n for n, line in enumerate(lines) if CELL_FILE.search(line)), default=None)
        if last is not None:
            frames += [_with_cell_names(line, names) for line in lines[: last + 1]]
        elif block.startswith("Fatal Python error"):
            frames += lines[:1]
    return "\n".join(frames) or stack.strip()


def _with_cell_names(line: str, names: dict[str, str]) -> str:
    return CELL_FILE.sub(lambda match: names.get(match["code"], "a cell"), line)


def _cell_names(cells: Sequence[Any]) -> dict[str, str]:
    """Return `cell [5]` by the name under which ipykernel compiles it; empty where ipykernel does it otherwise."""
    try:
        from ipykernel.compiler import get_tmp_hash_seed, murmur2_x86

        seed = get_tmp_hash_seed()
        ran = [cell for cell in cells if cell.cell_type == "code" and cell.execution_count is not None]
        return {str(murmur2_x86(cell.source, seed)): f"cell [{cell.execution_count}]" for cell in ran}
    except (ImportError, AttributeError, TypeError):
        return {}
