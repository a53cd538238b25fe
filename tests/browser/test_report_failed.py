"""Reports of what went wrong, as a browser sees them: they have to be as legible as those of what went well."""

import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from ocrlab.cli import main
from ocrlab.debug.watch.supervisor import Options, watch
from tests.browser.test_report import judged

pytestmark = pytest.mark.browser
RAISES = "pages = {'receipt_001': [[0, 0, 40, 12]]}\nprint('a page')\nboxes = pages['receipt_002']"
DIES = "import os, signal\nprint('step 3', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
PROGRAM = "def read(pages):\n    return pages['boxes']\n\n\nprint('step 1 loss 0.7', flush=True)\nread({})\n"


def run(words: list[str], folder: Path) -> Path:
    """Execute a notebook that does not do well, and return its report."""
    assert main(["run", *words, "--out", str(folder / "reports")]) != 0
    [page] = (folder / "reports").glob("*.html")
    return page


def written(folder: Path, source: str) -> Path:
    """Write somebody's notebook whose second cell is `source`."""
    words = new_markdown_cell("# Read the boxes\n\nOf every page.\n\n## Begin")
    cells = [words, new_code_cell("count = 3\ncount"), new_markdown_cell("## Read"), new_code_cell(source)]
    about = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    path = folder / "mine.ipynb"
    nbformat.write(new_notebook(cells=[*cells, new_code_cell("never()")], metadata=about), path)
    return path


def of_ours(folder: Path, root: Path) -> Path:
    words = ["-p", "fault", "segfalt", "-p", "runs", str(folder / "runs")]
    return run([str(root / "notebooks" / "06_crash.ipynb"), *words], folder)


def of_a_log_that_says_nothing(folder: Path, root: Path) -> Path:
    (folder / "train.log").write_text("step 1\nstep 2\n", encoding="utf-8")
    words = ["-p", "incident", str(folder / "train.log"), "-p", "runs", str(folder / "runs")]
    return run([str(root / "notebooks" / "06_crash.ipynb"), *words], folder)


def of_a_cell_that_raises(folder: Path, _root: Path) -> Path:
    return run([str(written(folder, RAISES))], folder)


def of_a_kernel_that_dies(folder: Path, _root: Path) -> Path:
    return run([str(written(folder, DIES))], folder)


def of_a_run(folder: Path, _root: Path) -> Path:
    (folder / "mine.py").write_text(PROGRAM, encoding="utf-8")
    watch([sys.executable, str(folder / "mine.py")], Options(folder / "run"), output=lambda _stream, _data: None)
    assert main(["report", "bug", str(folder / "run"), "--out", str(folder / "bug.md")]) == 0
    return folder / "bug.html"


@pytest.mark.parametrize(
    "make",
    [of_ours, of_a_run, of_a_kernel_that_dies]
    + [pytest.param(make, marks=pytest.mark.slow) for make in (of_a_log_that_says_nothing, of_a_cell_that_raises)],
)
def test_a_report_of_a_failure(browser, make, root, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = make(tmp_path, root)
    figures = judged(browser, page, outcome_css="main p" if make is of_a_run else ".outcome")
    with capsys.disabled():
        print(f"\n{make.__name__}: {figures}")
