"""`ocrlab report html`: any executed notebook as one HTML file."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from ocrlab.cli import main
from ocrlab.reports.notebooks import outcome, results
from ocrlab.reports.notebooks.outcome import Outcome


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    """Return an executed ocrlab notebook, not redacted."""
    verdict = Outcome("mine", "PASS", "It is good.")
    result = {"name": "mine", "outcome": "PASS", "sentence": verdict.sentence}
    top = new_output("display_data", data={**outcome.view(verdict)._repr_mimebundle_(), results.MIME: result})
    secret = new_output("stream", name="stdout", text="db_password = hunter2hunter2\n")
    cells = [new_markdown_cell("# Mine"), new_code_cell("1", outputs=[top, secret], execution_count=1)]
    path = tmp_path / "mine.ipynb"
    nbformat.write(new_notebook(cells=cells), path)
    return path


def test_the_report_lies_beside_the_notebook_and_is_clean(notebook: Path, capsys) -> None:
    before = notebook.read_bytes()
    assert main(["report", "html", str(notebook), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    page = notebook.with_suffix(".html")
    assert (record["schema"], record["out"], record["outcome"], record["overwritten"]) == (1, str(page), "PASS", False)
    assert (record["bytes"], record["redacted"]) == (page.stat().st_size, 1)
    assert "hunter2" not in page.read_text()
    assert "It is good." in page.read_text()
    assert notebook.read_bytes() == before


def test_nothing_is_overwritten_unless_that_is_wanted(notebook: Path, capsys) -> None:
    page = notebook.with_suffix(".html")
    page.write_text("dear")
    assert main(["report", "html", str(notebook)]) == 2
    assert page.read_text() == "dear"
    assert "exists already" in capsys.readouterr().err
    assert main(["report", "html", str(notebook), "--overwrite"]) == 0
    assert "written over" in capsys.readouterr().out
    assert "It is good." in page.read_text()


def test_it_goes_to_the_path_of_out(notebook: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "page.html"
    assert main(["report", "html", str(notebook), "--out", str(out)]) == 0
    assert "It is good." in out.read_text()


def test_it_is_as_small_as_it_has_to_be(notebook: Path, tmp_path: Path, capsys) -> None:
    read = nbformat.read(notebook, as_version=4)
    read.cells[1].outputs.append(new_output("stream", name="stdout", text="word " * 60_000))
    nbformat.write(read, notebook)
    assert main(["report", "html", str(notebook), "--out", str(tmp_path / "a.html")]) == 0
    assert main(["report", "html", str(notebook), "--out", str(tmp_path / "b.html"), "--most", "150"]) == 0
    assert (tmp_path / "a.html").stat().st_size > 300_000
    assert (tmp_path / "b.html").stat().st_size <= 150_000
    assert "below 0.15 MB" in (tmp_path / "b.html").read_text()
    assert main(["report", "html", str(notebook), "--out", str(tmp_path / "c.html"), "--most", "9"]) == 2
    assert "--most" in capsys.readouterr().err


def test_the_notebook_itself_is_never_written_over(notebook: Path, capsys) -> None:
    before = notebook.read_bytes()
    assert main(["report", "html", str(notebook), "--out", str(notebook), "--overwrite"]) == 2
    assert notebook.read_bytes() == before
    assert "--out" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "no json", "[]", '{"cells": 3}', '{"nbformat": 4, "cells": 7}'])
def test_what_is_no_notebook_gets_a_sentence(tmp_path: Path, capsys, text: str) -> None:
    path = tmp_path / "bad.ipynb"
    path.write_text(text)
    assert main(["report", "html", str(path)]) == 1
    stderr = capsys.readouterr().err
    assert f"{path} is not a notebook" in stderr
    assert "Traceback" not in stderr
    assert not path.with_suffix(".html").exists()


@pytest.mark.parametrize("what", ["missing.ipynb", "."])
def test_what_is_not_there_gets_a_sentence(tmp_path: Path, capsys, what: str) -> None:
    assert main(["report", "html", str(tmp_path / what)]) in (1, 2)
    assert capsys.readouterr().err.startswith("ocrlab: ")
    assert list(tmp_path.iterdir()) == []
