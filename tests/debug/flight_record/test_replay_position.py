"""The trail of a replayed step: its last word outlives the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from ocrlab.debug.flight_record import replay_position


def test_the_last_place_outlives_sigkill(tmp_path: Path) -> None:
    path = tmp_path / "trail.bin"
    code = f"""
import os
from ocrlab.debug.flight_record import replay_position
writer = replay_position.Writer({str(path)!r})
for number in range(300):
    writer.enter({{"op": f"aten::op{{number}}", "inputs": [[2, 3]]}})
os.kill(os.getpid(), {int(signal.SIGKILL)})
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    position = replay_position.read(path)
    assert position is not None
    assert (position.place, position.count) == ({"op": "aten::op299", "inputs": [[2, 3]]}, 300)
    assert 0 < position.slowest < 60
    assert path.stat().st_mode & 0o777 == 0o600


def test_fields_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    writer = replay_position.Writer(tmp_path / "trail.bin")
    writer.enter({"op": "aten::cat", "inputs": ["(2, 3) fp32"] * 5000, "line": "x" * 9000})
    position = replay_position.read(tmp_path / "trail.bin")
    assert position is not None
    assert position.place == {"op": "aten::cat", "inputs": "...", "line": "..."}


def test_what_is_no_trail_is_none(tmp_path: Path) -> None:
    path = tmp_path / "trail.bin"
    assert replay_position.read(path) is None
    for data in (b"", b"OCRLABT1", os.urandom(replay_position.SIZE), bytes(replay_position.SIZE)):
        path.write_bytes(data)
        assert replay_position.read(path) is None
    replay_position.Writer(path)
    assert replay_position.read(path) is None  # nothing was said yet
