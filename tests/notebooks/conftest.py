"""A notebook as a user runs it: plain papermill, in an empty folder."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import papermill
import pytest

from ocrlab.reports.notebooks import results
from ocrlab.reports.notebooks.results import Result


@pytest.fixture
def notebook(root: Path, request: pytest.FixtureRequest) -> Path:
    """Return the notebook whose number the test names."""
    [path] = (root / "notebooks").glob(f"{request.param}_*.ipynb")
    return path


@pytest.fixture
def execute(notebook: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that executes the notebook in an empty folder and returns the written one."""
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)

    def run(**parameters: Any) -> Path:
        values = {"runs": str(tmp_path / "runs"), **parameters}
        papermill.execute_notebook(str(notebook), "out.ipynb", values, kernel_name="python3", progress_bar=False)
        return elsewhere / "out.ipynb"

    return run


@pytest.fixture
def cells() -> Callable[[Path], list[dict[str, Any]]]:
    """Return a function that returns the code cells of a notebook."""
    return read_code_cells


@pytest.fixture
def html_of() -> Callable[[Path], str]:
    """Return a function that returns all HTML that a notebook displays."""

    def html(path: Path) -> str:
        bundles = [output["data"] for cell in read_code_cells(path) for output in cell["outputs"] if "data" in output]
        return "\n".join("".join(bundle.get("text/html", "")) for bundle in bundles)

    return html


@pytest.fixture
def finished(html_of: Callable[[Path], str], notebook: Path) -> Callable[..., tuple[Result, str]]:
    """Return a function that checks what holds of every executed notebook, and returns its result and its HTML."""

    def check(path: Path, outcome: str, size: int = 1_000_000) -> tuple[Result, str]:
        result, html = results.load(path), html_of(path)
        assert (result.name, result.outcome) == (notebook.stem, outcome)
        assert read_code_cells(path)[-1]["outputs"][0]["text"] == [f"{notebook.stem}: {outcome}\n"]
        assert "INCOMPLETE" not in html
        assert not re.search(r'(src|href)="(?!data:|#)', html)  # nothing is fetched
        assert [name.name for name in path.parent.iterdir()] == ["out.ipynb"]  # nothing else was left there
        assert path.stat().st_size < size
        return result, html

    return check


def read_code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
