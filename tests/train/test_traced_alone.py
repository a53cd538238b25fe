"""Each sample in a fork of its own: what one does harms nobody else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from ocrlab.train import traced_alone

CODE = """
import os, sys, time
from pathlib import Path
from ocrlab.train import traced_alone
part = traced_alone.each(1.0, Path(sys.argv[1]), ["a", "b", "c"], 3)
if part == [1]:
    os.kill(os.getpid(), 11)
while part == [2]:
    time.sleep(0.01)
os._exit(0)
"""


def test_a_crash_and_a_hang_are_told_apart_and_the_rest_goes_well(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CODE, str(tmp_path)]
    subprocess.run(command, cwd=Path(__file__).parents[2], env=environment, check=True, timeout=120)
    tried = json.loads((tmp_path / "alone.json").read_text())["tried"]
    assert [told["names"] for told in tried] == [["a"], ["b"], ["c"]]
    assert [told["signal"] for told in tried] == [None, signal.Signals.SIGSEGV.name, None]
    assert [told["hung"] for told in tried] == [False, False, True]


def test_a_long_part_has_a_short_name(tmp_path: Path) -> None:
    assert traced_alone.place(tmp_path, [3]).name == "alone-3"
    assert traced_alone.place(tmp_path, list(range(20))).name.endswith("-and-12")
