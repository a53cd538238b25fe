"""An instrument that has ended leaves nothing in the process of the user, also where its block raised."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("instrumented_training.py")


CASES = [(name, 0) for name in ("layers", "loader", "memory", "leaks", "profile", "check")]


@pytest.mark.parametrize(("instrument", "workers"), [*CASES, ("loader", 1), ("leaks", 1)])
def test_nothing_is_left_in_the_process(tmp_path: Path, instrument: str, workers: int) -> None:
    command = [sys.executable, PROGRAM, instrument, str(workers)]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    child = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert child.returncode == 0 and child.stdout.endswith("nothing is left\n"), child.stdout[-6000:] + child.stderr
