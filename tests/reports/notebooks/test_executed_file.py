"""An executed notebook on its way to disk: clean and whole."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from ocrlab.reports.notebooks import executed_file

SECRET = "hunter2hunter2"


def notebook() -> nbformat.NotebookNode:
    outputs = [
        new_output("stream", text=f"token {SECRET}\n"),
        new_output("display_data", data={"text/plain": SECRET, "image/png": SECRET}),
        new_output("error", ename="E", evalue=SECRET, traceback=[f"line {SECRET}"]),
    ]
    executed = new_notebook(cells=[new_code_cell(f"key = '{SECRET}'", outputs=outputs), new_code_cell("print(1)")])
    executed.metadata["papermill"] = {"parameters": {"wandb_api_key": "anything", "batch_size": 4}}
    return executed


def test_secrets_are_replaced_everywhere_but_in_pictures_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APP_TOKEN", SECRET)
    original = notebook()
    clean, count = executed_file.redacted(original)
    text = nbformat.writes(clean)
    assert text.count(SECRET) == 1  # base64 has no names in it
    assert "(APP_TOKEN)" in text
    assert clean.metadata.papermill.parameters == {"wandb_api_key": "(secret)", "batch_size": 4}
    assert count == 6
    assert SECRET in original.cells[0].source  # what still runs must not be changed


def test_it_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.ipynb"
    executed_file.write(notebook(), str(path))
    assert nbformat.read(str(path), as_version=4).cells[1].source == "print(1)"
    assert [file.name for file in tmp_path.iterdir()] == ["out.ipynb"]


@pytest.mark.parametrize(("path", "local"), [("a/b.ipynb", True), ("-", False), ("s3://bucket/b.ipynb", False)])
def test_papermills_other_stores_are_left_to_papermill(path: str, local: bool) -> None:
    assert executed_file.is_local(path) is local
