"""The loader's notebook as a user runs it: papermill, from another folder, with good and with bad parameters."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import papermill
import pytest
from papermill.exceptions import PapermillExecutionError

from ocrlab.reports.notebooks import parameters, results
from ocrlab.reports.notebooks.parameters_to_config import fields

TINY = {
    "batch_size": 1,
    "crop": 64,
    "width": 16,
    "threads": 1,
    "accelerator": "cpu",
    "precision": "fp32",
    "channels_last": True,
    "workers_tried": [0, 1],
    "seconds": 0.2,
    "limit": 0.1,  # what is faster on a machine that tests other things meanwhile is not the question
}


@pytest.fixture
def notebook(root: Path) -> Path:
    return root / "notebooks" / "05_loader.ipynb"


def cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


@pytest.mark.slow
def test_it_runs_from_any_folder_and_recommends_what_it_measured(execute: Any, tmp_path: Path) -> None:
    path = execute(**TINY)
    result = results.load(path)
    assert (result.name, result.outcome) == ("05_loader", "PASS")
    assert cells(path)[-1]["outputs"][0]["text"] == ["05_loader: PASS\n"]
    bundles = [output["data"] for cell in cells(path) for output in cell["outputs"] if "data" in output]
    html = "\n".join("".join(bundle.get("text/html", "")) for bundle in bundles)
    assert re.search(r"ocrlab train runtime.workers=[01] runtime.threads=1", html)
    assert "receipt" in html and "ui.perfetto.dev" in html
    assert re.search(r"<td[^>]*>(encoder|decoder|head)[.\w]*</td>", html)  # an operator's module
    assert not re.search(r'(src|href)="(?!data:|#)', html)  # nothing is fetched
    [trace] = (tmp_path / "runs" / "profiles").iterdir()
    assert trace.name.endswith(".json.gz")
    assert path.stat().st_size < 1_000_000


def test_bad_parameters_stop_it_at_once(execute: Any) -> None:
    with pytest.raises(PapermillExecutionError, match="seconds=0 cannot be used"):
        execute(seconds=0)
    assert "INCOMPLETE" in Path("out.ipynb").read_text(encoding="utf-8")


def test_the_committed_notebook(notebook: Path) -> None:
    [cell] = [cell for cell in cells(notebook) if "parameters" in cell["metadata"].get("tags", [])]
    declared = parameters.read("".join(cell["source"]))
    assert list(papermill.inspect_notebook(str(notebook))) == [parameter.name for parameter in declared]
    assert all(parameter.help for parameter in declared)
    assert all(parameters.find_problem(parameter, parameter.default) is None for parameter in declared)
    ours = {"workers_tried", "threads_tried", "seconds", "limit"}
    assert {p.name for p in declared} - set(fields()) == ours
    title = "".join(json.loads(notebook.read_text(encoding="utf-8"))["cells"][0]["source"])
    assert "?" in title.splitlines()[0]
    assert re.search(r"\d+ seconds", title) and "pass" in title
    *others, last = cells(notebook)
    assert [output["text"] for output in last["outputs"]] == [["05_loader: PASS\n"]]
    assert last["execution_count"] and not any(cell["outputs"] for cell in others)
