"""The doctor's notebook as a user runs it: papermill, from another folder, with the kernel's Python and another."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import papermill
import pytest
from papermill.exceptions import PapermillExecutionError

from ocrlab.reports.notebooks import parameters, results


@pytest.fixture
def notebook(root: Path) -> Path:
    return root / "notebooks" / "00_doctor.ipynb"


def cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def html_of(path: Path) -> str:
    bundles = [output["data"] for cell in cells(path) for output in cell["outputs"] if "data" in output]
    return "\n".join("".join(bundle.get("text/html", "")) for bundle in bundles)


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """Return a Python without any package."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_another_python_without_torch_fails_with_the_command_that_mends_it(execute: Any, bare: str) -> None:
    path = execute(python=bare)
    result = results.load(path)
    assert (result.name, result.outcome) == ("00_doctor", "FAIL")
    assert cells(path)[-1]["outputs"][0]["text"] == ["00_doctor: FAIL\n"]
    html = html_of(path)
    assert "10 of 10 steps took" in html
    assert f"{bare} -m pip install torch" in html
    assert "TORCH_USE_CUDA_DSA" in html
    assert "INCOMPLETE" not in html
    assert not re.search(r'(src|href)="(?!data:|#)', html)
    assert path.stat().st_size < 300_000


def test_a_python_that_is_none_stops_it(execute: Any) -> None:
    with pytest.raises(PapermillExecutionError, match="is no program"):
        execute(python="nowhere/python")
    assert results.load(Path("out.ipynb")).outcome == "INCOMPLETE"


@pytest.mark.slow
def test_the_kernels_own_python_passes(execute: Any) -> None:
    pytest.importorskip("torch")
    assert results.load(execute()).outcome == "PASS"


def test_the_committed_notebook(notebook: Path) -> None:
    [cell] = [cell for cell in cells(notebook) if "parameters" in cell["metadata"].get("tags", [])]
    declared = parameters.read("".join(cell["source"]))
    assert list(papermill.inspect_notebook(str(notebook))) == [parameter.name for parameter in declared]
    assert all(parameter.help for parameter in declared)
    title = "".join(json.loads(notebook.read_text(encoding="utf-8"))["cells"][0]["source"])
    assert "?" in title.splitlines()[0]
    assert re.search(r"\d+ seconds", title) and "pass" in title
    *others, last = cells(notebook)
    assert [output["text"] for output in last["outputs"]] == [["00_doctor: PASS\n"]]
    assert last["execution_count"] and not any(cell["outputs"] for cell in others)
