"""The cells of a notebook are executed again: a training in a real kernel, and what a replay must not do."""

import sys
import types
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from ocrlab.debug.flight_record import notebook_cells
from ocrlab.debug.replay.child import run_cells
from ocrlab.debug.replay.replay_job import replay
from ocrlab.errors import RunError

IMPORTS = """
import torch
from torch import nn
from ocrlab.debug.recorder.lightning_callback import recording
!touch {mark}
torch.manual_seed(0)
"""
PARTS = """class Pages(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        page = torch.full((4,), float(index % 5) + 1)
        return -page if index == 13 else page


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, pages):
        return self.layer(pages.sqrt())
"""
TRAIN = """%%time
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(Pages(), batch_size=4, num_workers={workers})
with recording("runs/mine", model, optimizer) as rec:
    for batch in rec.batches(loader):
        loss = rec.loss(model(batch).mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not loss.isfinite():
            raise ValueError("the loss is not finite")
"""


def kernel(folder: Path, cells: list[str]) -> None:
    """Execute cells in a new kernel until the last one raises; the kernel is gone then."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    book.cells[2].metadata["tags"] = book.cells[3].metadata["tags"] = ["raises-exception"]
    client = NotebookClient(book, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    with pytest.raises(CellExecutionError, match="the loss is not finite"):
        client.execute()


def test_a_training_in_a_notebook_is_replayed_when_its_kernel_is_gone(tmp_path, root, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    mark = tmp_path / "touched"
    train = TRAIN.replace("{workers}", "2")
    kernel(tmp_path, [IMPORTS.replace("{mark}", str(mark)), PARTS, "1 / 0", train, train])
    assert mark.exists()
    mark.unlink()
    answer = replay(tmp_path / "runs" / "mine", timeout=200)
    fault = answer.record["fault"]
    assert "first fault at step 3, forward" in answer.sentence and "cell-2.py:16 forward" in answer.sentence
    assert "the model (Net)" in answer.sentence and "sample `13`" in answer.sentence
    assert fault["line"] == "cell-2.py:16 forward" and answer.record["equal"] is True
    warnings = answer.record["warnings"]
    assert "not executed again: !touch (In [1])" in warnings and not mark.exists()
    assert "In [4] was executed up to its recording only" in warnings
    assert any(text.startswith("In [3] raised ZeroDivisionError") for text in warnings)


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    warnings: list[str] = []
    monkeypatch.setattr(notebook_cells, "warned", warnings)
    monkeypatch.setattr(notebook_cells, "passing", [])
    monkeypatch.setattr(notebook_cells, "begun", [])
    return warnings


def test_a_cell_that_raised_goes_on_and_the_last_cell_does_not(tmp_path: Path, warned: list[str]) -> None:
    space: dict[str, Any] = {"begins": notebook_cells.begin_recording}
    cells = {1: "from __future__ import annotations", 2: "x = 1\n1 / 0", 3: "def f(", 4: "def f(a: gone): ..."}
    with pytest.raises(KeyError) as raised:
        run_cells.execute({**cells, 5: "begins()\n\nraise KeyError(x)"}, {5}, tmp_path, space)
    last = raised.traceback[-1]
    assert (Path(str(last.path)).name, last.lineno + 1) == ("cell-5.py", 3)
    assert space["x"] == 1 and "f" in space
    assert warned == ["In [2] raised ZeroDivisionError: division by zero; the next cell was executed, as in a notebook"]
    notebook_cells.begun.clear()
    with pytest.raises(RunError, match=r"In \[5\] raised NameError.*Given: In \[2\] raised ZeroDivisionError"):
        run_cells.execute({5: "gone"}, {5}, tmp_path, space)  # before its recording: why is in the answer


@pytest.mark.parametrize(("code", "words"), [
    ("get_ipython().system('pip install secret')", ["!pip"]),
    ("x = get_ipython().getoutput('KEY=secret run')", ["!"]),
    ("get_ipython().run_line_magic('run', 'train.py')", ["%run"]),
    ("get_ipython().run_cell_magic('bash', '', 'rm -r runs\\n')", ["%%bash"]),
    ("get_ipython().run_line_magic('matplotlib', 'inline')", []),
    ("get_ipython().run_cell_magic('time', '', '!pip install secret\\n')", ["!pip"]),
    ("import asyncio\nawait asyncio.sleep(0)", ["await outside of a function"]),
    ("def f(", []),
])  # fmt: skip
def test_what_is_not_executed_again_is_named(code: str, words: list[str]) -> None:
    assert list(run_cells.left_out(run_cells.opened(code))) == words


def test_magics_measure_and_set_and_start_nothing(tmp_path, monkeypatch, warned):
    main = types.ModuleType("__main__")
    shell = run_cells.Shell(main)
    monkeypatch.setenv("OCRLAB_TRIED", "no")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    vars(main).update(get_ipython=lambda: shell, sys=sys)
    cells = {
        1: "get_ipython().system('touch gone')\nfiles = get_ipython().getoutput('ls')",
        2: "get_ipython().run_line_magic('cd', '-q sub')\nget_ipython().run_line_magic('env', 'OCRLAB_TRIED=yes=1')",
        3: "get_ipython().run_line_magic('time', 'y = 3')\nx = get_ipython().run_line_magic('time', '1 + y')",
        4: run_cells.opened("\nget_ipython().run_cell_magic('time', '', 'line = sys._getframe().f_lineno\\n')"),
        5: "get_ipython().run_cell_magic('bash', '', 'touch gone')",
    }
    run_cells.execute(cells, set(), tmp_path, vars(main))
    space = vars(main)
    assert (space["files"], space["x"], space["line"], Path.cwd().name) == ([], 4, 3, "sub")
    assert run_cells.os.environ["OCRLAB_TRIED"] == "yes=1"
    assert not list(tmp_path.rglob("gone")) and warned == []
