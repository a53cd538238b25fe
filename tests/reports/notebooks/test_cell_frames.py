"""The part of a kernel's stack that its author wrote."""

from __future__ import annotations

from types import SimpleNamespace

from ipykernel.compiler import get_tmp_hash_seed, murmur2_x86

from ocrlab.reports.notebooks import cell_frames

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
    assert cell_frames.own(FAULTHANDLER, [CELL]).splitlines() == [
        "Fatal Python error: Segmentation fault",
        "Current thread 0x00007f2 (most recent call first):",
        '  File "lib/python3.11/ctypes/__init__.py", line 519 in string_at',
        '  File "cell [5]", line 2 in f',
        '  File "cell [5]", line 3 in <module>',
    ]


def test_py_spys_stack_too() -> None:
    own = ['Thread 77 (idle): "MainThread"', "    f (cell [5]:2)", "    <module> (cell [5]:3)"]
    assert cell_frames.own(PY_SPY, [CELL]).splitlines() == own


def test_an_unknown_cell_is_still_a_cell() -> None:
    assert "f (a cell:2)" in cell_frames.own(PY_SPY, [])


def test_a_stack_without_a_cell_stays_whole() -> None:
    assert cell_frames.own("Thread 1 (idle)\n    main (train.py:3)\n") == "Thread 1 (idle)\n    main (train.py:3)"
