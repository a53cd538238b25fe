"""Notebooks whose kernel dies or hangs, executed by papermill with the engine `ocrlab`: each tells the truth."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest

from ocrlab.reports.notebooks import jupyter_kernel, results

ENGINE = """
import sys
import ocrlab.reports.notebooks.papermill_engine  # first: papermill loads it again while it is imported itself
import papermill
from papermill.engines import papermill_engines
from papermill.exceptions import PapermillExecutionError

papermill_engines.register("ocrlab", ocrlab.reports.notebooks.papermill_engine.Engine)
source, out, limit = sys.argv[1:]
try:
    papermill.execute_notebook(source, out, engine_name="ocrlab", progress_bar=False, kernel_name="python3",
                               execution_timeout=float(limit) if limit != "0" else None)
except PapermillExecutionError as error:
    print(error.ename, error.evalue)
"""
OURS = ("from ocrlab import notebook", "lab = notebook.setup(globals())")
PARAMETERS = 'name: str = "dies"  # of this notebook\nruns: str = ""  # where runs go'
# The eight: code, the word, the signal or exit code.
DEATHS = {
    "SIGSEGV": ("import ctypes; ctypes.string_at(0)", "CRASHED", "SIGSEGV"),
    "SIGKILL": ("import os; os.kill(os.getpid(), 9)", "CRASHED", "SIGKILL"),
    "SIGABRT": ("import os; os.abort()", "CRASHED", "SIGABRT"),
    "SIGILL": ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "CRASHED", "SIGILL"),
    "SIGBUS": ("import os, signal; os.kill(os.getpid(), signal.SIGBUS)", "CRASHED", "SIGBUS"),
    "_exit": ("import os; os._exit(7)", "FAIL", 7),
    "exit()": ("exit()", "FAIL", 0),
    "memory": (
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 30, -1))\nb'x' * (4 << 30)",
        "FAIL",
        None,
    ),
}
Execute = Callable[..., tuple[Any, str]]


@pytest.fixture
def execute(tmp_path: Path, root: Path) -> Execute:
    """Return a function that executes cells in a fresh process and returns the written notebook and what was raised."""

    def run(*sources: str, limit: float = 0, env: dict[str, str] | None = None) -> tuple[Any, str]:
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), str(tmp_path / "in.ipynb"))
        command = [sys.executable, "-c", ENGINE, "in.ipynb", "out.ipynb", str(limit)]
        paths = {"PYTHONPATH": str(root), "JUPYTER_PREFER_ENV_PATH": "1", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
        done = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **paths, **(env or {})}, capture_output=True,
            text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return nbformat.read(str(tmp_path / "out.ipynb"), as_version=4), done.stdout

    return run


def only_result(notebook: Any) -> results.Result:
    """Return the one result of a notebook."""
    data = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])]
    [result] = [parsed for bundle in data if (parsed := results.from_bundle(bundle))]
    return result


def statuses(notebook: Any) -> dict[str, str]:
    """Return papermill's status of each code cell by the first line of its source."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source]
    return {cell.source.splitlines()[0]: cell.metadata.papermill.status for cell in cells}


def test_a_crash_overwrites_the_outcome_names_signal_and_cell_and_leaves_no_orphan(execute, tmp_path):
    dies = "import ctypes, subprocess\norphan = subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
    dies += "open('orphan', 'w').write(str(orphan.pid))\n"
    dies += "print('last words', flush=True)\nctypes.string_at(0)"
    secret = "hunter2hunter2"
    notebook, raised = execute(
        PARAMETERS.replace('""', repr(str(tmp_path / "runs"))), "\n".join(OURS),
        "import os; print(os.environ['APP_TOKEN'])", dies, "print('never')", env={"APP_TOKEN": secret},
    )  # fmt: skip
    result = only_result(notebook)
    assert (result.name, result.outcome) == ("dies", "CRASHED")
    assert result.ending is not None
    expected = {"status": "killed", "cell": 4, "signal": "SIGSEGV", "exit_code": -11}
    assert {key: result.ending[key] for key in ("status", "cell", "signal", "exit_code")} == expected
    assert result.ending["verdict"]["signal"] == "SIGSEGV"
    assert "SIGSEGV in cell [4]" in result.sentence
    assert raised.startswith("KernelDied The kernel died of SIGSEGV in cell [4]")
    assert notebook.metadata.papermill.exception is True
    assert statuses(notebook)["print('never')"] == "pending"
    assert statuses(notebook)["import ctypes, subprocess"] == "failed"
    assert statuses(notebook)["from ocrlab import notebook"] == "completed"
    [failed] = [cell for cell in notebook.cells if cell.metadata.get("papermill", {}).get("status") == "failed"]
    error = failed.outputs[-1]
    assert (error.output_type, error.ename) == ("error", "KernelDied")
    assert 'File "cell [4]", line 5 in <module>' in "\n".join(error.traceback)  # faulthandler's stack, in our words
    assert "INCOMPLETE" not in str([output.get("data", {}).get("text/html") for output in notebook.cells[1].outputs])
    assert secret not in (tmp_path / "out.ipynb").read_text(encoding="utf-8")
    assert notebook.metadata.ocrlab.redacted >= 1
    assert results.load(tmp_path / "out.json") == result  # the same beside it
    pid = int((tmp_path / "orphan").read_text())
    assert (
        not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    )


@pytest.mark.slow
def test_a_cell_that_never_ends_is_stuck_and_shows_where(execute: Execute) -> None:
    began = time.monotonic()
    waits = "import threading\ndef wait_for_nobody():\n    threading.Event().wait()\nwait_for_nobody()"
    notebook, raised = execute("print('one')", waits, "print('never')", limit=1.5)
    assert time.monotonic() - began < 60
    result = only_result(notebook)
    assert (result.name, result.outcome) == ("in", "STUCK")
    assert result.ending is not None
    assert (result.ending["status"], result.ending["cell"], result.ending["exit_status"]) == ("hung", 2, 124)
    assert "Cell [2] still ran after 1.5 s" in result.sentence
    assert raised.startswith("CellStuck")
    assert list(statuses(notebook).values()) == ["completed", "failed", "pending"]
    [failed] = [cell for cell in notebook.cells if cell.metadata.get("papermill", {}).get("status") == "failed"]
    assert "wait_for_nobody" in "\n".join(failed.outputs[-1].traceback)
    assert "ocrlab-outcome" in notebook.cells[1].metadata.tags or "ocrlab-outcome" in notebook.cells[0].metadata.tags


@pytest.mark.slow
@pytest.mark.parametrize("death", DEATHS)
def test_eight_deaths(death: str, execute: Execute) -> None:
    code, word, how = DEATHS[death]
    notebook, _ = execute("first = 1", f"second = 2\n{code}", "third = 3")
    result = only_result(notebook)
    assert result.outcome == word
    assert result.ending is not None
    assert result.ending["cell"] == 2
    assert how == (result.ending["signal"] or result.ending["exit_code"])
    assert list(statuses(notebook).values()) == ["completed", "failed", "pending"]


def test_what_is_used_of_jupyter_client_besides_its_public_names() -> None:
    """The exit code of a kernel is asked from here; where that goes away, it is unknown and said to be."""
    from jupyter_client.provisioning import LocalProvisioner

    assert hasattr(LocalProvisioner, "process")
    kernel = jupyter_kernel.Kernel()
    kernel.adopt(type("Manager", (), {"provisioner": type("Provisioner", (), {"process": None})()})())
    assert (kernel.pid, kernel.exit_code()) == (None, None)
    kernel.adopt(object())
    assert (kernel.pid, kernel.exit_code()) == (None, None)
    kernel.close()


def test_papermill_finds_the_engine_by_its_name() -> None:
    """It loads the file while it is imported itself; that must work whoever is imported first."""
    from importlib.metadata import entry_points

    values = [point.value for point in entry_points(group="papermill.engine") if point.name == "ocrlab"]
    if not values:
        pytest.skip("ocrlab is not installed, so that nothing is registered")
    for first in ("ocrlab.reports.notebooks.execution", "papermill"):
        code = f"import {first}, papermill.engines; print(papermill.engines.papermill_engines.get_engine('ocrlab'))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert "ocrlab.reports.notebooks.papermill_engine.Engine" in done.stdout, done.stderr
