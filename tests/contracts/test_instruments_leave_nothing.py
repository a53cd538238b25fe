"""An instrument that has ended leaves nothing in the process of the user, also where its block raised."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("instrumented_training.py")


@pytest.mark.parametrize(
    "words", ["0 layers loader memory leaks profile check", pytest.param("1 loader leaks", marks=pytest.mark.slow)]
)
def test_nothing_is_left_in_the_process(tmp_path: Path, words: str) -> None:
    command = [sys.executable, PROGRAM, *words.split()]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    child = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert child.returncode == 0 and child.stdout.endswith("nothing is left\n"), child.stdout[-6000:] + child.stderr
