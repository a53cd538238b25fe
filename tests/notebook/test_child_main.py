"""What runs in the child: functions with events, and cells in a module of their own."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ocrlab.notebook import child_main

ROOT = str(Path(__file__).parents[2])


@pytest.fixture
def run(tmp_path: Path):
    """Return a function that runs a cell in a child and returns its exit status, its output, and what came back."""

    def cell(code: str, **more: Any) -> tuple[int, str, dict[str, Any]]:
        call = {"code": code, "values": {}, "modules": {}, "sources": [], **more, "path": [ROOT, *sys.path]}
        (tmp_path / child_main.CALL).write_bytes(pickle.dumps(call))
        command = [
            sys.executable, "-c", "from ocrlab.notebook import child_main as child; child.start()",
            str(tmp_path),
        ]  # fmt: skip
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        back = tmp_path / child_main.VALUE
        return done.returncode, done.stdout + done.stderr, pickle.loads(back.read_bytes()) if back.exists() else {}

    return cell


def test_a_traceback_shows_the_cell_and_nothing_of_ours(run: Any) -> None:
    status, output, back = run("def f():\n    return 1 / 0\nf()")
    assert (status, back) == (1, {})
    assert 'File "<isolated cell>", line 2, in f' in output
    assert "return 1 / 0" in output
    assert "child.py" not in output


def test_what_was_imported_is_not_sent_and_what_was_defined_is_named(run: Any) -> None:
    back = run("import math\nfrom decimal import Decimal\nfrom json import dumps\ndef f(): pass\nx = Decimal(1)")[2]
    assert set(back["names"]) == {"x"}
    assert list(back["stayed"]) == ["f"]
    assert "define it in a cell of its own" in back["stayed"]["f"]


def test_nobody_can_be_asked(run: Any) -> None:
    status, output, _ = run("name = input('name? ')")
    assert status == 1
    assert "An isolated cell has no keyboard" in output
    assert "child.py" not in output


def test_a_semicolon_hides_the_value_and_exit_is_an_exit(run: Any) -> None:
    assert run("1 + 1;")[2]["value"] is None
    assert run("raise SystemExit(5)")[0] == 5
