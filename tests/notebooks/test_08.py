"""The inspect notebook as a user runs it: papermill, from another folder, with good and with bad parameters."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import papermill
import pytest
from papermill.exceptions import PapermillExecutionError

from ocrlab.reports.html import document
from ocrlab.reports.notebooks import parameters, results


@pytest.fixture
def notebook(root: Path) -> Path:
    return root / "notebooks" / "08_inspect.ipynb"


def cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


@pytest.mark.slow
def test_it_runs_from_any_folder_and_its_report_shows_the_static_side(execute: Any, tmp_path: Path) -> None:
    path = execute(page=3)
    result = results.load(path)
    assert (result.name, result.outcome) == ("08_inspect", "PASS")
    bundles = [output["data"] for cell in cells(path) for output in cell["outputs"] if "data" in output]
    live = [bundle for bundle in bundles if "application/vnd.jupyter.widget-view+json" in bundle]
    assert len(live) == 1 and "receipt_003" in "".join(live[0]["text/html"])
    assert path.stat().st_size < 1_500_000
    document.write(path, tmp_path / "report.html")
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert report.count("<image ") == 3 and "Threshold map" in report
    assert "widget-view" not in report and not re.search(r'(src|href)="(?!data:|#)', report)
    assert len(report) < 800_000
    assert not list((tmp_path / "runs").glob("2*"))  # the child left in peace, when its kernel did


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parameters_", "words"),
    [
        ({"checkpoint": "nowhere.ckpt"}, "There is no checkpoint"),
        ({"checkpoint": "newest"}, "no successful run"),
        ({"val_split": "tests"}, "tests"),
        ({"page": -1}, "at least 0"),
    ],
)
def test_a_wrong_parameter_gets_a_single_sentence(execute: Any, parameters_: dict[str, Any], words: str) -> None:
    with pytest.raises(PapermillExecutionError, match=words):
        execute(**parameters_)
    [error] = [
        output for cell in cells(Path("out.ipynb")) for output in cell["outputs"] if output["output_type"] == "error"
    ]
    assert len("\n".join(error["traceback"]).splitlines()) == 1
    if "page" not in parameters_:  # which is refused before there is a result
        assert results.load(Path("out.ipynb")).outcome == "INCOMPLETE"


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
    assert [output["text"] for output in last["outputs"]] == [["08_inspect: PASS\n"]]
    assert last["execution_count"] and not any(cell["outputs"] for cell in others)
