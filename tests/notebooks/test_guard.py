"""nbval, which runs the notebooks as tests, must not wait for ever for a kernel that is gone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook


def test_a_dead_kernel_is_a_failure_within_a_minute(tmp_path: Path) -> None:
    """Without a cell timeout this takes 2000 seconds."""
    cells = [
        new_code_cell("first = 1"),
        new_code_cell("import os\nos.kill(os.getpid(), 9)"),
        new_code_cell("third = 3"),
    ]
    nbformat.write(new_notebook(cells=cells), str(tmp_path / "dies.ipynb"))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--nbval-lax", "--nbval-cell-timeout=10"]
    command += ["--nbval-current-env", "-q", "dies.ipynb"]
    env = {**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    began = time.monotonic()
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
    assert time.monotonic() - began < 60
    assert done.returncode == 1, done.stdout
    assert re.search(r"[12] failed", done.stdout)
    assert not re.search(r"3 passed", done.stdout)
