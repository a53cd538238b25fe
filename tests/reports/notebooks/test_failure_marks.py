"""What is written into a notebook that did not end by itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from ipykernel.compiler import get_tmp_hash_seed, murmur2_x86
from nbformat.v4 import new_code_cell, new_notebook, new_output

from ocrlab.records import Cause, Verdict
from ocrlab.reports.notebooks import failure_marks, outcome, results
from ocrlab.reports.notebooks.outcome import Outcome
from ocrlab.reports.notebooks.termination import Ending

DIED = Ending(
    "killed",
    "The kernel died of SIGSEGV in cell [2].",
    139,
    2,
    -11,
    "SIGSEGV",
    Verdict(causes=[Cause("native.segv", 0.9)]),
)


def manager(cells: list[Any]) -> Any:
    notebook = new_notebook(cells=cells)
    notebook.metadata["papermill"] = nbformat.from_dict({"input_path": "a/mine.ipynb", "parameters": {"n": 3}})
    for cell in cells:
        cell.metadata["papermill"] = nbformat.from_dict({"status": "running"})

    def failed(cell: Any, **_: Any) -> None:
        cell.metadata.papermill.status = "failed"

    return SimpleNamespace(nb=notebook, cell_exception=failed, cell_complete=lambda cell, **_: None)


def setup_cell(**more: Any) -> Any:
    running = Outcome("ours", "INCOMPLETE", "It still runs.")
    bundle = results.bundle(results.build(running, metrics={}, parameters={"n": 3}))
    bundle[results.MIME] |= more
    data = {**outcome.view(running)._repr_mimebundle_(), **bundle}
    return new_code_cell("setup()", outputs=[new_output("display_data", data=data)], execution_count=1)


def test_the_notebooks_own_word_on_its_child_stays() -> None:
    cells = [setup_cell(outcome="CRASHED", ending={"exit_status": 137}), new_code_cell("lab.run()", execution_count=2)]
    cells[1].outputs = [new_output("error", ename="ChildFailed", evalue="x", traceback=["x"])]
    execution = manager(cells)
    failure_marks.mark(execution, Ending("failed", "It stopped in cell [2].", 1, 2), 1)
    result = results.from_bundle(execution.nb.cells[0].outputs[0].data)
    assert result is not None
    assert result.outcome == "CRASHED"
    assert (execution.nb.metadata.ocrlab["outcome"], execution.nb.metadata.ocrlab["exit_status"]) == ("CRASHED", 137)
    assert len(execution.nb.cells[1].outputs) == 1  # its own error is reported once


@pytest.mark.parametrize("index", [None, 0])
def test_a_stop_before_or_in_a_cell(index: int | None) -> None:
    execution = manager([new_code_cell("wait()", execution_count=1)])
    failure_marks.mark(execution, Ending("stopped", "It was stopped by SIGTERM.", 143, index), index)
    [*_, cell] = execution.nb.cells
    assert [output.ename for output in cell.outputs] == (["Stopped"] if index is not None else [])
    assert execution.nb.metadata.ocrlab["outcome"] == "INCOMPLETE"


SOURCE = "def f():\n    g()\nf()"
CELL = SimpleNamespace(cell_type="code", execution_count=5, source=SOURCE)
FILE = f"/tmp/ipykernel_77/{murmur2_x86(SOURCE, get_tmp_hash_seed())}.py"
FAULTHANDLER = f"""Fatal Python error: Segmentation fault

Thread 0x00007f1 (most recent call first):
  File "lib/python3.11/selectors.py", line 468 in select

Current thread 0x00007f2 (most recent call first):
  File "lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "{FILE}", line 2 in f
  File "{FILE}", line 3 in <module>
  File "site-packages/IPython/core/interactiveshell.py", line 3823 in run_code
"""
PY_SPY = f"""Process 77: python -m ipykernel_launcher
# main, state S

Thread 77 (idle): "MainThread"
    f ({FILE}:2)
    <module> ({FILE}:3)
    InteractiveShell.run_code (IPython/core/interactiveshell.py:3823)
Thread 78 (idle): "IOPub"
    EpollSelector.select (selectors.py:468)
"""


def test_faulthandlers_stack_ends_at_the_cell_which_has_its_number() -> None:
    assert failure_marks.cell_stack(FAULTHANDLER, [CELL]).splitlines() == [
        "Fatal Python error: Segmentation fault",
        "Current thread 0x00007f2 (most recent call first):",
        '  File "lib/python3.11/ctypes/__init__.py", line 519 in string_at',
        '  File "cell [5]", line 2 in f',
        '  File "cell [5]", line 3 in <module>',
    ]


def test_py_spys_stack_too() -> None:
    own = ['Thread 77 (idle): "MainThread"', "    f (cell [5]:2)", "    <module> (cell [5]:3)"]
    assert failure_marks.cell_stack(PY_SPY, [CELL]).splitlines() == own


def test_a_stack_without_a_cell_stays_whole() -> None:
    assert (
        failure_marks.cell_stack("Thread 1 (idle)\n    main (train.py:3)\n") == "Thread 1 (idle)\n    main (train.py:3)"
    )
