"""After `%load_ext ocrlab` the explanation of an exception stands below its traceback."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

CELLS = ("import torch\nfrom torch import nn", "model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))")
FAILS = "model(torch.rand(4, 1, 32, 32))"


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    interactiveshell = pytest.importorskip("IPython.core.interactiveshell")
    interactiveshell.InteractiveShell.clear_instance()
    shell = interactiveshell.InteractiveShell.instance()
    monkeypatch.setattr("ocrlab.notebook.explained_errors.SECONDS", 60.0)  # machines that run tests are loaded
    shell.run_line_magic("load_ext", "ocrlab")
    yield shell
    interactiveshell.InteractiveShell.clear_instance()


def run(shell: Any, *cells: str) -> None:
    for cell in cells:
        shell.run_cell(cell, store_history=True)


def test_the_explanation_follows_the_traceback(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run(shell, *CELLS, FAILS)
    shown = capsys.readouterr().out
    assert shown.index("RuntimeError") < shown.index("Why: ")
    assert "1024 features" in shown
    assert "Linear(784, 10)" in shown
    assert "cell 2" in shown  # where the layer is made


def test_it_can_be_switched_off(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_line_magic("explain_errors", "off")
    run(shell, *CELLS, FAILS)
    assert "Why: " not in capsys.readouterr().out


def test_an_unknown_failure_and_an_interrupt_show_nothing(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run(shell, "raise RuntimeError('of the program itself')", "raise KeyboardInterrupt", "x = 1")
    assert "Why: " not in capsys.readouterr().out
