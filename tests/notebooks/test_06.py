"""The crash notebook as a user runs it: `ocrlab run`, a planted fault, a verdict, and the kernel lives."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import papermill
import pytest

from ocrlab.reports.notebooks import parameters, results
from ocrlab.reports.notebooks.parameters_to_config import fields


@pytest.fixture
def notebook(root: Path) -> Path:
    return root / "notebooks" / "06_crash.ipynb"


def test_a_planted_fault_is_caught_and_named(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(notebook.parents[1]))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    command = [sys.executable, "-m", "ocrlab", "run", str(notebook), "-p", "runs", "runs", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["outcome"] == "PASS"
    result = results.load(tmp_path / answer["notebook"])
    assert (result.name, result.outcome, result.ending) == ("06_crash", "PASS", None)
    [run] = [path for path in (tmp_path / "runs").iterdir() if not path.name.startswith(".")]
    verdict = json.loads((run / "incident" / "verdict.json").read_text(encoding="utf-8"))
    assert verdict["causes"][0]["id"] == "native.segv"
    html = (tmp_path / answer["html"]).read_text(encoding="utf-8")
    assert "The cause that was planted is the cause that was named" in html
    assert not re.search(r'(src|href)="(?!data:|#)', html)
    assert len(html) < 150_000


def test_papermill_shows_every_parameter_with_its_help(notebook: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    [cell] = [cell for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    declared = parameters.read("".join(cell["source"]))
    assert list(papermill.inspect_notebook(str(notebook))) == [parameter.name for parameter in declared]
    assert all(parameter.help for parameter in declared)
    assert all(parameters.find_problem(parameter, parameter.default) is None for parameter in declared)
    assert {p.name for p in declared} & set(fields()) == {"name"}  # the others must not be taken for settings


def test_only_the_last_line_is_committed_and_compared(notebook: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    *others, last = [cell for cell in cells if cell["cell_type"] == "code"]
    assert set(last["metadata"]["tags"]) == {"keep_output", "nbval-check-output"}
    assert [output["text"] for output in last["outputs"]] == [["06_crash: PASS\n"]]
    assert last["execution_count"]
    assert not any(cell["outputs"] for cell in others)
