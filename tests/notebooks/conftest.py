"""A notebook as a user runs it: plain papermill, in an empty folder; each test file has a fixture `notebook`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import papermill
import pytest


@pytest.fixture
def execute(notebook: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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
