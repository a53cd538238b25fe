"""The limits of cells and notebooks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from nbformat.v4 import new_code_cell

from ocrlab.reports.notebooks.execution import Limits, Run
from ocrlab.reports.notebooks.jupyter_kernel import Kernel


def test_a_cell_has_its_own_limit_or_what_is_left_of_the_notebooks() -> None:
    assert Limits(60, None).of_cell() == 60
    assert Limits(60, 10).of_cell() == pytest.approx(10, abs=1)
    assert Limits(5, 10).of_cell() == 5
    assert Limits(60, 0.0).of_cell() > 0, "nbclient takes 0 for no limit"
    assert Limits(5, None).broken(5.0) == (5, "a cell")
    assert Limits(5, 100).broken(5.0) == (5, "a cell")
    assert Limits(60, 0.0).broken(0.01) == (0.0, "the whole notebook")


def test_no_time_left_for_the_next_cell_is_not_the_last_cells_fault() -> None:
    manager: Any = SimpleNamespace(nb=SimpleNamespace(cells=[new_code_cell("1")]))
    kernel = Kernel()
    ended = Run(manager, None, kernel, Limits(60, 0.0)).execute_cells()
    kernel.close()
    assert ended is not None
    assert (ended.word, ended.exit_status, ended.cell) == ("STUCK", 124, None)
    assert "before its first cell" in ended.sentence
