"""Notebooks whose kernel dies under them."""

from __future__ import annotations

import os
from functools import partial

from ocrlab.fault_lab.fault import Fault


def execute(*cells: str) -> None:
    """Run the cells of a notebook in a kernel of this Python, as papermill and nbconvert do."""
    import nbclient
    from nbformat.v4 import new_code_cell, new_notebook

    os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")
    notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()


KILL = partial(
    execute, "pages = list(range(10))", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "print(pages)"
)
READ_NULL = partial(execute, "import ctypes", "ctypes.string_at(8)")
READ_MISSING = partial(execute, "from pathlib import Path", "Path('pages/0001.jpg').read_bytes()")
DIED, NEEDS = ("notebook.kernel_died",), ("nbclient", "ipykernel")
FAULTS = (
    Fault("kernel_killed", "SIGKILL to a kernel", "failed", (*DIED, "ext.signal"), KILL, NEEDS),
    Fault("kernel_segv", "a null pointer in a kernel", "failed", ("native.segv", *DIED), READ_NULL, NEEDS),
    Fault("cell_fails", "a page that is not there", "failed", ("io.missing",), READ_MISSING, NEEDS),
)
