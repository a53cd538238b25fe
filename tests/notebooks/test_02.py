"""The memory notebook as a user runs it: papermill, from another folder, with good and with bad parameters."""

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

TINY = {"batch_size": 1, "crop": 64, "followed": 1, "workers": 0, "overrides": ["width=16"]}


@pytest.fixture
def notebook(root: Path) -> Path:
    return root / "notebooks" / "02_memory.ipynb"


def cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def html_of(path: Path) -> str:
    bundles = [output["data"] for cell in cells(path) for output in cell["outputs"] if "data" in output]
    return "\n".join("".join(bundle.get("text/html", "")) for bundle in bundles)


@pytest.mark.slow
def test_it_finds_the_planted_leak_from_any_folder(execute: Any) -> None:
    path = execute(**TINY)
    result = results.load(path)
    assert (result.name, result.outcome) == ("02_memory", "PASS")
    html = html_of(path)
    for part in ("encoder.layer4", "activations", "kept.append(output)", "high-water mark"):
        assert part in html
    assert not re.search(r'(src|href)="(?!data:|#)', html)
    assert [name.name for name in path.parent.iterdir()] == ["out.ipynb"]


def test_bad_parameters_stop_it_at_once(execute: Any) -> None:
    with pytest.raises(PapermillExecutionError) as caught:
        execute(followed="many", leek="outputs")
    assert "followed='many' cannot be used" in str(caught.value)
    assert "no parameter leek. Did you mean leak?" in str(caught.value)


def test_papermill_shows_every_parameter_with_its_help(notebook: Path) -> None:
    [cell] = [cell for cell in cells(notebook) if "parameters" in cell["metadata"].get("tags", [])]
    declared = parameters.read("".join(cell["source"]))
    assert list(papermill.inspect_notebook(str(notebook))) == [parameter.name for parameter in declared]
    assert all(parameter.help for parameter in declared)
    assert {p.name for p in declared} - set(fields()) == {"followed", "leak", "overrides"}
    assert all(parameters.find_problem(parameter, parameter.default) is None for parameter in declared)


def test_only_the_last_line_is_committed_and_compared(notebook: Path) -> None:
    *others, last = cells(notebook)
    assert set(last["metadata"]["tags"]) == {"keep_output", "nbval-check-output"}
    assert ["".join(output["text"]) for output in last["outputs"]] == ["02_memory: PASS\n"]
    assert last["execution_count"]
    assert not any(cell["outputs"] for cell in others)
