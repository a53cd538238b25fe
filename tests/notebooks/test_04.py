"""The layers notebook as a user runs it: papermill, from another folder, with good and with bad parameters."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import papermill
import pytest
from papermill.exceptions import PapermillExecutionError

from ocrlab.reports.notebooks import parameters, results


@pytest.fixture
def notebook(root: Path) -> Path:
    return root / "notebooks" / "04_layers.ipynb"


def cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


@pytest.mark.slow
def test_it_runs_from_any_folder_and_finds_what_it_planted(execute: Any) -> None:
    path = execute(max_steps=2, batch_size=2, crop=64)
    result = results.load(path)
    assert (result.name, result.outcome) == ("04_layers", "PASS")
    bundles = [output["data"] for cell in cells(path) for output in cell["outputs"] if "data" in output]
    html = "\n".join("".join(bundle.get("text/html", "")) for bundle in bundles)
    assert "3 of 3 planted faults are found" in html
    assert not re.search(r'(src|href)="(?!data:|#)', html)
    live = [bundle for bundle in bundles if "application/vnd.jupyter.widget-view+json" in bundle]
    assert len(live) == 1 and "All 32 maps" in "".join(live[0]["text/html"])  # the static side of the slider
    assert path.stat().st_size < 2_000_000


@pytest.mark.slow
def test_a_wrong_module_is_refused_with_the_nearest_name(execute: Any) -> None:
    with pytest.raises(PapermillExecutionError, match="decoder.fusion"):
        execute(module="decoder.fussion")
    assert results.load(Path("out.ipynb")).outcome != "PASS"


def test_the_committed_notebook(notebook: Path) -> None:
    [cell] = [cell for cell in cells(notebook) if "parameters" in cell["metadata"].get("tags", [])]
    declared = parameters.read("".join(cell["source"]))
    assert list(papermill.inspect_notebook(str(notebook))) == [parameter.name for parameter in declared]
    assert all(parameter.help for parameter in declared)
    assert all(parameters.find_problem(parameter, parameter.default) is None for parameter in declared)
    title = "".join(json.loads(notebook.read_text(encoding="utf-8"))["cells"][0]["source"])
    assert "?" in title.splitlines()[0]
    assert re.search(r"\d+ seconds", title) and "pass" in title
    *others, last = cells(notebook)
    assert [output["text"] for output in last["outputs"]] == [["04_layers: PASS\n"]]
    assert last["execution_count"] and not any(cell["outputs"] for cell in others)
