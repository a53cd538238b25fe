"""The doctor's notebook as a user runs it: papermill, from another folder, with the kernel's Python and another."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from papermill.exceptions import PapermillExecutionError

from ocrlab.reports.notebooks import results


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """Return a Python without any package."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_another_python_without_torch_fails_with_the_command_that_fixes_it(
    execute: Any, bare: str, finished: Any
) -> None:
    _, html = finished(execute(python=bare), "FAIL", 300_000)
    assert "10 of 10 steps took" in html
    assert f"{bare} -m pip install torch" in html
    assert "TORCH_USE_CUDA_DSA" in html


def test_a_python_that_is_none_stops_it(execute: Any) -> None:
    with pytest.raises(PapermillExecutionError, match="is not a program"):
        execute(python="nowhere/python")
    assert results.load(Path("out.ipynb")).outcome == "INCOMPLETE"


@pytest.mark.slow
def test_the_kernels_own_python_passes(execute: Any) -> None:
    pytest.importorskip("torch")
    assert results.load(execute()).outcome == "PASS"
