"""The trail of a replayed step: its last word outlives the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from ocrlab.flight import trail


def test_the_last_place_outlives_sigkill(tmp_path: Path) -> None:
    path = tmp_path / "trail.bin"
    code = f"""
import os
from ocrlab.flight import trail
writer = trail.Writer({str(path)!r})
for number in range(300):
    writer.at({{"op": f"aten::op{{number}}", "inputs": [[2, 3]]}})
os.kill(os.getpid(), {int(signal.SIGKILL)})
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    found = trail.read(path)
    assert found is not None
    assert (found.place, found.count) == ({"op": "aten::op299", "inputs": [[2, 3]]}, 300)
    assert 0 < found.slowest < 60
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_does_not_fit_is_left_out_and_the_rest_is_said(tmp_path: Path) -> None:
    writer = trail.Writer(tmp_path / "trail.bin")
    writer.at({"op": "aten::cat", "inputs": ["(2, 3) fp32"] * 5000, "line": "x" * 9000})
    found = trail.read(tmp_path / "trail.bin")
    assert found is not None
    assert found.place == {"op": "aten::cat", "inputs": "...", "line": "..."}


def test_what_is_no_trail_is_none(tmp_path: Path) -> None:
    path = tmp_path / "trail.bin"
    assert trail.read(path) is None
    for data in (b"", b"OCRLABT1", os.urandom(trail.SIZE), bytes(trail.SIZE)):
        path.write_bytes(data)
        assert trail.read(path) is None
    trail.Writer(path)
    assert trail.read(path) is None  # nothing was said yet
