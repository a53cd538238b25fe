"""The sanity notebook as a user runs it: papermill, from another folder, with defaults, a defect and bad parameters."""

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


@pytest.fixture
def notebook(root: Path) -> Path:
    return root / "notebooks" / "01_sanity.ipynb"


def cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def html_of(path: Path) -> str:
    bundles = [output["data"] for cell in cells(path) for output in cell["outputs"] if "data" in output]
    return "\n".join("".join(bundle.get("text/html", "")) for bundle in bundles)


@pytest.mark.slow
def test_it_runs_from_any_folder_and_every_check_is_reported(execute: Any) -> None:
    path = execute(batch_size=1)
    result = results.load(path)
    assert (result.name, result.outcome) == ("01_sanity", "PASS")
    html = html_of(path)
    for check in ("round trip of polygons", "contract of a step", "bf16 against fp32", "one page by heart"):
        assert check in html
    assert "INCOMPLETE" not in html and not re.search(r'(src|href)="(?!data:|#)', html)
    assert cells(path)[-1]["outputs"][0]["text"] == ["01_sanity: PASS\n"]
    assert path.stat().st_size < 400_000
    assert [name.name for name in path.parent.iterdir()] == ["out.ipynb"]


@pytest.mark.slow
def test_a_setting_that_loses_polygons_is_reported(execute: Any) -> None:
    """unclip 6 makes every polygon too large, so that also what was learned by heart is not found."""
    path = execute(crop=64, batch_size=1, overrides=["width=16", "post.unclip=6", "runtime.threads=1"])
    result = results.load(path)
    assert (result.name, result.outcome) == ("01_sanity", "FAIL")
    html = html_of(path)
    assert "round trip of polygons" in html and "do not agree" in html
    assert "INCOMPLETE" not in html
    assert not re.search(r'(src|href)="(?!data:|#)', html)
    assert cells(path)[-1]["outputs"][0]["text"] == ["01_sanity: FAIL\n"]
    assert path.stat().st_size < 400_000
    assert [name.name for name in path.parent.iterdir()] == ["out.ipynb"]


def test_bad_parameters_stop_it_at_once(execute: Any, tmp_path: Path) -> None:
    with pytest.raises(PapermillExecutionError) as caught:
        execute(decoder="fnp", crop=100)
    assert "decoder" in str(caught.value) and "crop" in str(caught.value)
    assert "INCOMPLETE" in html_of(Path("out.ipynb"))
    assert not (tmp_path / "runs").exists()


def test_papermill_shows_every_parameter_with_its_help(notebook: Path) -> None:
    [cell] = [cell for cell in cells(notebook) if "parameters" in cell["metadata"].get("tags", [])]
    declared = parameters.read("".join(cell["source"]))
    assert list(papermill.inspect_notebook(str(notebook))) == [parameter.name for parameter in declared]
    assert all(parameter.help for parameter in declared)
    assert {p.name for p in declared} - set(fields()) == {"overrides", "in_process"}
    assert all(parameters.find_problem(parameter, parameter.default) is None for parameter in declared)


def test_the_committed_notebook(notebook: Path) -> None:
    title = "".join(json.loads(notebook.read_text(encoding="utf-8"))["cells"][0]["source"])
    assert "?" in title.splitlines()[0]
    assert re.search(r"\d+ seconds", title) and "pass" in title
    *others, last = cells(notebook)
    assert set(last["metadata"]["tags"]) == {"keep_output", "nbval-check-output"}
    assert [output["text"] for output in last["outputs"]] == [["01_sanity: PASS\n"]]
    assert last["execution_count"] == len(cells(notebook)) and not any(cell["outputs"] for cell in others)
