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
from ocrlab.reports.view import join_views

ENAMES = {"killed": "KernelDied", "failed": "KernelEnded", "hung": "CellStuck", "stopped": "Stopped"}
TAG = "ocrlab-outcome"  # of the cell that holds the outcome of a notebook without one of its own
CELL_FILE = re.compile(r"[^\s\"(]*ipykernel_\d+/(?P<code>\d+)\.py")  # how ipykernel names the code of a cell
BLOCK = re.compile(r"(?m)^(?=(?:Current t|T)hread |Fatal Python error|Process \d+)")


def mark(manager: Any, ended: Ending, index: int | None) -> None:
    """Write how it ended into a notebook under papermill; `index` is that of the cell that began last."""
    notebook = manager.nb
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    place = next((output for output in outputs if results.MIME in output.get("data", {})), None)
    old = results.from_bundle(place.data) if place else None
    # A notebook that says itself how its child died knows more than the exception does.
    own = old if old and old.ending and ended.status == "failed" else None
    if index is not None:
        cell = notebook.cells[index]
        if not any(output.output_type == "error" for output in cell.outputs):
            cell.outputs.append(_error(ended, notebook.cells))
        manager.cell_exception(cell, cell_index=index)
        manager.cell_complete(cell, cell_index=index)
    notebook.metadata.papermill["exception"] = True
    verdict = to_json(ended.verdict) if ended.verdict else None
    notebook.metadata["ocrlab"] = {
        "schema": 1,
        "outcome": own.outcome if own else ended.word,
        "exit_status": (own.ending or {}).get("exit_status", 1) if own else ended.exit_status,
        "cell": ended.cell,
        "verdict": verdict,
    }
    if own:
        return
    about = notebook.metadata.papermill
    name = old.name if old else Path(about.get("input_path") or "notebook").stem
    top = Outcome(name, ended.word, clean(ended.sentence))
    if old:
        began = about.get("start_time")
        seconds = time.time() - datetime.fromisoformat(began).timestamp() if began else None
        result = replace(old, outcome=top.word, sentence=top.sentence, seconds=seconds)
    else:
        result = results.build(top, metrics={}, parameters=about.get("parameters", {}))
    fields = {name: getattr(ended, name) for name in ("status", "cell", "exit_code", "signal", "exit_status")}
    block = outcome.view(top)
    if ended.verdict:
        block = join_views([block, verdict_view.view(ended.verdict, clean(ended.texts))])
    data = {**block._repr_mimebundle_(), **results.bundle(replace(result, ending={**fields, "verdict": verdict}))}
    if place:
        place.data = nbformat.from_dict(data)
        return
    metadata = {"tags": [TAG], "jupyter": {"source_hidden": True}, "papermill": {"status": "completed"}}
    display = nbformat.v4.new_output("display_data", data=data)
    notebook.cells.insert(0, nbformat.v4.new_code_cell("", outputs=[display], metadata=metadata))


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


def cell_stack(stack: str, cells: Sequence[Any] = ()) -> str:
    """Return the frames from the newest down to the cell; other threads and ipykernel's own frames are left out.

    Takes what faulthandler and py-spy write; a stack without a cell is returned whole.
    """
    names = _cell_names(cells)
    frames: list[str] = []
    for block in BLOCK.split(stack):
        lines = block.rstrip().splitlines()
        last = max((n for n, line in enumerate(lines) if CELL_FILE.search(line)), default=None)
        if last is not None:
            frames += [
                CELL_FILE.sub(lambda match: names.get(match["code"], "a cell"), line) for line in lines[: last + 1]
            ]
        elif block.startswith("Fatal Python error"):
            frames += lines[:1]
    return "\n".join(frames) or stack.strip()


def _cell_names(cells: Sequence[Any]) -> dict[str, str]:
    """Return `cell [5]` by the name under which ipykernel compiles it; empty if ipykernel does it differently."""
    try:
        from ipykernel.compiler import get_tmp_hash_seed, murmur2_x86

        seed = get_tmp_hash_seed()
        ran = [cell for cell in cells if cell.cell_type == "code" and cell.execution_count is not None]
        return {str(murmur2_x86(cell.source, seed)): f"cell [{cell.execution_count}]" for cell in ran}
    except (ImportError, AttributeError, TypeError):
        return {}
