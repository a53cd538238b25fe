"""`ocrlab run`: what it checks, what it leaves, what it answers, and what it leaves when it is stopped."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from ocrlab.cli import main
from ocrlab.reports.notebooks import jupyter_kernel, results

PARAMETERS = "n: int = 3  # how many (things; 1..5)"


@pytest.fixture
def write(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that writes a notebook; kernels find ocrlab, and files go to an empty folder."""
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    monkeypatch.chdir(tmp_path)

    def make(*sources: str) -> str:
        cells = [new_code_cell(source) for source in sources]
        cells[0].metadata["tags"] = ["parameters"]
        nbformat.write(new_notebook(cells=cells), "mine.ipynb")
        return "mine.ipynb"

    return make


def answer(capsys: pytest.CaptureFixture) -> dict[str, Any]:
    [line] = capsys.readouterr().out.splitlines()
    return json.loads(line)


def test_wrong_parameters_and_limits_are_refused_before_a_kernel_starts(write: Any, capsys: Any) -> None:
    path = write(PARAMETERS)
    assert main(["run", path, "-p", "n", "nine", "-p", "m", "1"]) == 2
    stderr = capsys.readouterr().err
    assert "n='nine' cannot be used" in stderr
    assert "Unknown parameter: m" in stderr
    assert main(["run", path, "--timeout", "0"]) == 2
    assert "argument --timeout: 0 cannot be used. Needed: a number above 0" in capsys.readouterr().err
    assert main(["run", "none.ipynb"]) == 2
    assert not Path("reports").exists()


def test_an_exception_is_a_fail_with_notebook_report_and_result(write: Any, capsys: Any) -> None:
    path = write(PARAMETERS, "print('n is', n)", "raise ValueError(f'{n} is <not> enough')", "print('never')")
    before = Path(path).read_bytes()
    assert main(["run", path, "-p", "n", "4", "--out", "out", "--json"]) == 1
    record = answer(capsys)
    assert (record["outcome"], record["status"], record["exit_status"]) == ("FAIL", "failure", 1)
    assert record["sentence"] == "It stopped in cell [4]. ValueError: 4 is <not> enough"
    notebook = nbformat.read(record["notebook"], as_version=4)
    assert [cell.metadata.papermill.status for cell in notebook.cells[1:]][-2:] == ["failed", "pending"]
    assert "n is 4" in str(notebook.cells)
    assert results.load(record["result"]).outcome == "FAIL"
    page = Path(record["html"]).read_text(encoding="utf-8")
    assert page.index("FAIL") < page.index("<main>")
    assert "4 is &lt;not&gt; enough" in page
    assert sorted(path.suffix for path in Path("out").iterdir()) == [".html", ".ipynb", ".json"]
    assert Path(path).read_bytes() == before


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_stopped_it_leaves_a_true_notebook_and_no_kernel(number: int, write: Any, tmp_path: Path) -> None:
    waits = "import os\nopen('mark', 'w').write(os.environ['OCRLAB_KERNEL'])\nimport time\ntime.sleep(300)"
    command = [sys.executable, "-m", "ocrlab", "run", write(PARAMETERS, waits, "print('never')")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "mark").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.2)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert signal.Signals(number).name in stderr
    [path] = Path("reports").glob("*-mine.ipynb")
    notebook = nbformat.read(str(path), as_version=4)
    cells = [cell for cell in notebook.cells if cell.source]
    assert [cell.metadata.papermill.status for cell in cells] == ["completed", "failed", "pending"]
    result = results.load(path)
    assert result.outcome == "INCOMPLETE"
    assert f"It was stopped by {signal.Signals(number).name} in cell [2]" in result.sentence
    assert results.load(path.with_suffix(".json")) == result
    assert "INCOMPLETE" in path.with_suffix(".html").read_text(encoding="utf-8")
    assert jupyter_kernel.marked("OCRLAB_KERNEL", (tmp_path / "mark").read_text()) == []


def test_a_kernel_that_is_not_there_is_a_fail(write: Any, capsys: Any) -> None:
    notebook = nbformat.read(write(PARAMETERS, "print(n)"), as_version=4)
    notebook.metadata["kernelspec"] = {"name": "nowhere", "language": "python", "display_name": "x"}
    nbformat.write(notebook, "mine.ipynb")
    assert main(["run", "mine.ipynb", "--no-html", "--json"]) == 1
    record = answer(capsys)
    assert (record["outcome"], record["html"]) == ("FAIL", None)
    assert record["sentence"] == "The kernel did not start. No such kernel named nowhere"
