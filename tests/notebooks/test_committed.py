"""Every notebook as it is committed: a question, typed parameters with help, and one stable last line as its output."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import papermill
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from ocrlab.reports.notebooks import parameters
from ocrlab.reports.notebooks.parameters_to_config import fields

# The parameters that are not settings; a parameter that only by chance has the name of a setting would change it.
OWN = {
    "00_doctor": {"python", "limit"},
    "01_sanity": {"overrides", "in_process"},
    "02_memory": {"followed", "overrides"},
    "03_train": {"limit", "overrides", "in_process"},
    "04_layers": {"module", "page", "checkpoint"},
    "05_loader": {"workers_tried", "threads_tried", "seconds", "limit"},
    "06_crash": {"fault", "start_method", "silence", "incident", "explain"},
    "07_compare": {"compared", "pages"},
    "08_inspect": {"page", "checkpoint", "limit"},
}


@pytest.fixture(params=OWN)
def notebook(root: Path, request: pytest.FixtureRequest) -> Path:
    return root / "notebooks" / f"{request.param}.ipynb"


def test_every_notebook_is_tested(root: Path) -> None:
    assert sorted(path.stem for path in (root / "notebooks").glob("*.ipynb")) == list(OWN)


def test_papermill_shows_every_parameter_with_its_help(notebook, cells):
    [cell] = [cell for cell in cells(notebook) if "parameters" in cell["metadata"].get("tags", [])]
    declared = parameters.read("".join(cell["source"]))
    assert list(papermill.inspect_notebook(str(notebook))) == [parameter.name for parameter in declared]
    assert all(parameter.help for parameter in declared)
    assert {parameter.name for parameter in declared} - set(fields()) == OWN[notebook.stem]
    assert all(parameters.find_problem(parameter, parameter.default) is None for parameter in declared)


def test_the_first_cell_asks_and_states_what_to_expect(notebook: Path) -> None:
    title = "".join(json.loads(notebook.read_text(encoding="utf-8"))["cells"][0]["source"])
    assert title.startswith("# ") and "?" in title.splitlines()[0]
    assert re.search(r"\d+ seconds", title) and "pass" in title


def test_only_the_last_line_is_committed_and_compared(notebook, cells):
    *others, last = cells(notebook)
    assert set(last["metadata"]["tags"]) == {"keep_output", "nbval-check-output"}
    assert ["".join(output["text"]) for output in last["outputs"]] == [f"{notebook.stem}: PASS\n"]
    assert last["execution_count"]  # without it nbval does not compare
    assert not any(cell["outputs"] for cell in others)


def test_a_dead_kernel_is_a_failure_within_a_minute(tmp_path: Path) -> None:
    """Without a cell timeout this takes 2000 seconds."""
    cells = [
        new_code_cell("first = 1"),
        new_code_cell("import os\nos.kill(os.getpid(), 9)"),
        new_code_cell("third = 3"),
    ]
    nbformat.write(new_notebook(cells=cells), str(tmp_path / "dies.ipynb"))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--nbval-lax", "--nbval-cell-timeout=4"]
    command += ["--nbval-current-env", "-q", "dies.ipynb"]
    env = {**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    began = time.monotonic()
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
    assert time.monotonic() - began < 60
    assert done.returncode == 1, done.stdout
    assert re.search(r"[12] failed", done.stdout)
    assert not re.search(r"3 passed", done.stdout)
