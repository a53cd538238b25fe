"""`ocrlab report`: a bug report of two files, and any executed notebook as one HTML file."""

import json
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from ocrlab import run_folder
from ocrlab.cli import main
from ocrlab.debug.watch.supervisor import Options, watch
from ocrlab.reports.notebooks import outcome, results
from ocrlab.reports.notebooks.outcome import Outcome
from ocrlab.run_folder import provenance


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text("def read():\n    return {}['boxes']\n\n\nread()\n")
    words = [sys.executable, "-m", "ocrlab", "watch", "--", sys.executable, str(tmp_path / "mine.py")]
    watch(words[5:], Options(tmp_path / "run"), output=lambda _stream, _data: None)
    process = tmp_path / "run" / "flight" / "process.json"
    process.write_text(json.dumps({**json.loads(process.read_text()), "command": words, "folder": str(tmp_path)}))
    provenance.sign(process)
    return tmp_path / "run"


def test_it_is_written_into_the_incident_and_verified(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "bug", str(run), "--verify", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["schema"] == 1 and record["status"] == "reproduced" and record["verified"]["same"] == 1
    text = Path(record["markdown"]).read_text()
    assert Path(record["markdown"]).parent == run / "incident" and Path(record["html"]).is_file()
    assert ">     2      return {}['boxes']" in text and "ocrlab watch -- " in text
    assert main(["report", "bug", str(run / "incident")]) == 0, "its incident is as good"
    assert "KeyError" in capsys.readouterr().out


def test_a_command_of_another_machine_is_not_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = run / "flight" / "process.json"
    marker = run / "ran"
    words = ["touch", str(marker)]
    process.write_text(json.dumps({**json.loads(process.read_text()), "host": "elsewhere", "command": words}))
    assert main(["report", "bug", str(run), "--verify", "--json"]) == 0
    assert "not recorded by you" in json.loads(capsys.readouterr().out)["verified"]["why"] and not marker.exists()


def test_out_and_what_is_there_already(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "bug.md"
    assert main(["report", "bug", str(run), "--out", str(out)]) == 0
    assert out.is_file() and out.with_suffix(".html").is_file()
    assert main(["report", "bug", str(run), "--out", str(out)]) == 2
    assert "Nothing is overwritten" in capsys.readouterr().err
    assert main(["report", "bug", str(run), "--verify", "-1"]) == 2
    assert main(["report", "bug", str(tmp_path / "gone")]) == 2


def test_a_success_has_no_report_unless_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_folder.create(tmp_path / "runs", "x")
    folder.succeed({})
    assert main(["report", "bug", str(folder.path)]) == 1
    assert "did not fail" in capsys.readouterr().out and not folder.incident.exists()
    assert main(["report", "bug", str(folder.path), "--out", str(tmp_path / "b")]) == 0


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
    assert "(replaced)" in capsys.readouterr().out
    assert "It is good." in page.read_text()


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
